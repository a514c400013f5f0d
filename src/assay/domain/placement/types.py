"""What placement decides on, and its decisions. Times are seconds on any common clock."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Demand:
    """A queued measurement and what it needs.

    `budget_seconds` is what its training may take and orders the queue; `bound_seconds` is the
    longest time it can hold its resources, and is enforced. `batch_at` is when the batch that
    first asked for it was submitted.
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
    avoid_workers: frozenset[str] = field(default_factory=frozenset)


@dataclass(frozen=True)
class Occupancy:
    """What an attempt holds of a worker, and when it has ended at the latest."""

    cpus: int
    gpus: int
    memory_bytes: int
    until: float


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


@dataclass(frozen=True)
class Placement:
    """A decision: this measurement on this worker."""

    measurement: str
    worker: str
