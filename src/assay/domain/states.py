"""States of experiments, measurements and attempts, and which change may follow which.

A state that is terminal never changes again; the database enforces the same rule with triggers.
"""

from __future__ import annotations

from enum import StrEnum


class ExperimentState(StrEnum):
    """One idea put to the test, as everyone sees it."""

    SUBMITTED = "submitted"
    IMPLEMENTING = "implementing"
    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_terminal(self) -> bool:
        return self in TERMINAL_EXPERIMENT


class MeasurementState(StrEnum):
    """One scored execution of a codebase."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_terminal(self) -> bool:
        return self in TERMINAL_MEASUREMENT


class AttemptState(StrEnum):
    """One lease of a measurement on one worker."""

    ASSIGNED = "assigned"
    STARTING = "starting"
    RUNNING = "running"
    FINALIZING = "finalizing"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    LOST = "lost"
    FENCED = "fenced"

    @property
    def is_live(self) -> bool:
        return self in LIVE_ATTEMPT


class DeviceState(StrEnum):
    """Why a worker offers a GPU to nobody."""

    IN_USE = "in_use"
    MEMORY_IN_USE = "memory_in_use"
    OTHER_WORKER = "other_worker"
    MEMORY_ERRORS = "memory_errors"
    DRIVER_ERROR = "driver_error"
    NO_ANSWER = "no_answer"
    LOST = "lost"
    UNREACHABLE = "unreachable"


class BatchState(StrEnum):
    """Derived from the experiments of a batch and from whether somebody cancelled it."""

    RUNNING = "running"
    FINISHED = "finished"
    CANCELLED = "cancelled"


class SearchState(StrEnum):
    """A search is driven by a client; the server keeps its record."""

    RUNNING = "running"
    FINISHED = "finished"
    CANCELLED = "cancelled"


class Driver(StrEnum):
    """Who runs the loop of a search."""

    CLIENT = "client"
    SERVICE = "service"


class EpochState(StrEnum):
    """A round of a search: ideas stored, then submitted as a batch, then finished.

    Of an asynchronous strategy it is decided first, before there are ideas.
    """

    DECIDED = "decided"
    PROPOSED = "proposed"
    SUBMITTED = "submitted"
    FINISHED = "finished"


class WorkerState(StrEnum):
    """Whether a worker is given new work."""

    ACTIVE = "active"
    LOST = "lost"
    STOPPED = "stopped"


class MeasurementKind(StrEnum):
    """What a measurement is for.

    `score` is what search sees, on the split `search`. `confirm` is scored on the split `sealed`,
    where the environment has one, on seeds that selected nothing; no ideator sees it. `smoke` only
    shows that a codebase starts. `control` shows that a codebase does again, or on another host,
    what it did before.
    """

    SCORE = "score"
    CONFIRM = "confirm"
    SMOKE = "smoke"
    CONTROL = "control"

    @property
    def baseline(self) -> MeasurementKind:
        """The kind of the baseline's measurements that one of this kind is compared with."""
        confirms = self is MeasurementKind.CONFIRM
        return MeasurementKind.CONFIRM if confirms else MeasurementKind.SCORE

    @property
    def is_scored(self) -> bool:
        """Whether a success of this kind has a metric."""
        return self is not MeasurementKind.SMOKE


class FailureStage(StrEnum):
    """Where an experiment or a measurement ended."""

    IMPLEMENT = "implement"
    SCHEDULE = "schedule"
    START = "start"
    TRAIN = "train"
    SCORE = "score"
    GUARD = "guard"


TERMINAL_EXPERIMENT = frozenset(
    {ExperimentState.SUCCEEDED, ExperimentState.FAILED, ExperimentState.CANCELLED}
)
TERMINAL_MEASUREMENT = frozenset(
    {MeasurementState.SUCCEEDED, MeasurementState.FAILED, MeasurementState.CANCELLED}
)
LIVE_ATTEMPT = frozenset(
    {
        AttemptState.ASSIGNED,
        AttemptState.STARTING,
        AttemptState.RUNNING,
        AttemptState.FINALIZING,
    }
)
