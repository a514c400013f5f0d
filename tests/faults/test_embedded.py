"""The embedded service (SQLite, one process): the same faults, as far as there is anything to
break."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest
from sqlalchemy import select

from assay.storage import schema
from assay.storage.database import Database
from assay.storage.objects import LocalStore
from benchmarks.kills import kill_repeatedly
from tests.support.faults.arena import LEASE
from tests.support.faults.hosts.fleet import FleetThread
from tests.support.faults.hosts.options import HostOptions
from tests.support.faults.hosts.work import Mischief, Work
from tests.support.faults.invariants import Evidence, Report, check
from tests.support.needs import missing
from tests.support.service import ServiceProcess, toy_batch, toy_ideas
from tests.support.waiting import wait_until

SETTINGS = {
    "ASSAY_SCHEDULER_LEASE_SECONDS": str(LEASE),
    "ASSAY_SCHEDULER_SUSPECT_SECONDS": "3",
    "ASSAY_IMPLEMENTER_LEASE_SECONDS": str(LEASE),
    "ASSAY_IMPLEMENTER_RETRY_SECONDS": "0.2",
    "ASSAY_IMPLEMENTER_RESCAN_SECONDS": "1",
    "ASSAY_WORKER_PROBE": "quick",
}
FINISH_SECONDS = 120.0


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ServiceProcess]:
    """The service, not started; whatever it is at the end is stopped."""
    service = ServiceProcess(tmp_path / "data", sandbox="subprocess", env=SETTINGS)
    yield service
    if service.ready:
        service.stop()


def submit(service: ServiceProcess, count: int, *, hardware_class: str | None = None) -> str:
    """Submit ideas; the id of the batch."""
    request = toy_batch(toy_ideas(count))
    request.options.allow_unisolated = True
    request.hardware_class = hardware_class
    with service.client() as client:
        return client.batches.create(request).id


def finish(service: ServiceProcess, batch: str) -> None:
    """Wait until a batch has ended."""
    with service.client() as client:
        client.batches.wait(batch, timeout=FINISH_SECONDS)


@contextmanager
def database(service: ServiceProcess) -> Iterator[Database]:
    """The service's database, beside the service."""
    db = Database(f"sqlite:///{service.data_dir}/assay.db")
    try:
        yield db
    finally:
        db.dispose()


def attempts(service: ServiceProcess) -> list[schema.Attempt]:
    """Every attempt, oldest first."""
    with database(service) as db, db.read() as session:
        return list(session.scalars(select(schema.Attempt).order_by(schema.Attempt.created_at)))


def sound(service: ServiceProcess, *, crashes: int = 0, journals: Path | None = None) -> Report:
    """Check the invariants, once everything has come to rest."""
    with database(service) as db:
        evidence = Evidence(
            db=db,
            store=LocalStore(service.data_dir / "objects"),
            journals=journals,
            scratch=[service.data_dir / "scratch"],
            crashes=crashes,
        )
        if journals is not None:
            evidence.scratch = []  # the service's own worker is at work as well
        deadline = time.monotonic() + 30
        while (report := check(evidence)).violations and time.monotonic() < deadline:
            time.sleep(0.2)
    return report.assert_sound()


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
def test_killed_at_every_step(service: ServiceProcess, tmp_path: Path, point: str) -> None:
    """Faults 1, 2, 3, 8 and 24: one process is everything, and dies as one."""
    mark = tmp_path / "mark"
    service.launcher = ["-m", "tests.support.faults.points", "assay.cli"]
    service.env |= {"ASSAY_FAULT_AT": point, "ASSAY_FAULT_MARK": str(mark)}
    service.start()
    body = toy_batch(toy_ideas(4))
    body.options.allow_unisolated = True
    post: dict[str, Any] = {
        "content": body.model_dump_json(),
        "headers": {"Content-Type": "application/json", "Idempotency-Key": "once"},
        "timeout": 30,
    }
    try:
        httpx2.post(f"{service.ready['api']}/v1/batches", **post)
    except httpx2.TransportError:
        assert point in ("batch-committed", "codebase-before-upload", "codebase-after-upload")
    wait_until(lambda: not service.running, f"it died at {point}", FINISH_SECONDS)
    assert mark.exists(), "it died, and not there"
    service.start()
    answer = httpx2.post(f"{service.ready['api']}/v1/batches", **post)
    assert answer.status_code == 202, answer.text
    finish(service, answer.json()["id"])
    report = sound(service, crashes=1)
    assert report.counts["experiments_succeeded"] == report.counts["experiments"] == 4
    assert report.counts["results"] == 5


