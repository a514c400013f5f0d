"""The life of measurements as random steps of clients, hosts, operators and time.

Beside the database stands what really runs on each host, of which the database only hears. After
every step the two are compared.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from sqlalchemy import select

from assay.domain.errors import Fenced
from assay.domain.failure_codes import Failure, FailureCode
from assay.domain.states import AttemptState, FailureStage
from assay.storage import batches, cordons, schema, workers
from assay.storage.attempts import Outcome
from services.scheduler.clock import Scheduler
from tests.scheduler.moments import pass_time, scheduler
from tests.storage.lifecycle import CRASH, World

SUCCESS = Outcome(AttemptState.SUCCEEDED, metric=1.0, metrics={"score": 1.0}, started=True)
FAILED = Outcome(AttemptState.FAILED, CRASH, started=True)
NO_START = Failure(FailureStage.START, FailureCode.SANDBOX_FAILED, "no room")
FAULT = Outcome(AttemptState.FAILED, NO_START)
CPUS = 4  # of a host; a measurement takes one
TERMINAL = {"succeeded", "failed", "cancelled"}


class Host:
    """A host: what it was offered, and what runs on it really."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.offered: dict[str, schema.Attempt] = {}
        self.runs: dict[str, schema.Attempt] = {}
        self.incarnations = 1
        self.there = True

    def sync(self) -> None:
        held = [*self.offered.values(), *self.runs.values()]
        answer = self.world.sync(*held)
        for attempt in answer.fenced:
            self.offered.pop(attempt, None)
            self.runs.pop(attempt, None)
        for attempt in answer.stop:
            self.offered.pop(attempt, None)
            if attempt in self.runs:
                self.end(attempt, Outcome(AttemptState.CANCELLED))
        for spec in answer.assign:
            self.offered[spec.attempt] = self.world.attempt(spec.attempt)

    def claim(self, attempt: str) -> None:
        row = self.offered.pop(attempt)
        try:
            self.world.run(row)
        except Fenced:
            return
        self.runs[attempt] = row

    def end(self, attempt: str, outcome: Outcome) -> None:
        row = self.runs.pop(attempt)
        try:
            self.world.finish(row, outcome)
        except Fenced:
            return

    def restart(self, adopted: list[str]) -> None:
        """The process is replaced; what it does not adopt has died with it."""
        self.incarnations += 1
        self.offered.clear()
        self.runs = {name: row for name, row in self.runs.items() if name in adopted}
        self.world.restart(str(self.incarnations), *self.runs.values())
        self.there = True


