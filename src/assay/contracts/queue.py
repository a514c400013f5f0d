"""The queue: what is implemented and measured next, and why the rest waits."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field

from assay.contracts.base import Resource


class QueueShare(Resource):
    """What an owner has of a stage, beside all others. Shares are from 0 to 1."""

    owner: str | None = Field(description="You; null: all other owners together.")
    owners: int
    weight: float
    waiting: int = Field(description="Ideas or measurements.")
    under_way: int = Field(description="Places, GPUs or CPUs; see `unit`.")
    has: float | None = Field(description="Of what is under way; null if nothing is.")
    recent: float | None = Field(
        description="Of the last ten minutes: GPU-seconds or CPU-seconds, or answers of models."
    )
    due: float | None = Field(
        description="By weight, among owners for whom something waits or is under way."
    )


class QueueBatch(Resource):
    """What a batch of yours has of a stage. `due` is its part of yours: batches that wait with
    your highest priority share equally, and others get what these leave."""

    batch: str
    environment: str
    profile: str
    priority: int
    waiting: int
    under_way: int
    has: float | None
    recent: float | None
    due: float | None
    paused: int = Field(0, description="Measurements to be tried again later.")
    again_at: datetime | None = Field(None, description="When the first of these is.")


class QueueNext(Resource):
    """What comes next, first first. What is not yours has no ids."""

    place: int
    yours: bool
    batch: str | None
    experiment: str | None
    measurement: str | None
    gpus: int
    cpus: int
    reason: str = Field(description="A code; see docs/scheduling.md.")
    why: str
    at: datetime | None = Field(description="When it can start at the latest, if that is known.")


class QueueStage(Resource):
    """One stage of the queue."""

    unit: Literal["places", "GPUs", "CPUs"]
    total: int
    under_way: int
    owners: list[QueueShare]
    batches: list[QueueBatch]
    next: list[QueueNext]


class MeasuringStage(QueueStage):
    """The measurements of one hardware class."""

    hardware_class: str


class QueueBody(Resource):
    """The whole queue, as one owner sees it."""

    at: datetime
    scheduled: bool = Field(description="Whether a scheduler leads: else nothing is placed.")
    implementing: QueueStage
    measuring: list[MeasuringStage]