@pytest.mark.slow
@pytest.mark.bubblewrap
def test_29_killed_again_and_again(tmp_path: Path) -> None:
    """On one data folder, with work in flight; `make chaos` does it 200 times."""
    outcome = kill_repeatedly(tmp_path / "data", 4, seed=29, sandbox="bubblewrap")
    assert outcome.hit_work >= 2, "the kills hit nothing"
    assert not outcome.violations
    assert outcome.experiments == 12


def test_29_a_second_instance_refuses_to_start(service: ServiceProcess) -> None:
    service.start()
    second = ServiceProcess(service.data_dir, sandbox="subprocess", env=SETTINGS)
    with pytest.raises(RuntimeError, match="another process already serves"):
        second.start()
    finish(service, submit(service, 2))


def test_15_a_full_disk(service: ServiceProcess, tmp_path: Path) -> None:
    """What is refused is refused with 503; what was acknowledged is finished."""
    disk = tmp_path / "disk"
    with _small_disk(disk, 24):
        service.data_dir = disk / "data"
        service.start()
        batch = submit(service, 3)
        filler = disk / "filler"
        _fill(filler)
        body = toy_batch(toy_ideas(60, first=100))
        body.options.allow_unisolated = True
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
        finish(service, batch)
        report = sound(service)
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
    service: ServiceProcess, folder: Path, work: Work, mischief: Mischief | None = None
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


def _running(service: ServiceProcess) -> list[str]:
    return [a.worker_id for a in attempts(service) if a.state == "running"]


def test_16_a_host_without_power(service: ServiceProcess, tmp_path: Path) -> None:
    """Its work is done by another host; its slots stay taken until it speaks."""
    hold, journals = tmp_path / "hold", tmp_path / "journals"
    hold.touch()
    service.start()
    work = Work(low=0.1, high=0.3, log_bytes=1000, hold=hold)
    with _hosts(service, journals, work) as fleet:
        batch = submit(service, 12, hardware_class="fake-gpu")
        dead = fleet.fleet.hosts["one"].worker_id
        wait_until(lambda: dead in _running(service), "it has work", FINISH_SECONDS)
        fleet.power_off("one")

        def lost() -> list[schema.Attempt]:
            # One that was never claimed runs nowhere, and holds nothing.
            return [a for a in attempts(service) if a.state == "lost" and a.started_at]

        wait_until(lambda: bool(lost()), "its work is lost", FINISH_SECONDS)
        hold.unlink()
        finish(service, batch)
        assert {a.worker_id for a in lost()} == {dead}
        assert all(a.released_at is None for a in lost())
        fleet.power_on("one")
        wait_until(lambda: all(a.released_at for a in lost()), "slots are free", FINISH_SECONDS)
    sound(service, journals=journals)


def test_12_every_report_five_times_late_and_out_of_order(
    service: ServiceProcess, tmp_path: Path
) -> None:
    journals = tmp_path / "journals"
    service.start()
    mischief = Mischief(repeat=5, late_seconds=0.5, reorder=True)
    work = Work(low=0.3, high=0.6, log_bytes=3000, piece_bytes=300, points=6)
    with _hosts(service, journals, work, mischief) as fleet:
        finish(service, submit(service, 8, hardware_class="fake-gpu"))
        stats = fleet.stats
        wait_until(
            lambda: stats["late_accepted"] + stats["late_refused_fenced"] > 10, "late ones", 30
        )
        assert stats["repeated"] > 20
    assert {a.state for a in attempts(service)} == {"succeeded"}
    sound(service, journals=journals)


def test_18_the_service_is_stopped_past_its_leases(
    service: ServiceProcess, tmp_path: Path
) -> None:
    """As a laptop that sleeps: when it wakes, nothing is called lost for having been silent."""
    hold, journals = tmp_path / "hold", tmp_path / "journals"
    hold.touch()
    service.start()
    work = Work(low=0.1, high=0.3, log_bytes=1000, hold=hold)
    with _hosts(service, journals, work):
        batch = submit(service, 6, hardware_class="fake-gpu")
        wait_until(lambda: len(_running(service)) >= 6, "everything runs", FINISH_SECONDS)
        process = psutil.Process(service.pid)
        process.suspend()
        try:
            time.sleep(LEASE + 1)
        finally:
            process.resume()
        hold.unlink()
        finish(service, batch)
    assert {(a.state, a.number) for a in attempts(service)} == {("succeeded", 0)}
    sound(service, journals=journals)
