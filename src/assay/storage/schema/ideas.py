"""Ideas: environments, searches, batches, experiments and how they are implemented."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any

from sqlalchemy import ForeignKey, Index, String, Text, UniqueConstraint, text
from sqlalchemy.orm import Mapped, mapped_column

from assay.domain.conditions import UNRECORDED
from assay.domain.states import Driver, MeasurementKind
from assay.storage.schema.base import Base, Id, State

#: Batches that were cancelled and have experiments that are not cancelled yet.
CANCELLING_SQL = "state = 'cancelled' AND finished_at IS NULL"


class Environment(Base):
    """A version of an environment that something was submitted for."""

    __tablename__ = "environment"

    id: Mapped[str] = mapped_column(Id, primary_key=True)
    name: Mapped[str] = mapped_column(Id, index=True)
    content_hash: Mapped[str] = mapped_column(Id)
    # Large, and read once per process: loaded only when it is asked for.
    manifest: Mapped[dict[str, Any]] = mapped_column(deferred=True)
    bundle: Mapped[str] = mapped_column(Id)
    codebase: Mapped[str] = mapped_column(Id)
    created_at: Mapped[datetime]


class Codebase(Base):
    """A source tree in the object store.

    `canonical` is the same for trees that differ in comments, docstrings and formatting alone, and
    null where that is unknown. The first such tree is measured in place of the others.
    """

    __tablename__ = "codebase"

    id: Mapped[str] = mapped_column(Id, primary_key=True)
    environment_id: Mapped[str] = mapped_column(ForeignKey("environment.id"))
    canonical: Mapped[str | None] = mapped_column(Id, unique=True)
    created_at: Mapped[datetime]


class Promotion(Base):
    """A confirmed result whose codebase later batches may start from, by name.

    The row with the highest number of a name counts; the others are its history.
    """

    __tablename__ = "promotion"

    environment_id: Mapped[str] = mapped_column(ForeignKey("environment.id"), primary_key=True)
    name: Mapped[str] = mapped_column(Id, primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    codebase_id: Mapped[str] = mapped_column(ForeignKey("codebase.id"))
    experiment_id: Mapped[str] = mapped_column(ForeignKey("experiment.id"))
    #: The experiment that confirmed it.
    confirmation_id: Mapped[str] = mapped_column(ForeignKey("experiment.id"))
    owner: Mapped[str] = mapped_column(Id)
    created_at: Mapped[datetime]


class VerdictFit(Base):
    """A prior for verdicts, fitted to the codebases that were measured until then.

    The latest of an environment, profile and conditions is used, so verdicts change when one
    is added and at no other time.
    """

    __tablename__ = "verdict_fit"
    __table_args__ = (UniqueConstraint("environment_id", "profile", "hardware_class", "number"),)

    id: Mapped[str] = mapped_column(Id, primary_key=True)
    environment_id: Mapped[str] = mapped_column(ForeignKey("environment.id"))
    profile: Mapped[str] = mapped_column(Id)
    hardware_class: Mapped[str] = mapped_column(Id)
    conditions_id: Mapped[str] = mapped_column(Id, default=UNRECORDED)
    number: Mapped[int]
    owner: Mapped[str] = mapped_column(Id)
    prior: Mapped[dict[str, Any]]
    created_at: Mapped[datetime]


class Search(Base):
    """One outer optimisation.

    `holder`: the process of the service that drives it, until `lease_expires_at`.
    """

    __tablename__ = "search"
    __table_args__ = (Index("ix_search_driver", "driver", "state"),)

    id: Mapped[str] = mapped_column(Id, primary_key=True)
    owner: Mapped[str] = mapped_column(Id)
    environment_id: Mapped[str] = mapped_column(ForeignKey("environment.id"))
    profile: Mapped[str] = mapped_column(Id)
    strategy: Mapped[str] = mapped_column(Id)
    seed: Mapped[int]
    epochs: Mapped[int]
    batch_size: Mapped[int]
    ideator: Mapped[str] = mapped_column(String(256))
    executor: Mapped[str] = mapped_column(String(256))
    hardware_class: Mapped[str | None] = mapped_column(Id)
    #: Those asked for; without any, the first batch decides.
    conditions_id: Mapped[str | None] = mapped_column(Id)
    #: As of an idea: what the ideas of its epochs change, unless they have a base of their own.
    base_id: Mapped[str | None] = mapped_column(Id)
    base: Mapped[str | None] = mapped_column(Id)
    config: Mapped[dict[str, Any]]
    labels: Mapped[dict[str, Any]]
    caps: Mapped[dict[str, Any]] = mapped_column(default=dict)
    state: Mapped[str] = mapped_column(State)
    driver: Mapped[str] = mapped_column(State, default=Driver.CLIENT.value)
    holder: Mapped[str | None] = mapped_column(Id)
    lease_expires_at: Mapped[datetime | None]
    created_at: Mapped[datetime]
    finished_at: Mapped[datetime | None]


class Batch(Base):
    """Ideas submitted together."""

    __tablename__ = "batch"
    __table_args__ = (
        Index(
            "ix_batch_cancelling",
            "id",
            sqlite_where=text(CANCELLING_SQL),
            postgresql_where=text(CANCELLING_SQL),
        ),
    )

    id: Mapped[str] = mapped_column(Id, primary_key=True)
    owner: Mapped[str] = mapped_column(Id, index=True)
    environment_id: Mapped[str] = mapped_column(ForeignKey("environment.id"))
    profile: Mapped[str] = mapped_column(Id)
    hardware_class: Mapped[str] = mapped_column(Id)
    conditions_id: Mapped[str] = mapped_column(Id, default=UNRECORDED)
    executor: Mapped[str] = mapped_column(String(256))
    ideator: Mapped[str | None] = mapped_column(String(256))
    options: Mapped[dict[str, Any]]
    labels: Mapped[dict[str, Any]]
    search_id: Mapped[str | None] = mapped_column(ForeignKey("search.id"), index=True)
    epoch: Mapped[int | None]
    #: Of the measurements that decide its experiments, and of their baseline.
    kind: Mapped[str] = mapped_column(State, default=MeasurementKind.SCORE.value)
    state: Mapped[str] = mapped_column(State)
    version: Mapped[int]
    created_at: Mapped[datetime]
    finished_at: Mapped[datetime | None]


class Epoch(Base):
    """One round of a search; its ideas are stored before they are submitted.

    `decision`: what an asynchronous strategy decided, stored before there are ideas; null for
    strategies that work in epochs.
    """

    __tablename__ = "epoch"

    search_id: Mapped[str] = mapped_column(ForeignKey("search.id"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    ideas: Mapped[list[Any]]
    decision: Mapped[dict[str, Any] | None]
    batch_id: Mapped[str | None] = mapped_column(ForeignKey("batch.id"))
    created_at: Mapped[datetime]


class Idea(Base):
    """A natural-language proposal, as submitted."""

    __tablename__ = "idea"
    __table_args__ = (
        UniqueConstraint("batch_id", "client_key"),
        UniqueConstraint("batch_id", "position"),
    )

    id: Mapped[str] = mapped_column(Id, primary_key=True)
    batch_id: Mapped[str] = mapped_column(ForeignKey("batch.id"))
    position: Mapped[int]
    client_key: Mapped[str | None] = mapped_column(String(200))
    text: Mapped[str] = mapped_column(Text)
    thinking: Mapped[str | None] = mapped_column(Text)
    operator: Mapped[str] = mapped_column(State)
    parents: Mapped[list[Any]]
    #: Earlier ideas with nearly the same words: `[{experiment, similarity}]`.
    similar: Mapped[list[Any]] = mapped_column(default=list)
    #: The experiment whose codebase is measured again, instead of implementing the text.
    confirms: Mapped[str | None] = mapped_column(Id, index=True)
    #: The failed experiment whose codebase is measured again on the seeds that failed.
    retries: Mapped[str | None] = mapped_column(Id, index=True)
    #: The experiment whose measurements are repeated, to see whether they agree.
    reproduces: Mapped[str | None] = mapped_column(Id, index=True)
    #: The codebase that is measured, instead of implementing the text.
    codebase_id: Mapped[str | None] = mapped_column(Id)
    #: The codebase that it changes and is compared with, if it is not the environment's, and what
    #: it was asked for as: a name or an experiment.
    base_id: Mapped[str | None] = mapped_column(Id, index=True)
    base: Mapped[str | None] = mapped_column(Id)


class Experiment(Base):
    """One idea put to the test."""

    __tablename__ = "experiment"
    __table_args__ = (Index("ix_experiment_batch_position", "batch_id", "position"),)

    id: Mapped[str] = mapped_column(Id, primary_key=True)
    batch_id: Mapped[str] = mapped_column(ForeignKey("batch.id"))
    idea_id: Mapped[str] = mapped_column(ForeignKey("idea.id"), unique=True)
    position: Mapped[int]
    state: Mapped[str] = mapped_column(State, index=True)
    failure: Mapped[dict[str, Any] | None]
    codebase_id: Mapped[str | None] = mapped_column(ForeignKey("codebase.id"), index=True)
    was_started: Mapped[bool] = mapped_column(default=False)
    created_at: Mapped[datetime]
    finished_at: Mapped[datetime | None]


class Implementation(Base):
    """The record of turning one idea into a codebase."""

    __tablename__ = "implementation"

    id: Mapped[str] = mapped_column(Id, primary_key=True)
    experiment_id: Mapped[str] = mapped_column(ForeignKey("experiment.id"), unique=True)
    executor: Mapped[str] = mapped_column(String(256))
    state: Mapped[str] = mapped_column(State)
    codebase_id: Mapped[str | None] = mapped_column(ForeignKey("codebase.id"))
    winner: Mapped[int | None]
    faults: Mapped[int] = mapped_column(default=0)
    repairs: Mapped[int] = mapped_column(default=0)
    holder: Mapped[str | None] = mapped_column(Id)
    lease_expires_at: Mapped[datetime | None]
    created_at: Mapped[datetime]
    finished_at: Mapped[datetime | None]


class Sample(Base):
    """One model call of an implementation: written before the call, completed after it."""

    __tablename__ = "sample"

    implementation_id: Mapped[str] = mapped_column(
        ForeignKey("implementation.id"), primary_key=True
    )
    sample: Mapped[int] = mapped_column(primary_key=True)
    revision: Mapped[int] = mapped_column(primary_key=True)
    is_repair: Mapped[bool] = mapped_column(default=False)
    #: Whether its diff fitted the codebase, whatever preflight said of it.
    fitted: Mapped[bool] = mapped_column(default=False)
    #: The smoke measurement that its codebase went through.
    smoke_id: Mapped[str | None] = mapped_column(Id)
    state: Mapped[str] = mapped_column(State)
    code: Mapped[str | None] = mapped_column(Id)
    prompt_version: Mapped[str] = mapped_column(Id)
    answer: Mapped[str | None] = mapped_column(Text)
    thinking: Mapped[str | None] = mapped_column(Text)
    diff: Mapped[str | None] = mapped_column(Text)
    patch_log: Mapped[str | None] = mapped_column(Text)
    input_tokens: Mapped[int] = mapped_column(default=0)
    cached_input_tokens: Mapped[int] = mapped_column(default=0)
    output_tokens: Mapped[int] = mapped_column(default=0)
    cost_usd: Mapped[Decimal | None]
    tries: Mapped[int] = mapped_column(default=0)
    interrupted: Mapped[int] = mapped_column(default=0)
    started_at: Mapped[datetime]
    finished_at: Mapped[datetime | None] = mapped_column(index=True)
