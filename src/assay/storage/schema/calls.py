"""Calls of models: the ledger, and the repairs they were made for."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any

from sqlalchemy import ForeignKey, Index, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from assay.storage.schema.base import Base, Id, State


class ModelCall(Base):
    """One request to a model: written before it is sent, completed after it.

    An executor's call is for an implementation in a batch. An ideator's has neither, but a search
    and a row in `ideator_call`.

    `reserved_usd` is what it was expected to cost, and counts against caps until `cost_usd` is
    known; both are null where no price is. The owner and the search are kept here as well, so
    that what they have spent is one sum.
    """

    __tablename__ = "model_call"
    __table_args__ = (
        Index("ix_model_call_owner", "owner", "started_at"),
        Index("ix_model_call_sample", "implementation_id", "sample", "revision"),
    )

    id: Mapped[str] = mapped_column(Id, primary_key=True)
    owner: Mapped[str] = mapped_column(Id)
    search_id: Mapped[str | None] = mapped_column(Id, index=True)
    batch_id: Mapped[str | None] = mapped_column(ForeignKey("batch.id"), index=True)
    implementation_id: Mapped[str | None] = mapped_column(ForeignKey("implementation.id"))
    sample: Mapped[int]
    revision: Mapped[int]
    number: Mapped[int]
    model: Mapped[str] = mapped_column(String(256))
    request_hash: Mapped[str] = mapped_column(Id)
    prompt_version: Mapped[str] = mapped_column(Id)
    state: Mapped[str] = mapped_column(State)
    code: Mapped[str | None] = mapped_column(Id)
    message: Mapped[str | None] = mapped_column(Text)
    input_tokens: Mapped[int] = mapped_column(default=0)
    cached_input_tokens: Mapped[int] = mapped_column(default=0)
    cache_write_tokens: Mapped[int] = mapped_column(default=0)
    output_tokens: Mapped[int] = mapped_column(default=0)
    is_estimate: Mapped[bool] = mapped_column(default=False)
    is_replay: Mapped[bool] = mapped_column(default=False)
    reserved_usd: Mapped[Decimal | None]
    cost_usd: Mapped[Decimal | None]
    seconds: Mapped[float | None]
    request_id: Mapped[str | None] = mapped_column(String(200))
    started_at: Mapped[datetime]
    finished_at: Mapped[datetime | None] = mapped_column(index=True)


class IdeatorCall(Base):
    """What a call of a search's ideator asked for, and its answer once that has come.

    `place` says which call of the epoch it is: a search that is resumed asks for the same places
    and finds the answers that came. `unread` counts passages that could not be read as ideas.
    """

    __tablename__ = "ideator_call"
    __table_args__ = (Index("ix_ideator_call_place", "search_id", "epoch", "place"),)

    call_id: Mapped[str] = mapped_column(ForeignKey("model_call.id"), primary_key=True)
    search_id: Mapped[str] = mapped_column(ForeignKey("search.id"))
    epoch: Mapped[int]
    place: Mapped[str] = mapped_column(Id)
    #: Who makes the call. It is shown to nobody, so that nobody else can end it.
    loop: Mapped[str] = mapped_column(Id)
    operator: Mapped[str] = mapped_column(State)
    asked: Mapped[int]
    ideas: Mapped[int | None]
    unread: Mapped[int | None]
    stop: Mapped[str | None] = mapped_column(Id)
    text: Mapped[str | None] = mapped_column(Text)
    thinking: Mapped[str | None] = mapped_column(Text)
    #: Characters of the thinking as it came; what is kept of it may be shorter.
    thinking_length: Mapped[int | None]


class Repair(Base):
    """A codebase that crashed in training and was sent back to the model that wrote it."""

    __tablename__ = "repair"

    experiment_id: Mapped[str] = mapped_column(ForeignKey("experiment.id"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    state: Mapped[str] = mapped_column(State)
    codebase_id: Mapped[str] = mapped_column(ForeignKey("codebase.id"))
    measurement_id: Mapped[str] = mapped_column(ForeignKey("measurement.id"))
    failure: Mapped[dict[str, Any]]
    #: The call that was to mend it.
    sample: Mapped[int]
    revision: Mapped[int]
    repaired_id: Mapped[str | None] = mapped_column(ForeignKey("codebase.id"))
    created_at: Mapped[datetime]
    finished_at: Mapped[datetime | None]
