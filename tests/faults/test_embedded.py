"""The embedded service (SQLite, one process): each fault that it has something to break for."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import psutil
import pytest

from assay.storage import schema
from tests.support.faults.embedded import (
    EmbeddedService,
    die_at,
    kill_at_a_moment,
    kill_every,
    kill_repeatedly,
    undisturbed_seconds,
)
from tests.support.faults.hosts.fleet import FleetThread
from tests.support.faults.hosts.options import HostOptions
from tests.support.faults.hosts.work import Mischief, Work
from tests.support.faults.timing import LEASE
from tests.support.needs import missing, require_bubblewrap
from tests.support.waiting import wait_until
from tests.support.warm_start import Spawn


@pytest.fixture
def service(tmp_path: Path, warm_start: Spawn) -> Iterator[EmbeddedService]:
    """The service, not started; whatever it is at the end is stopped."""
    service = EmbeddedService(tmp_path / "data", spawn=warm_start)
    yield service
    if service.ready:
        service.stop()


@pytest.mark.parametrize(
    "point",
    [
        "batch-committed",
        "codebase-before-upload",
        "codebase-after-upload",
        "scheduler-before-commit",
        "scheduler-after-commit",
        "worker-claimed",
        "worker-finishing",
        "manifest-before",
        "manifest-after",
    ],
)
def test_killed_at_every_step(service: EmbeddedService, tmp_path: Path, point: str) -> None:
    """Faults 1, 2, 3, 8 and 24: one process is everything, and dies as one."""
    die_at(service, point, tmp_path / "mark")


@pytest.fixture(scope="module")
def typical_s(tmp_path_factory: pytest.TempPathFactory, warm_start: Spawn) -> float:
    """How long a batch takes when nothing is killed."""
    require_bubblewrap()
    folder = tmp_path_factory.mktemp("undisturbed") / "data"
    return undisturbed_seconds(folder, "bubblewrap", warm_start)


@pytest.mark.bubblewrap
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_29_killed_at_a_moment(
    tmp_path: Path, typical_s: float, seed: int, warm_start: Spawn
) -> None:
    """`python -m benchmarks.chaos moments` does it at twenty."""
    kill_at_a_moment(tmp_path, seed, typical_s, "bubblewrap", warm_start)


@pytest.mark.bubblewrap
def test_29_killed_again_and_again(tmp_path: Path, warm_start: Spawn) -> None:
    """On one data folder, with work in flight; `python -m benchmarks.chaos kills` does it 200
    times."""
    recovery = kill_repeatedly(
        tmp_path / "data", 4, seed=29, sandbox="bubblewrap", spawn=warm_start
    )
    assert recovery.hit_work >= 2, "the kills hit nothing"
    recovery.report.assert_sound()
    assert recovery.report.counts["experiments"] == 12


@pytest.mark.bubblewrap
def test_29_killed_every_few_seconds(tmp_path: Path, warm_start: Spawn) -> None:
    """One batch goes on from kill to kill: what is begun is finished first.

    `python -m benchmarks.killed steady` does it every 30 seconds for ten minutes.
    """
    service = EmbeddedService(tmp_path / "data", sandbox="bubblewrap", env={}, spawn=warm_start)
    steady = kill_every(service, 5, lasting=16, ideas=20, each=1)
    steady.report.assert_sound()
    assert steady.hit_work >= 2, "the kills hit nothing"
    assert steady.finished[1] > 0, "nothing was finished between two kills"


def test_29_a_second_instance_refuses_to_start(
    service: EmbeddedService, warm_start: Spawn
) -> None:
    service.start()
    second = EmbeddedService(service.data_dir, spawn=warm_start)
    with pytest.raises(RuntimeError, match="another process already serves"):
        second.start()
    service.finish(service.submit(2))


def test_15_a_full_disk(service: EmbeddedService, tmp_path: Path) -> None:
    """What is refused is refused with 503; what was acknowledged is finished."""
    disk = tmp_path / "disk"
    with _small_disk(disk, 24):
        service.data_dir = disk / "data"
        service.start()
        batch = service.submit(3)
        filler = disk / "filler"
        _fill(filler)
        body = service.request(60, first=100)
        for idea in body.ideas:
            idea.text += "\n" + "Why not? " * 2000
        answer = httpx2.post(
            f"{service.ready['api']}/v1/batches",
            content=body.model_dump_json(),
            headers={"Content-Type": "application/json"},
            timeout=60,
        )
        assert (answer.status_code, answer.json()["code"]) == (503, "disk_full"), answer.text
        filler.unlink()
        service.finish(batch)
        report = service.sound()
        service.stop()
    assert report.counts["experiments_succeeded"] == report.counts["experiments"] == 3


@contextmanager
def _small_disk(folder: Path, megabytes: int) -> Iterator[None]:
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "assay", str(folder)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        missing(f"a small disk cannot be mounted here: {done.stderr}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def _fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"\0" * 4096)
        except OSError:
            return


@contextmanager
def _hosts(
    service: EmbeddedService, folder: Path, work: Work, mischief: Mischief | None = None
) -> Iterator[FleetThread]:
    tokens = {}
    for name in ("one", "two"):
        answer = httpx2.post(f"{service.ready['api']}/v1/workers", json={"name": name})
        answer.raise_for_status()
        tokens[name] = answer.json()["token"]
    options = HostOptions(
        poll_seconds=1.0,
        progress_seconds=0.1,
        patience_seconds=30,
        work=work,
        mischief=mischief or Mischief(),
    )
    with FleetThread(str(service.ready["api"]), tokens, folder, options) as fleet:
        yield fleet


def _running(service: EmbeddedService) -> list[str]:
    return [a.worker_id for a in service.attempts() if a.state == "running"]


def test_16_a_host_without_power(service: EmbeddedService, tmp_path: Path) -> None:
    """Its work is done by another host; its slots stay taken until it speaks."""
    hold, journals = tmp_path / "hold", tmp_path / "journals"
    hold.touch()
    service.start()
    work = Work(low=0.1, high=0.3, log_bytes=1000, hold=hold)
    with _hosts(service, journals, work) as fleet:
        batch = service.submit(12, hardware_class="fake-gpu")
        dead = fleet.fleet.hosts["one"].worker_id
        wait_until(lambda: dead in _running(service), "it has work")
        fleet.power_off("one")

        def lost() -> list[schema.Attempt]:
            # One that was never claimed runs nowhere, and holds nothing.
            return [a for a in service.attempts() if a.state == "lost" and a.started_at]

        wait_until(lambda: bool(lost()), "its work is lost")
        hold.unlink()
        service.finish(batch)
        assert {a.worker_id for a in lost()} == {dead}
        assert all(a.released_at is None for a in lost())
        fleet.power_on("one")
        wait_until(lambda: all(a.released_at for a in lost()), "slots are free")
    service.sound(journals=journals)


def test_12_every_report_five_times_late_and_out_of_order(
    service: EmbeddedService, tmp_path: Path
) -> None:
    journals = tmp_path / "journals"
    service.start()
    mischief = Mischief(repeat=5, late_seconds=0.5, reorder=True)
    work = Work(low=0.3, high=0.6, log_bytes=3000, piece_bytes=300, points=6)
    with _hosts(service, journals, work, mischief) as fleet:
        service.finish(service.submit(8, hardware_class="fake-gpu"))
        stats = fleet.stats
        wait_until(
            lambda: stats["late_accepted"] + stats["late_refused_fenced"] > 10, "late ones", 30
        )
        assert stats["repeated"] > 20
    assert {a.state for a in service.attempts()} == {"succeeded"}
    service.sound(journals=journals)


def test_18_the_service_is_stopped_past_its_leases(
    service: EmbeddedService, tmp_path: Path
) -> None:
    """As a laptop that sleeps: when it wakes, nothing is called lost for having been silent."""
    hold, journals = tmp_path / "hold", tmp_path / "journals"
    hold.touch()
    service.start()
    work = Work(low=0.1, high=0.3, log_bytes=1000, hold=hold)
    with _hosts(service, journals, work):
        batch = service.submit(6, hardware_class="fake-gpu")
        wait_until(lambda: len(_running(service)) >= 6, "everything runs")
        process = psutil.Process(service.pid)
        process.suspend()
        try:
            time.sleep(LEASE + 1)
        finally:
            process.resume()
        hold.unlink()
        service.finish(batch)
    assert {(a.state, a.number) for a in service.attempts()} == {("succeeded", 0)}
    service.sound(journals=journals)
