"""The loop of asynchronous strategies: slots stay full, and the log says all that was decided."""

from __future__ import annotations

import random

import pytest

from assay.llm import OfflineIdeator
from assay.search import drive
from assay.search.decisions import replay
from assay.search.pace import Pace
from assay.search.slots import more_seeds
from assay.search.trajectories import TrajectoryReader
from tests.search.slots import FewWorkers, SlowIdeator
from tests.search.test_loop import connect, new_search
from tests.support.fake_service import FakeService


def run(
    workers: FewWorkers,
    service: FakeService,
    *,
    latency: float,
    epochs: int,
    size: int,
    slots: int,
) -> tuple[str, SlowIdeator]:
    search = new_search(
        service, "thompson", epochs=epochs, batch_size=size, settings={"keep": slots}, pause=False
    )
    ideator = SlowIdeator(workers.time, latency)
    body = drive(connect(service), search, ideator, clock=workers.time.clock)
    assert body.state == "finished"
    return search, ideator


@pytest.mark.parametrize("seconds", [30.0, 120.0, None])
def test_slots_idle_less_than_a_tenth_while_the_ideator_takes_a_minute(
    seconds: float | None,
) -> None:
    rng = random.Random(1)
    lengths = [rng.choice((30.0, 120.0)) for _ in range(1_000)]
    service = FakeService()
    workers = FewWorkers(service, 8, lambda number: seconds or lengths[number])
    run(workers, service, latency=60.0, epochs=60, size=4, slots=8)
    assert workers.share_idle < 0.1
