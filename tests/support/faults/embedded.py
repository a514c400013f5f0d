"""The embedded service, killed and started again on its data.

`kill_and_recover` is what the tests and `python -m benchmarks.chaos moments` and `kills` share:
it kills `assay serve` in the middle of batches, lets it finish what it accepted, and checks the
invariants.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import psutil
from sqlalchemy import select

from assay.contracts.batch import BatchRequest
from assay.storage import schema
from assay.storage.database import Database
from assay.storage.objects import LocalStore
from tests.support.faults.invariants import Evidence, Expected, Report, settle
from tests.support.faults.timing import FINISH_SECONDS, TERMINAL, short_leases
from tests.support.service import ServiceProcess, toy_batch, toy_ideas
from tests.support.waiting import wait_until
from tests.support.warm_start import Spawn, spawn

SETTINGS = {**short_leases(), "ASSAY_WORKER_PROBE": "quick"}
#: The kernel ends what a killed service ran; nobody has to do anything for it.
GONE_SECONDS = 15.0
#: Every kill of `kill_repeatedly` comes within so many seconds of a batch.
LONGEST_SECONDS = 1.2
#: Of one moment. The baseline is measured as well, so there is one measurement more.
IDEAS = 12


class EmbeddedService(ServiceProcess):
    """`assay serve` on toy batches, and what its client was told was accepted."""

    def __init__(
        self,
        data_dir: Path,
        *,
        sandbox: str = "subprocess",
        cpus: int = 2,
        env: Mapping[str, str] = SETTINGS,
        spawn: Spawn = spawn,
    ) -> None:
        super().__init__(data_dir, sandbox=sandbox, cpus=cpus, env=env, spawn=spawn)
        self.batches: list[str] = []
        self.accepted: list[str] = []
        self.kills = 0
        self._children: set[psutil.Process] = set()

    def start(self) -> dict[str, Any]:
        """Start it; see `ServiceProcess.start`."""
        ready = super().start()
        self._note_children()
        return ready

    def kill(self) -> None:
        """`kill -9`, and wait until none of its processes is left."""
        self._note_children()
        super().kill()
        self.kills += 1
        wait_until(lambda: not self.left(), "no process of a killed service is left", GONE_SECONDS)

    def _note_children(self) -> None:
        with suppress(psutil.NoSuchProcess):  # it has died by itself
            self._children.update(psutil.Process(self.pid).children(recursive=True))

    def left(self) -> list[str]:
        """Return the processes that a killed or stopped service left behind."""
        return [str(process) for process in self._children if _runs(process)]

    def start_at(self, point: str, mark: Path) -> None:
        """Start it so that it dies at a point; see `tests.support.faults.points`."""
        usual, env = self.launcher, self.env
        self.launcher = ["-m", "tests.support.faults.points", "assay.cli"]
        self.env = {**env, "ASSAY_FAULT_AT": point, "ASSAY_FAULT_MARK": str(mark)}
        try:
            self.start()
        finally:
            self.launcher, self.env = usual, env

    def request(self, count: int, *, first: int = 0, seconds: float = 0) -> BatchRequest:
        """Return a batch of toy ideas that may run in any sandbox; see `toy_ideas`."""
        request = toy_batch(toy_ideas(count, first=first, seconds=seconds))
        request.options.allow_unisolated = True
        return request

    def submit(
        self,
        count: int,
        *,
        first: int = 0,
        hardware_class: str | None = None,
        seconds: float = 0,
    ) -> str:
        """Submit toy ideas, and return the id of their batch."""
        request = self.request(count, first=first, seconds=seconds)
        request.hardware_class = hardware_class
        with self.client() as client:
            batch = client.batches.create(request).id
        self.accept(batch, count)
        return batch

    def accept(self, batch: str, count: int) -> None:
        """Remember a batch that the service said it had accepted."""
        table = schema.Experiment
        with self.database() as db, db.read() as session:
            ids = session.scalars(select(table.id).where(table.batch_id == batch)).all()
        assert len(ids) == count, f"{len(ids)} experiments of {count} ideas"
        self.batches.append(batch)
        self.accepted += ids

    def finish(self, batch: str, seconds: float = FINISH_SECONDS) -> None:
        """Wait until a batch has ended."""
        with self.client() as client:
            client.batches.wait(batch, timeout=seconds)

    @contextmanager
    def database(self) -> Iterator[Database]:
        """Open the service's database beside the service."""
        db = Database(f"sqlite:///{self.data_dir}/assay.db")
        try:
            yield db
        finally:
            db.dispose()

    def states(self) -> Counter[str]:
        """Return how many experiments are in which state."""
        with self.database() as db, db.read() as session:
            return Counter(session.scalars(select(schema.Experiment.state)))

    def attempts(self) -> list[schema.Attempt]:
        """Return every attempt, oldest first."""
        query = select(schema.Attempt).order_by(schema.Attempt.created_at)
        with self.database() as db, db.read() as session:
            return list(session.scalars(query))

    def settled(self, *, journals: Path | None = None, expected: Expected | None = None) -> Report:
        """Check the invariants until they hold, and return the last report."""
        with self.database() as db:
            evidence = Evidence(
                db=db,
                store=LocalStore(self.data_dir / "objects"),
                journals=journals,
                accepted=tuple(self.accepted),
                # With fake hosts, the service's own worker may still be at work.
                scratch=[self.data_dir / "scratch"] if journals is None else [],
                processes=list if self.running else self.left,
                crashes=self.kills,
                expected=expected,
            )
            return settle(evidence)

    def sound(self, *, journals: Path | None = None, expected: Expected | None = None) -> Report:
        """Fail if an invariant does not hold once everything has come to rest."""
        return self.settled(journals=journals, expected=expected).assert_sound()


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def die_at(service: EmbeddedService, point: str, mark: Path, *, ideas: int = 3) -> Report:
    """Let the service die at a point in a batch, and finish the batch after a restart.

    The client repeats its request under one key, as a careful one does.

    Raises:
        AssertionError: it did not die there, or something was lost, doubled or left behind.
    """
    service.start_at(point, mark)
    body = service.request(ideas).model_dump_json()
    headers = {"Content-Type": "application/json", "Idempotency-Key": "once"}

    def post() -> httpx2.Response:
        url = f"{service.ready['api']}/v1/batches"
        return httpx2.post(url, content=body, headers=headers, timeout=60)

    try:
        post()
    except httpx2.TransportError:
        assert point in ("batch-committed", "codebase-before-upload", "codebase-after-upload")
    wait_until(lambda: not service.running, f"the service died at {point}")
    assert mark.exists(), f"the service died, and not at {point}"
    service.kills += 1
    wait_until(lambda: not service.left(), "none of its processes is left", GONE_SECONDS)
    service.start()
    answer = post()
    assert answer.status_code == 202, answer.text
    service.accept(answer.json()["id"], ideas)
    service.finish(service.batches[-1])
    return service.sound(expected=Expected(experiments=ideas, measurements=ideas + 1))


