"""What is submitted, and to how many hosts of eight GPUs; drawn from a seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from assay.domain.placement import Demand

HOST_GPUS = 8
CPUS_PER_GPU = 8
MEMORY_PER_GPU = 64 << 30
HARDWARE = "h200"
MINUTE = 60.0
HOUR = 3600.0
# Budget of the training by GPUs; an evaluation may take a minute.
BUDGETS = {1: HOUR, 2: HOUR, 4: HOUR / 2, 8: HOUR / 2}
EVALUATION_BUDGET = MINUTE
# How long a host that failed is away.
REPAIR = 10 * MINUTE


@dataclass(eq=False, slots=True)
class Job:
    """A measurement, with what no policy may know: how many seconds it takes."""

    id: str
    gpus: int
    seconds: float
    starting: float
    submitted: float
    owner: str
    demand: Demand
    started: float | None = None
    ended: float | None = None


@dataclass(frozen=True)
class Workload:
    """Jobs for a cluster. With a `horizon` the run is cut there, else it ends with the last job.

    A host fails every `mtbf` seconds in the mean (0: never).
    """

    name: str
    hosts: int
    jobs: list[Job]
    horizon: float | None = None
    mtbf: float = 0.0
    seed: int = 0

    @property
    def gpus(self) -> int:
        return self.hosts * HOST_GPUS


@dataclass
class Draw:
    """Draws jobs: budgets are used up to 85 to 100 %, `early` is the share that dies at once."""

    random: random.Random
    early: float = 0.0
    jobs: list[Job] = field(default_factory=list)

    def job(self, gpus: int, submitted: float, owner: str = "a", batch_at: float = -1.0) -> Job:
        budget = BUDGETS[gpus]
        used = self.random.uniform(0.85, 1.0)
        if self.early and self.random.random() < self.early:
            used = self.random.uniform(0.0, 0.1)
        starting = self.random.uniform(5, 20)
        seconds = starting + used * budget + self.random.uniform(10, 40)
        name = f"{len(self.jobs):06d}"
        demand = Demand(
            measurement=name,
            cpus=gpus * CPUS_PER_GPU,
            gpus=gpus,
            memory_bytes=gpus * MEMORY_PER_GPU,
            hardware_class=HARDWARE,
            budget_seconds=budget,
            bound_seconds=budget + 2 * EVALUATION_BUDGET + MINUTE,
            batch_at=submitted if batch_at < 0 else batch_at,
            queued_at=submitted,
            owner=owner,
        )
        job = Job(name, gpus, seconds, starting, submitted, owner, demand)
        self.jobs.append(job)
        return job

    def size(self, shares: dict[int, float]) -> int:
        return self.random.choices(list(shares), list(shares.values()))[0]


TWO = {1: 0.7, 8: 0.3}
FOUR = {1: 0.5, 2: 0.1, 4: 0.1, 8: 0.3}


def _gpu_seconds(shares: dict[int, float]) -> float:
    """Of one job, in the mean."""
    return sum(share * gpus * (0.925 * BUDGETS[gpus] + 37) for gpus, share in shares.items())


def _batch(draw: Draw, gpus: int) -> None:
    for _ in range(256):
        draw.job(gpus, 0.0)


def _batches(draw: Draw, gpus: int, hours: float = 10) -> None:
    """Four batches of two owners, ten minutes apart: work for ten hours."""
    each = round(hours * HOUR * gpus / _gpu_seconds(TWO) / 4)
    for number in range(4):
        for _ in range(each):
            draw.job(draw.size(TWO), number * 10 * MINUTE, "ab"[number % 2])


def _steady(draw: Draw, gpus: int, load: float, hours: float) -> None:
    """Single arrivals at random moments."""
    rate = load * gpus / _gpu_seconds(FOUR)
    at = draw.random.expovariate(rate)
    while at < hours * HOUR:
        draw.job(draw.size(FOUR), at, draw.random.choice("ab"))
        at += draw.random.expovariate(rate)


def _queued(draw: Draw, count: int) -> None:
    """A queue that is there when the clock starts, of batches of 250, a minute apart."""
    for number in range(count):
        draw.job(
            draw.size(FOUR), 0.0, "ab"[number // 250 % 2], batch_at=number // 250 * MINUTE / 1e3
        )


def _crowd(draw: Draw, gpus: int, hours: float = 3) -> None:
    """An owner with work for half the cluster, behind one with 100 times as much."""
    few = round(hours * HOUR * gpus / 2 / _gpu_seconds(TWO))
    for _ in range(100 * few):
        draw.job(draw.size(TWO), 0.0, "a")
    for _ in range(few):
        draw.job(draw.size(TWO), 0.0, "b", batch_at=1e-3)


def _flood(draw: Draw, gpus: int, flood: int, hours: float = 4) -> None:
    """More of one size than can run, and after it now and then one of the other size."""
    for _ in range(round(1.3 * hours * HOUR * gpus / flood / (0.7 * BUDGETS[flood]))):
        draw.job(flood, 0.0)
    draw.early = 0.0
    at = HOUR
    while at < (hours - 1.5) * HOUR:
        draw.job(9 - flood, at, "b")
        at += draw.random.uniform(20, 60) * MINUTE


@dataclass(frozen=True)
class Kind:
    """A workload of the study, what it is held to, and whether it grows with the cluster."""

    name: str
    title: str
    fill: Callable[[Draw, int], None]
    bar: str
    horizon: float | None = None
    early: float = 0.0
    mtbf: float = 0.0
    scales: bool = True


KINDS: Sequence[Kind] = (
    Kind("a", "256 ideas, 1 GPU, 60 min", lambda d, _: _batch(d, 1), "batch", scales=False),
    Kind("b", "256 ideas, 8 GPUs, 30 min", lambda d, _: _batch(d, 8), "batch", scales=False),
    Kind("c", "four batches, 70 % 1 GPU, 30 % 8 GPUs", _batches, "saturated"),
    Kind("d80", "arrivals at load 0.8", lambda d, g: _steady(d, g, 0.8, 6), "shown"),
    Kind("d95", "arrivals at load 0.95", lambda d, g: _steady(d, g, 0.95, 6), "shown"),
    Kind("d110", "arrivals at load 1.1", lambda d, g: _steady(d, g, 1.1, 24), "saturated"),
    Kind("e10k", "10,000 queued", lambda d, _: _queued(d, 10_000), "saturated", scales=False),
    Kind(
        "e100k",
        "100,000 queued",
        lambda d, _: _queued(d, 100_000),
        "cut",
        horizon=2 * HOUR,
        scales=False,
    ),
    Kind("f", "c, and 30 % die early", _batches, "clairvoyant", early=0.3),
    Kind("g50", "c, a host fails every 50 h", _batches, "clairvoyant", mtbf=50 * HOUR),
    Kind("g500", "c, a host fails every 500 h", _batches, "clairvoyant", mtbf=500 * HOUR),
    Kind(
        "h1",
        "flood of 1 GPU, now and then 8",
        lambda d, g: _flood(d, g, 1),
        "flood",
        horizon=4 * HOUR,
        early=0.3,
    ),
    Kind("o", "two owners, one with 100 times the ideas", _crowd, "shares", horizon=3 * HOUR),
    Kind(
        "h8",
        "flood of 8 GPUs, now and then 1",
        lambda d, g: _flood(d, g, 8),
        "flood",
        horizon=4 * HOUR,
        early=0.3,
    ),
)


def workload(kind: Kind, gpus: int, seed: int) -> Workload:
    """The same for the same arguments."""
    jobs = _jobs(kind.name, gpus if kind.scales else 0, seed)
    return Workload(kind.name, gpus // HOST_GPUS, jobs, kind.horizon, kind.mtbf, seed)


@lru_cache(maxsize=1)
def _jobs(name: str, gpus: int, seed: int) -> list[Job]:
    kind = next(kind for kind in KINDS if kind.name == name)
    draw = Draw(random.Random(f"{name}-{gpus}-{seed}"), kind.early)
    kind.fill(draw, gpus)
    return draw.jobs


def failures(load: Workload) -> Iterator[tuple[float, int]]:
    """When which host fails, over ten days; the same for every policy."""
    if not load.mtbf:
        return
    rng = random.Random(f"failures-{load.name}-{load.gpus}-{load.seed}")
    for host in range(load.hosts):
        at = rng.expovariate(1 / load.mtbf)
        while at < 240 * HOUR:
            yield at, host
            at += rng.expovariate(1 / load.mtbf)
