"""GPUs that two would use, and GPUs that are not what they seem. No GPU is needed: workers are
told which devices they have, and a stand-in for the driver's library tells how they are."""

from __future__ import annotations

import logging
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from sqlalchemy import select

from assay.contracts.worker import Device
from assay.storage import schema
from services.worker.gpus import Gpus, GpusUnavailable
from services.worker.nvml import Load
from tests.support.faults.arena import Arena
from tests.support.faults.hosts.work import Mischief
from tests.support.waiting import wait_until

GIB = 1 << 30
DEVICES = [Device(uuid=f"GPU-fault-{n}", memory_bytes=80 * GIB) for n in range(2)]
HOLDER = """
import sys
from pathlib import Path
from assay.contracts.worker import Device
from services.worker.gpus import Gpus
lease = Gpus([Device(uuid=sys.argv[1])], None, Path(sys.argv[2])).take(1)
print("holds", flush=True)
sys.stdin.read()
"""


@contextmanager
def _another_worker(uuid: str, locks: Path) -> Iterator[subprocess.Popen[str]]:
    """A process of this host that uses a GPU."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, uuid, str(locks)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "holds\n"
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_19_two_workers_of_a_host_never_share_a_gpu(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with _another_worker(DEVICES[0].uuid, tmp_path) as other:
        ours = Gpus(DEVICES, None, tmp_path)
        with caplog.at_level(logging.ERROR):
            lease = ours.take(1)
            assert lease.uuids == (DEVICES[1].uuid,)
            with pytest.raises(GpusUnavailable):
                ours.take(1)
        assert any(DEVICES[0].uuid in r.getMessage() for r in caplog.records), "no alarm"
        assert ours.usable() == 1
        other.kill()
        other.wait()
    # A lock dies with its holder, however that ended.
    assert Gpus(DEVICES[:1], None, tmp_path).take(1).uuids == (DEVICES[0].uuid,)


@pytest.mark.postgres
def test_19_a_host_refuses_more_than_it_has(arena: Arena) -> None:
    """The scheduler believes in GPUs that are not there; the host knows better."""
    mischief = Mischief(boasted_gpus=2)
    with arena.hosts(1, gpus=2, mischief=mischief, held=True) as hosts:
        batch = arena.submit(6, hosts.hardware_class)
        wait_until(lambda: hosts.fleet.stats["devices_busy"] > 0, "the host refuses")
        hosts.release()
        arena.finish(batch)
    assert arena.states(batch)["succeeded"] > 0
    assert {len(a.devices) for a in arena.attempts(batch, state="succeeded")} == {1}


class _Driver:
    """What the worker asks NVML: here a device's memory stays in use after its program ended."""

    driver = "0"

    def __init__(self) -> None:
        self.used: dict[str, int] = {}

    def watch(self, uuid: str) -> None:
        """Errors are not simulated."""

    def trouble(self, uuid: str) -> str | None:
        return None

    def load(self, uuid: str) -> Load:
        used = self.used.get(uuid, 0)
        return Load(processes=0, used_bytes=used, total_bytes=80 * GIB)

    def restart(self) -> None:
        """Nothing was lost."""

    def gauges(self, uuid: str) -> dict[str, float]:
        return {}


def test_20_a_gpu_whose_memory_a_zombie_holds_is_not_reused(tmp_path: Path) -> None:
    driver = _Driver()
    ahead = 0.0
    gpus = Gpus(
        DEVICES,
        cast(Any, driver),
        tmp_path,
        settle_seconds=0.2,
        clock=lambda: time.monotonic() + ahead,
    )
    lease = gpus.take(1)
    sick = lease.uuids[0]
    driver.used[sick] = 20 * GIB
    lease.release()
    again = gpus.take(1)
    assert again.uuids != lease.uuids
    with pytest.raises(GpusUnavailable):
        gpus.take(1)
    assert gpus.usable() == 1
    driver.used[sick] = 0
    ahead = 3600.0  # instead of waiting for the next look
    wait_until(lambda: gpus.usable() == 2, "it is used again when its memory is free")
    assert gpus.take(1).uuids == (sick,)


@pytest.mark.postgres
def test_20_nothing_is_placed_on_a_sick_gpu(arena: Arena) -> None:
    with arena.hosts(1, gpus=2, mischief=Mischief(sick_gpus=1), held=True) as hosts:
        batch = arena.submit(3, hosts.hardware_class)
        table = schema.Attempt
        mine = select(table.id).where(table.worker_id == next(iter(hosts.ids.values())))
        # It may be the baseline's.
        running = mine.where(table.state == "running")
        wait_until(lambda: bool(arena.column(running)), "the healthy GPU is used")
        assert len(arena.column(mine)) == 1, "more was placed than healthy GPUs can hold"
        hosts.release()
        arena.finish(batch)
    assert {tuple(a.devices) for a in arena.attempts(batch)} == {
        (f"GPU-{next(iter(hosts.ids))}-0",)
    }
    assert arena.states(batch) == {"succeeded": 3}