@dataclass(frozen=True)
class Recovery:
    """What kills hit, and what came of it."""

    kills: int
    hit_work: int
    killed_after_s: float
    states_at_kill: dict[str, int]
    recovered_s: float
    failed_by_code: dict[str, int]
    report: Report

    @property
    def attempts(self) -> dict[str, int]:
        """How many attempts ended in which state."""
        counts = sorted(self.report.counts.items())
        return {name: count for name, count in counts if name.startswith("attempts_")}


def kill_and_recover(
    service: EmbeddedService,
    moments: Sequence[float],
    *,
    ideas: int,
    expected: Expected | None = None,
) -> Recovery:
    """Kill the service so many seconds after each batch, let it finish all, and check it.

    The last two facts of the recovery are about the last kill.
    """
    hit = 0
    for number, seconds in enumerate(moments):
        service.start()
        service.submit(ideas, first=number * ideas)
        began = time.monotonic()
        time.sleep(seconds)
        service.kill()
        killed_after = time.monotonic() - began
        at_kill = service.states()
        hit += bool(at_kill.keys() - set(TERMINAL))
    began = time.monotonic()
    service.start()
    try:
        for batch in service.batches:
            service.finish(batch, 2 * FINISH_SECONDS)
        recovered = time.monotonic() - began
        service.settled()
    finally:
        service.stop()
    with service.database() as db, db.read() as session:
        failures = session.scalars(select(schema.Experiment.failure)).all()
    return Recovery(
        kills=len(moments),
        hit_work=hit,
        killed_after_s=round(killed_after, 3),
        states_at_kill=dict(sorted(at_kill.items())),
        recovered_s=round(recovered, 2),
        failed_by_code=dict(Counter(failure["code"] for failure in failures if failure)),
        report=service.settled(expected=expected),
    )


