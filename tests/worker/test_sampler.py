"""Samples of what an attempt uses: numbered by time, kept until they are shipped."""

import time

import pytest

from services.worker.sampler import Sampler, until_next
from tests.support.waiting import wait_until


def test_points_are_numbered_by_time_and_kept_until_shipped() -> None:
    since = time.monotonic() - 100  # of an attempt that another worker began
    sampler = Sampler([lambda: {"a": 1.0}], since, seconds=0.05)
    sampler.start()
    wait_until(lambda: len(sampler.pending()) >= 3)
    sampler.stop()
    sampler.stop()
    points = sampler.pending()
    assert points[0].seq >= 2000
    assert len({p.seq for p in points}) == len(points)
    assert points == sorted(points, key=lambda p: p.seq)
    assert all(abs(p.seconds - p.seq * 0.05) < 5 for p in points)
    sampler.shipped(2)
    assert sampler.pending() == points[2:]


def test_sources_that_fail_or_know_nothing_leave_gaps() -> None:
    calls: list[int] = []

    def broken() -> dict[str, float]:
        calls.append(1)
        raise RuntimeError("no driver")

    sampler = Sampler([broken, dict], time.monotonic(), seconds=0.01)
    sampler.start()
    wait_until(lambda: len(calls) > 3)
    assert sampler.pending() == []
    sampler.add(lambda: {"late": 2.0, "odd": float("nan")})
    wait_until(sampler.pending)
    sampler.stop()
    assert sampler.pending()[0].values == {"late": 2.0}


@pytest.mark.parametrize("passed", [0.0, 0.3, 0.9, 0.99, 1.0, 1.01, 7.5])
@pytest.mark.parametrize("every", [1.0, 10.0])
def test_the_next_look_is_at_a_multiple(passed: float, every: float) -> None:
    wait = until_next(passed * every, every) / every
    assert 0.2 < wait <= 1.25
    assert passed + wait == pytest.approx(round(passed + wait), abs=1e-9)
