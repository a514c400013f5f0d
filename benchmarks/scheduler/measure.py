"""What a run is judged by."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.scheduler.rivals import Decider
from benchmarks.scheduler.simulation import Metrics, Simulation
from benchmarks.scheduler.workloads import Job, Workload


@dataclass(frozen=True)
class Outcome:
    """One run: `ratio` is its length over the lower bound, or 1 / utilisation if it was cut."""

    makespan: float
    ratio: float
    fitting: float
    strict: float
    whole: float
    jain: float
    waits: dict[int, list[float]]
    lost: float
    metrics: Metrics


def lower_bound(jobs: Sequence[Job], hosts: int, gpus: int) -> float:
    """No schedule of these jobs is shorter, whatever it knows.

    After every moment the cluster has to do the work that arrives from then on: in GPUs, and, as
    two jobs of more than half a host never share one, in hosts. No job ends before its own time.
    """
    best = max(job.submitted + job.seconds for job in jobs)
    volume = large = 0.0
    for job in sorted(jobs, key=lambda job: -job.submitted):
        volume += job.gpus * job.seconds
        large += job.seconds if 2 * job.gpus > gpus // hosts else 0.0
        best = max(best, job.submitted + volume / gpus, job.submitted + large / hosts)
    return best


def _share(part: float, rest: float) -> float:
    return part / (part + rest) if part + rest else 1.0


def run(load: Workload, decider: Decider, failures: list[tuple[float, int]]) -> Outcome:
    """Simulate, and judge. What an earlier run left in the jobs is forgotten."""
    jobs = load.jobs
    for job in jobs:
        job.started = job.ended = None
    metrics = Simulation(load, decider, failures).run()
    if load.horizon is None:
        unfinished = sum(job.ended is None for job in jobs)
        if unfinished:
            raise RuntimeError(f"{load.name}: {decider.name} left {unfinished} jobs undone")
        ratio = metrics.end / lower_bound(jobs, load.hosts, load.gpus)
    else:
        ratio = load.gpus * metrics.end / metrics.work
    waits: dict[int, list[float]] = {}
    for job in jobs:
        # What still waits has waited at least until now; the queue of a run that is cut was never
        # meant to end.
        if job.started is not None or 0 < job.submitted < metrics.end:
            until = metrics.end if job.started is None else job.started
            waits.setdefault(job.gpus, []).append(until - job.submitted)
    shares = list(metrics.owners.values())
    squares = sum(share * share for share in shares)
    return Outcome(
        makespan=metrics.end,
        ratio=ratio,
        fitting=_share(metrics.allocated, metrics.idle),
        strict=_share(metrics.allocated, metrics.idle_strict),
        whole=_share(metrics.allocated, metrics.whole - metrics.allocated),
        jain=sum(shares) ** 2 / (len(shares) * squares) if squares else 1.0,
        waits=waits,
        lost=metrics.lost,
        metrics=metrics,
    )


@dataclass(frozen=True)
class Summary:
    """One decider on one workload and cluster, over the seeds."""

    workload: str
    gpus: int
    decider: str
    ratio: float
    ratio_95: float
    # Length over that of the clairvoyant list schedule, the median over the seeds; None without.
    clairvoyant: float | None
    fitting: float
    strict: float
    whole: float
    # Hours by size: median, 95th percentile and longest, over all seeds.
    waits: dict[int, tuple[float, float, float]]
    jain: float
    lost: float
    decisions_per_second: float
    slowest_ms: float
    cpu: float

    @classmethod
    def of(
        cls,
        name: str,
        gpus: int,
        decider: str,
        outcomes: Sequence[Outcome],
        peers: dict[str, list[Outcome]],
    ) -> Summary:
        """Medians over the seeds where nothing else is said; allocation is the mean."""
        ratios = [each.ratio for each in outcomes]
        best = peers.get("clairvoyant")
        waits: dict[int, list[float]] = {}
        for outcome in outcomes:
            for size, found in outcome.waits.items():
                waits.setdefault(size, []).extend(found)
        deciding = sum(each.metrics.deciding for each in outcomes)
        return cls(
            workload=name,
            gpus=gpus,
            decider=decider,
            ratio=percentile(ratios, 0.5),
            ratio_95=percentile(ratios, 0.95),
            clairvoyant=percentile(
                [o.makespan / b.makespan for o, b in zip(outcomes, best, strict=True)], 0.5
            )
            if best
            else None,
            fitting=statistics.fmean(each.fitting for each in outcomes),
            strict=statistics.fmean(each.strict for each in outcomes),
            whole=statistics.fmean(each.whole for each in outcomes),
            waits={
                size: (percentile(found, 0.5), percentile(found, 0.95), max(found))
                for size, found in sorted(waits.items())
            },
            jain=percentile([each.jain for each in outcomes], 0.5),
            lost=statistics.fmean(each.lost / max(each.metrics.work, 1) for each in outcomes),
            decisions_per_second=sum(each.metrics.decisions for each in outcomes)
            / max(deciding, 1e-9),
            slowest_ms=1000 * max(each.metrics.slowest for each in outcomes),
            cpu=deciding,
        )


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that is not below this share of all."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
