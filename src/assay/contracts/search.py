"""Searches and their epochs. The server keeps the record; a client drives the loop."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from assay.contracts.base import (
    Integer,
    JsonObject,
    Metadata,
    Name,
    Request,
    Resource,
    Seed,
    ShortName,
)
from assay.contracts.batch import MAX_IDEAS, IdeaRequest
from assay.contracts.caps import Spending


class SearchRequest(Request):
    """A new search. `config` is the strategy's, kept verbatim so that a search can be resumed."""

    environment: Name
    profile: Name
    strategy: ShortName
    seed: Seed = 0
    epochs: Integer = Field(
        ge=1, le=10_000, description="Rounds after which the search is finished."
    )
    batch_size: Integer = Field(ge=1, le=MAX_IDEAS)
    ideator: Name = "offline:ideator"
    executor: Name = "offline:literal"
    hardware_class: ShortName | None = None
    config: JsonObject = {}
    caps: Spending = Field(Spending(), description="For all its epochs together.")
    metadata: Metadata = {}


class EpochRequest(Request):
    """The ideas of one epoch, stored before they are submitted."""

    ideas: list[IdeaRequest] = Field(min_length=1, max_length=MAX_IDEAS)


class EpochBody(Resource):
    """One round of a search."""

    object: Literal["epoch"] = "epoch"
    search: str
    number: int
    state: str = Field(description="proposed, submitted or finished.")
    batch: str | None
    ideas: list[IdeaRequest]
    created_at: datetime


class SearchBody(Resource):
    """A search."""

    object: Literal["search"] = "search"
    id: str
    owner: str
    environment: str
    profile: str
    strategy: str
    seed: int
    epochs: int
    batch_size: int
    ideator: str
    executor: str
    hardware_class: str | None
    config: dict[str, Any]
    caps: Spending = Spending()
    state: str = Field(description="running, finished or cancelled.")
    epochs_finished: int
    best: list[BestOfEpoch] = Field(description="Best metric so far, per finished epoch.")
    metadata: dict[str, str]
    created_at: datetime
    finished_at: datetime | None


class BestOfEpoch(Resource):
    """The best of an epoch, and the best so far."""

    epoch: int
    batch: str
    experiment: str | None
    metric: float | None
    best_so_far: float | None
    scored: int
    total: int


SearchBody.model_rebuild()
