"""Faults of every kind at once, from a seed. `make chaos` does it for longer and with more."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.support.faults import trouble
from tests.support.faults.arena import Arena, Batch
from tests.support.faults.hosts.process import FleetProcess
from tests.support.faults.timing import LEASE
from tests.support.faults.trouble import Fault, Trouble

pytestmark = pytest.mark.postgres
SECONDS = 15.0


def _faults(arena: Arena, fleet: FleetProcess) -> list[Fault]:
    stack = arena.stack
    assert stack.redis is not None
    parts = (stack.api, stack.scheduler, stack.implementers[0])
    return [
        *(trouble.killed(part) for part in parts),
        *(trouble.stopped(part, LEASE / 3) for part in parts),
        trouble.hosts_killed(fleet, LEASE / 3),
        trouble.cut("Postgres", arena.db_proxy, LEASE / 4),
        trouble.frozen("Redis", arena.redis_proxy, LEASE / 3),
        trouble.cut("objects", arena.s3_proxy, LEASE / 3),
        trouble.flushed(stack.redis),
    ]


@pytest.mark.parametrize("seed", [0])
def test_faults_at_once(arena: Arena, seed: int, tmp_path: Path) -> None:
    with arena.fleet_process(2, "--adopt", "--seconds", "0.2", "1.5") as (fleet, hold):
        hold.unlink()
        batches: list[Batch] = [arena.submit(6, fleet.label, gpus=size) for size in (1, 2, 4)]
        troubles = Trouble(_faults(arena, fleet), seed=seed, every=1.0)
        troubles.start()
        time.sleep(SECONDS)
        troubles.stop()
        arena.crashes += sum(n for kind, n in troubles.counts.items() if "implementer" in kind)
        arena.heal()
        if not fleet.running:
            fleet.start()
        batches.append(arena.submit(3, fleet.label))
        for batch in batches:
            arena.finish(batch)
    happened = [asdict(one) for one in troubles.history]
    assert len(happened) >= 4, happened
    assert not troubles.wrong, troubles.wrong
