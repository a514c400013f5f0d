"""What placement decides on, and its decisions. Times are seconds on any common clock."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias

# A hardware class, and GPUs; without a GPU, CPUs as a negative number.
Size: TypeAlias = tuple[str, int]
# An owner, and when a batch of that owner was submitted.
Batch: TypeAlias = tuple[str, float]
#: The lowest priority of a batch. What has less waits until nothing else does.
LEAST_OF_BATCHES = -100


@dataclass(frozen=True)
class Demand:
    """A queued measurement and what it needs.

    `budget_seconds` is what its training may take and orders the queue; `bound_seconds` is the
    longest time it can hold its resources, and is enforced (0: unknown, taken as for ever).
    `batch_at` is when the batch that first asked for it was submitted. Only workers that offer its
    `setting` may take it, so that its results can be compared.
    """

    measurement: str
    cpus: int
    gpus: int
    memory_bytes: int
    hardware_class: str
    priority: int = 0
    budget_seconds: float = 0.0
    bound_seconds: float = 0.0
    batch_at: float = 0.0
    queued_at: float = 0.0
    needs_isolation: bool = True
    setting: str = ""
    avoid_workers: frozenset[str] = field(default_factory=frozenset)
    owner: str = ""

    @property
    def batch(self) -> Batch:
        """The batch that first asked for it, whose share it counts against."""
        return (self.owner, self.batch_at)

    @property
    def size(self) -> Size:
        """By what it takes turns with others."""
        return (self.hardware_class, size_of(self))


@dataclass(frozen=True)
class Occupancy:
    """What an attempt holds of a worker, and when it has ended at the latest."""

    cpus: int
    gpus: int
    memory_bytes: int
    until: float
    owner: str = ""
    batch_at: float = 0.0


@dataclass(frozen=True)
class Supply:
    """A worker: what is free on it now, what runs, and how many attempts are starting.

    What is free and what runs add up to what the worker has; a worker that gets no new work
    (silent, draining, cordoned) is not a supply.
    """

    worker: str
    cpus: int
    gpus: int
    memory_bytes: int
    hardware_class: str
    isolated: bool
    starting: int = 0
    running: tuple[Occupancy, ...] = ()
    settings: frozenset[str] = frozenset()

    @cached_property
    def ends(self) -> tuple[Occupancy, ...]:
        """What runs, in the order in which it ends at the latest."""
        return tuple(sorted(self.running, key=_end))

    @cached_property
    def held(self) -> dict[int, int]:
        """How much runs, by size (see `size_of`): GPUs, or CPUs where no GPU is held."""
        held: dict[int, int] = {}
        for each in self.running:
            size = size_of(each)
            held[size] = held.get(size, 0) + abs(size)
        return held

    @cached_property
    def held_by(self) -> dict[Batch, int]:
        """How much runs, by batch, in the unit of its size."""
        held: dict[Batch, int] = {}
        for each in self.running:
            batch = (each.owner, each.batch_at)
            held[batch] = held.get(batch, 0) + abs(size_of(each))
        return held

    @cached_property
    def total(self) -> tuple[int, int]:
        """CPUs and GPUs of the worker, free or not."""
        return (
            self.cpus + sum(each.cpus for each in self.running),
            self.gpus + sum(each.gpus for each in self.running),
        )

    @cached_property
    def _free_at(self) -> dict[tuple[int, int, int], float | None]:
        return {}

    def free_at(self, gpus: int, cpus: int, memory_bytes: int) -> float | None:
        """When so much is free at the latest, 0 if it is free now; None if it never is."""
        known, key = self._free_at, (gpus, cpus, memory_bytes)
        if key not in known:
            lack = (gpus - self.gpus, cpus - self.cpus, memory_bytes - self.memory_bytes)
            known[key] = when_free(lack, self.ends, 0.0)
        return known[key]


def when_free(lack: tuple[int, int, int], ends: Iterable[Occupancy], now: float) -> float | None:
    """When enough has ended to make up for lacking GPUs, CPUs and memory; None if never."""
    gpus, cpus, memory = lack
    if gpus <= 0 and cpus <= 0 and memory <= 0:
        return now
    for each in ends:
        gpus -= each.gpus
        cpus -= each.cpus
        memory -= each.memory_bytes
        if gpus <= 0 and cpus <= 0 and memory <= 0:
            return each.until
    return None


def _end(occupancy: Occupancy) -> tuple[float, int, int, int]:
    return (occupancy.until, occupancy.gpus, occupancy.cpus, occupancy.memory_bytes)


def size_of(what: Demand | Occupancy) -> int:
    """GPUs; without a GPU, CPUs as a negative number."""
    return what.gpus or -what.cpus


@dataclass(frozen=True)
class Policy:
    """Limits of one decision.

    `reservations` is how many measurements of one size may hold back resources at once.
    `patience` is for how many of its own bounds a measurement lets larger ones go first.
    `grain_seconds` is by how much a reservation may be late, so that the second half of a wave of
    starts still fits before it; never for one whose size was not served since it was queued.
    `shares` are the weights of owners, 1 for all others.
    """

    starting_per_worker: int = 4
    placements: int = 128
    reservations: int = 8
    patience: float = 1.0
    grain_seconds: float = 120.0
    shares: Mapping[str, float] = field(default_factory=dict)

    def weight(self, owner: str) -> float:
        """The weight of an owner's share."""
        return self.shares.get(owner, 1.0)


@dataclass(frozen=True)
class Placement:
    """A decision: this measurement on this worker."""

    measurement: str
    worker: str


@dataclass(frozen=True)
class Reservation:
    """Resources of a worker held back for a measurement, which can start there by `at`."""

    measurement: str
    worker: str
    at: float


@dataclass(frozen=True)
class Plan:
    """The decisions of one moment; reservations are made anew every time."""

    placements: tuple[Placement, ...] = ()
    reservations: tuple[Reservation, ...] = ()
