"""Who decides in a simulation: Assay's policy and those it is compared with.

All see the first waiting jobs of each kind and the hosts; the clairvoyant one sees the future too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from assay.domain.placement import Size, Supply, plan, queue_order
from benchmarks.scheduler.workloads import REPAIR, Job

Choice = tuple[str, str]


class Decider(Protocol):
    """Chooses (job, worker) pairs, and says which workers it holds back for others."""

    name: str
    clock: float
    # How many waiting jobs of a kind it looks at beyond those that could start.
    ahead: int
    # Whether it looks at hosts without a free GPU too.
    looks_at_all: bool
    # Whether it tells owners and batches apart.
    by_batch: bool

    def order(self, job: Job) -> tuple[object, ...]: ...

    def decide(
        self, heads: Sequence[Job], supplies: Sequence[Supply], now: float
    ) -> tuple[list[Choice], set[str]]: ...


class Assay:
    """The policy that the scheduler runs."""

    name = "assay"
    clock = 1.0
    ahead = 8
    looks_at_all = True
    by_batch = True

    def __init__(self) -> None:
        self._served: dict[Size, float] = {}

    def order(self, job: Job) -> tuple[object, ...]:
        return queue_order(job.demand)

    def decide(
        self, heads: Sequence[Job], supplies: Sequence[Supply], now: float
    ) -> tuple[list[Choice], set[str]]:
        made = plan([job.demand for job in heads], supplies, now, served=self._served)
        if made.placements:
            sizes = {job.id: job.demand.size for job in heads}
            for placement in made.placements:
                self._served[sizes[placement.measurement]] = now
        return [(p.measurement, p.worker) for p in made.placements], {
            r.worker for r in made.reservations
        }


class Fifo:
    """In the order of arrival: the first that does not fit stops all behind it."""

    name = "fifo"
    clock = 1.0
    ahead = 1
    looks_at_all = False
    by_batch = False
    strict = True
    # Whether two jobs of one size fit alike.
    sizes_only = True

    def order(self, job: Job) -> tuple[object, ...]:
        return (job.submitted, job.id)

    def decide(
        self, heads: Sequence[Job], supplies: Sequence[Supply], now: float
    ) -> tuple[list[Choice], set[str]]:
        free = {s.worker: s.gpus for s in supplies if s.gpus}
        chosen: list[Choice] = []
        smallest_refused = math.inf
        for job in sorted(heads, key=self.order):
            if job.gpus >= smallest_refused:
                continue
            worker = self.fit(job, free, now)
            if worker is None:
                if self.sizes_only:
                    smallest_refused = job.gpus
                if self.strict:
                    break
                continue
            chosen.append((job.id, worker))
            free[worker] -= job.gpus
            if not free[worker]:
                del free[worker]
        return chosen, set()

    def fit(self, job: Job, free: dict[str, int], now: float) -> str | None:
        """The first worker with room."""
        return next((worker for worker, gpus in free.items() if gpus >= job.gpus), None)


class Backfill(Fifo):
    """In the order of arrival, passing over what does not fit; nothing is reserved."""

    name = "fifo+backfill"
    strict = False


class Poll(Fifo):
    """First in, first out, looked at once a minute."""

    name = "clocked poll"
    clock = 60.0


class Clairvoyant(Backfill):
    """A list schedule, longest first, by one who knows every duration and every failure.

    `benchmarks.scheduler` takes the shorter of two lists: with and without size before length.
    """

    name = "clairvoyant"
    ahead = 32
    sizes_only = False

    def __init__(
        self, failures: Sequence[tuple[float, int]], *, largest_first: bool = True
    ) -> None:
        self._largest_first = largest_first
        self._failures: dict[str, list[float]] = {}
        for at, host in sorted(failures, reverse=True):
            self._failures.setdefault(f"{host:04d}", []).append(at)

    def order(self, job: Job) -> tuple[object, ...]:
        return (-job.gpus if self._largest_first else 0, -job.seconds, job.id)

    def decide(
        self, heads: Sequence[Job], supplies: Sequence[Supply], now: float
    ) -> tuple[list[Choice], set[str]]:
        for later in self._failures.values():
            while later and later[-1] + REPAIR <= now:
                later.pop()
        return super().decide(heads, supplies, now)

    def fit(self, job: Job, free: dict[str, int], now: float) -> str | None:
        """The fullest worker with room that does not fail before the job ends."""
        fitting = [
            (gpus, worker)
            for worker, gpus in free.items()
            if gpus >= job.gpus and self._lasts(worker, now + job.seconds)
        ]
        return min(fitting)[1] if fitting else None

    def _lasts(self, worker: str, until: float) -> bool:
        later = self._failures.get(worker)
        return not later or later[-1] > until
