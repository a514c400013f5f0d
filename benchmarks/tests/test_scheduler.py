"""The simulator is honest, and a slice of it passes the bars."""

from __future__ import annotations

import json
import random
import subprocess
import sys

import pytest

from benchmarks.scheduler.measure import lower_bound, percentile, run
from benchmarks.scheduler.rivals import Assay, Backfill, Clairvoyant, Decider, Fifo, Poll
from benchmarks.scheduler.workloads import (
    HOUR,
    KINDS,
    REPAIR,
    Draw,
    Job,
    Workload,
    failures,
    workload,
)
from tests.support.measuring import ROOT


def jobs(*given: tuple[int, float]) -> list[Job]:
    """(GPUs, submitted at), an hour of work each."""
    draw = Draw(random.Random(0))
    for gpus, at in given:
        draw.job(gpus, at).seconds = HOUR
    return draw.jobs


def starts(decider: Decider, *given: tuple[int, float], hosts: int = 1) -> list[float]:
    load = Workload("test", hosts, jobs(*given))
    run(load, decider, [])
    return [job.started or 0.0 for job in load.jobs]


@pytest.mark.parametrize(
    ("given", "bound"),
    [
        ([(8, 0.0), (8, 0.0)], 2 * HOUR),
        ([(1, 0.0)] * 16, 2 * HOUR),
        ([(1, 0.0), (1, 5 * HOUR)], 6 * HOUR),
        ([(8, 3 * HOUR), (8, 3 * HOUR), (1, 0.0)], 5 * HOUR),
    ],
)
def test_the_lower_bound(given: list[tuple[int, float]], bound: float) -> None:
    assert lower_bound(jobs(*given), 1, 8) == pytest.approx(bound)


def test_more_than_half_a_host_shares_it_with_no_equal() -> None:
    pair = jobs((8, 0.0), (8, 0.0))
    for job in pair:
        job.gpus = 5
    assert lower_bound(pair, 1, 8) == 2 * HOUR


def test_fifo_stops_at_the_first_that_does_not_fit_and_backfill_passes_over_it() -> None:
    given = [(4, 0.0), (8, 1.0), (1, 2.0)]
    assert starts(Fifo(), *given) == [0, HOUR, 2 * HOUR]
    assert starts(Backfill(), *given) == [0, HOUR + 2, 2]


def test_the_poll_looks_once_a_minute() -> None:
    assert starts(Poll(), (1, 61.0)) == [120]


def test_assay_starts_four_at_once_and_the_others_when_these_run() -> None:
    found = sorted(starts(Assay(), *[(1, 0.0)] * 8))
    assert found[:4] == [0] * 4
    assert all(5 <= at <= 41 for at in found[4:])


@pytest.mark.parametrize("decider", [Assay, Fifo])
def test_what_a_failed_host_ran_starts_again_after_the_lease(decider: type[Decider]) -> None:
    load = Workload("test", 1, jobs((8, 0.0)))
    found = run(load, decider(), [(1000.0, 0)])
    assert found.makespan == 1000 + REPAIR + HOUR
    # Until its lease has run out it holds its GPUs.
    assert found.lost == 8 * 1180


def test_what_is_placed_on_a_host_that_just_failed_is_taken_back() -> None:
    load = Workload("test", 2, jobs((8, 990.0), (8, 1001.0)))
    found = run(load, Assay(), [(1000.0, 1)])
    assert [job.started for job in load.jobs] == [990, 1001]
    assert found.lost == 8 * 60
    assert found.makespan == 1000 + REPAIR + HOUR


def test_the_clairvoyant_starts_nothing_that_will_be_lost() -> None:
    load = Workload("test", 1, jobs((8, 0.0)))
    broken = [(1000.0, 0)]
    found = run(load, Clairvoyant(broken), broken)
    assert (found.lost, found.makespan) == (0, 1000 + REPAIR + HOUR)


def test_idle_gpus_count_while_a_measurement_that_fits_waits() -> None:
    # Four of eight GPUs run; the eight that wait do not fit, the one behind them does.
    load = Workload("test", 1, jobs((4, 0.0), (8, 1.0), (1, 2.0)))
    strict = run(load, Fifo(), [])
    # For an hour four run and four are idle, then all run; nothing waits while the last runs.
    assert strict.fitting == pytest.approx(12 / 16, abs=1e-3)
    assert run(load, Backfill(), []).fitting == pytest.approx(1, abs=1e-3)


def test_workloads_and_failures_are_the_same_for_a_seed() -> None:
    kind = next(kind for kind in KINDS if kind.name == "g50")
    first, second, other = (workload(kind, 64, seed) for seed in (1, 1, 2))
    assert [job.seconds for job in first.jobs] == [job.seconds for job in second.jobs]
    assert [job.seconds for job in first.jobs] != [job.seconds for job in other.jobs]
    assert list(failures(first)) == list(failures(second)) != []


def test_percentiles() -> None:
    assert [percentile([3, 1, 2, 4], share) for share in (0.5, 0.95)] == [2, 4]


@pytest.mark.slow
def test_a_slice_passes_the_bars() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.scheduler", "--quick"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    summary = json.loads(done.stdout.splitlines()[-1])
    assert summary["missed"] == 0
    assert len(summary["worst"]) == 7
    ratios = summary["ratios_at_saturation"]
    assert ratios["assay"] < ratios["fifo"] < ratios["clocked poll"]