class Lifecycle(RuleBasedStateMachine):
    """Steps; a subclass says how a world comes about."""

    def make(self) -> World:
        raise NotImplementedError

    @initialize()
    def begin(self) -> None:
        first = self.make()
        self.db = first.db
        self.hosts = [Host(first), Host(first.another("v"))]
        self.clock: Scheduler = scheduler(first)
        self.world, self.contents = first, 0
        self.final: dict[str, str] = {}
        self.batches: list[str] = []

    def host(self, number: int) -> Host:
        return self.hosts[number % len(self.hosts)]

    def chosen(self, among: dict[str, Any], number: int) -> str | None:
        names = sorted(among)
        return names[number % len(names)] if names else None

    @rule(number=st.integers(1, 3))
    def submit(self, number: int) -> None:
        batch = self.world.submit(*map(str, range(number)))
        self.batches.append(batch)
        for experiment in self.world.experiments(batch):
            self.contents += 1
            self.world.implement(experiment.id, f"{self.contents}\n")

    @rule()
    def tick(self) -> None:
        self.clock.tick()

    @rule(seconds=st.sampled_from([1, 6, 16, 61, 95, 185, 700]))
    def wait(self, seconds: float) -> None:
        pass_time(self.world, seconds, schema.Attempt, schema.Worker, schema.Measurement)

    @rule(which=st.integers(0, 1))
    def sync(self, which: int) -> None:
        if self.host(which).there:
            self.host(which).sync()

    @rule(which=st.integers(0, 1), number=st.integers(0, 9))
    def claim(self, which: int, number: int) -> None:
        host = self.host(which)
        if (attempt := self.chosen(host.offered, number)) is not None:
            host.claim(attempt)

    @rule(
        which=st.integers(0, 1),
        number=st.integers(0, 9),
        outcome=st.sampled_from([SUCCESS, SUCCESS, FAILED, FAULT]),
    )
    def finish(self, which: int, number: int, outcome: Outcome) -> None:
        host = self.host(which)
        if (attempt := self.chosen(host.runs, number)) is not None:
            host.end(attempt, outcome)

    @rule(which=st.integers(0, 1), adopts=st.booleans())
    def restart(self, which: int, adopts: bool) -> None:
        host = self.host(which)
        host.restart(sorted(host.runs)[:1] if adopts else [])

    @rule(which=st.integers(0, 1))
    def remove(self, which: int) -> None:
        host = self.host(which)
        host.offered.clear()
        host.runs.clear()
        host.there = False
        with self.db.write() as session:
            workers.remove(self.db, session, host.world.worker)

    @rule(which=st.integers(0, 1), ends=st.booleans())
    def cordon(self, which: int, ends: bool) -> None:
        with self.db.write() as session:
            if ends:
                cordons.uncordon(self.db, session, self.host(which).world.worker)
            else:
                cordons.cordon(self.db, session, self.host(which).world.worker, "trouble", 100)

    @rule(number=st.integers(0, 9))
    def cancel(self, number: int) -> None:
        if self.batches:
            with self.db.write() as session:
                batches.cancel(self.db, session, self.batches[number % len(self.batches)])

    @rule()
    def new_leader(self) -> None:
        self.clock = scheduler(self.world)

    @precondition(lambda self: hasattr(self, "db"))
    @invariant()
    def nothing_is_doubled_and_nothing_taken_twice(self) -> None:
        with self.db.read() as session:
            rows = session.scalars(select(schema.Measurement)).all()
            measurements = {m.id: m.state for m in rows}
            succeeded = {m.id for m in rows if m.state == "succeeded"}
            results = set(session.scalars(select(schema.Result.measurement_id)))
            attempts = session.scalars(select(schema.Attempt)).all()
        assert results == succeeded
        for name, state in self.final.items():
            assert measurements[name] == state
        self.final = {n: s for n, s in measurements.items() if s in TERMINAL}
        live = Counter(a.measurement_id for a in attempts if AttemptState(a.state).is_live)
        assert all(count == 1 for count in live.values())
        assert set(live) == {name for name, state in measurements.items() if state == "running"}
        held = {a.id: a.worker_id for a in attempts if a.released_at is None}
        assert all(count <= CPUS for count in Counter(held.values()).values())
        for host in self.hosts:
            for attempt in host.runs:
                assert held.get(attempt) == host.world.worker

    def teardown(self) -> None:
        """Everything comes to an end when hosts work and nobody disturbs them."""
        if not hasattr(self, "db"):
            return
        for _ in range(60):
            for host in self.hosts:
                self._work(host)
            pass_time(self.world, 320, schema.Measurement)
            self.clock.tick()
            with self.db.read() as session:
                states = session.scalars(select(schema.Measurement.state)).all()
                held = session.scalars(
                    select(schema.Attempt.id).where(schema.Attempt.released_at.is_(None))
                ).all()
            if not held and set(states) <= TERMINAL:
                break
        assert set(states) <= TERMINAL
        assert held == []
        with self.db.read() as session:
            assert set(session.scalars(select(schema.Experiment.state))) <= TERMINAL
            assert all(session.scalars(select(schema.Batch.finished_at)))
        self.db.dispose()

    def _work(self, host: Host) -> None:
        if not host.there:
            host.restart([])
        with self.db.write() as session:
            cordons.uncordon(self.db, session, host.world.worker)
        host.sync()
        for attempt in sorted(host.offered):
            host.claim(attempt)
        for attempt in sorted(host.runs):
            host.end(attempt, SUCCESS)
        host.sync()