@dataclass(frozen=True)
class Steady:
    """A batch through kills at fixed intervals.

    `ready_s`: from each start until the service was ready. `finished`: how many ideas had ended at
    each kill.
    """

    kills: int
    hit_work: int
    ready_s: list[float]
    finished: list[int]
    recovered_s: float
    report: Report


def kill_every(
    service: EmbeddedService, seconds: float, *, lasting: float, ideas: int, each: float = 0
) -> Steady:
    """Kill a service every `seconds` after it became ready, `lasting` so long, on one batch of
    ideas that take `each` so many seconds at least.

    Then let it finish, and check that all ideas succeeded, and once each.
    """
    ready: list[float] = []
    finished: list[int] = []

    def start() -> None:
        began = time.monotonic()
        service.start()
        ready.append(round(time.monotonic() - began, 2))

    start()
    service.submit(ideas, seconds=each)
    end = time.monotonic() + lasting
    while time.monotonic() < end:
        time.sleep(seconds)
        service.kill()
        states = service.states()
        finished.append(sum(states[name] for name in TERMINAL))
        start()
    began = time.monotonic()
    try:
        service.finish(service.batches[-1], ideas * FINISH_SECONDS)
        recovered = time.monotonic() - began
        # While it runs, so that the last messages are sent. The unmodified codebase is measured,
        # too.
        expected = Expected(experiments=ideas, measurements=ideas + 1)
        service.settled(expected=expected)
    finally:
        service.stop()
    report = service.settled(expected=expected)
    hit = sum(number < ideas for number in finished)
    return Steady(len(finished), hit, ready, finished, round(recovered, 2), report)


def undisturbed_seconds(folder: Path, sandbox: str, spawn: Spawn = spawn) -> float:
    """Return how long the batch of a moment takes when nothing is killed."""
    service = EmbeddedService(folder, sandbox=sandbox, env={}, spawn=spawn)
    service.start()
    try:
        began = time.monotonic()
        service.finish(service.submit(IDEAS))
        return time.monotonic() - began
    finally:
        service.stop()


def kill_at_a_moment(
    folder: Path, seed: int, typical_s: float, sandbox: str, spawn: Spawn = spawn
) -> Recovery:
    """Kill a fresh service at a seeded share of the time that a batch takes, and check the rest.

    Raises:
        AssertionError: something was lost, doubled or left behind, or no kill hit work.
    """
    fraction = random.Random(seed).uniform(0.0, 0.95)
    for attempt in range(6):
        data = folder / f"try-{attempt}"
        service = EmbeddedService(data, sandbox=sandbox, env={}, spawn=spawn)
        expected = Expected(experiments=IDEAS, measurements=IDEAS + 1)
        recovery = kill_and_recover(
            service, [fraction * typical_s], ideas=IDEAS, expected=expected
        )
        recovery.report.assert_sound()
        if recovery.hit_work:
            return recovery
        fraction *= 0.6  # everything had ended before the kill: that proves nothing
    raise AssertionError("the kill never hit unfinished work")


def kill_repeatedly(
    folder: Path, kills: int, *, seed: int = 0, sandbox: str = "auto", spawn: Spawn = spawn
) -> Recovery:
    """Kill a service so often on one data folder, with three ideas between two kills."""
    chance = random.Random(seed)
    moments = [chance.uniform(0, LONGEST_SECONDS) for _ in range(kills)]
    service = EmbeddedService(folder, sandbox=sandbox, env={}, spawn=spawn)
    recovery = kill_and_recover(service, moments, ideas=3)
    stored = recovery.report.counts["experiments"]
    wanted = len(service.accepted)
    recovery.report.demand(stored == wanted, "I1", f"{stored} experiments, {wanted} accepted")
    return recovery
