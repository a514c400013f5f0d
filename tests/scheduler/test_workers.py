"""Workers that are silent, fail, or are cordoned; and outages in which nobody is to blame."""

from __future__ import annotations

import time

import pytest
from sqlalchemy import event, select
from sqlalchemy.orm import Session

from assay.contracts.environment import Profile
from assay.contracts.worker import DeviceTrouble, SyncRequest
from assay.domain.conditions import Conditions
from assay.domain.failure_codes import Failure, FailureCode
from assay.domain.states import AttemptState, FailureStage
from assay.environments.catalog import Catalog
from assay.storage import cordons, schema, shapes, workers
from assay.storage.attempts import Outcome
from assay.storage.database import Database
from assay.storage.objects import LocalStore
from services.implementer.views.measurements import worker_body
from tests.scheduler.moments import pass_time, scheduler
from tests.storage.lifecycle import World

NO_START = Failure(FailureStage.START, FailureCode.SANDBOX_FAILED, "no room")
FAULT = Outcome(AttemptState.FAILED, NO_START)


@pytest.fixture
def world(db: Database, store: LocalStore, catalog: Catalog) -> World:
    return World.create(db, store, catalog)


def queue(world: World, number: int) -> list[str]:
    batch = world.submit(*map(str, range(number)))
    return [world.implement(e.id, f"{e.id}\n") for e in world.experiments(batch)]


def fail(world: World, times: int) -> None:
    """Attempts that do not start, each on a measurement of its own."""
    for measurement in queue(world, times):
        world.measure(measurement, FAULT)


def running(world: World) -> schema.Attempt:
    attempt = world.assign(world.measurement_of_one())
    assert attempt is not None
    world.run(attempt)
    return attempt


def cordoned(world: World) -> float:
    """For how many seconds the worker is cordoned still; negative if it is not."""
    until = world.row().cordoned_until
    with world.db.read() as session:
        return (until - world.db.now(session)).total_seconds() if until else -1.0


def test_a_silent_worker_gets_no_new_work_before_it_is_lost(world: World) -> None:
    clock = scheduler(world)
    pass_time(world, 61, schema.Worker)
    queue(world, 1)
    assert clock.tick() == 0
    assert world.row().state == "active"
    world.sync()
    assert clock.tick() == 1


def test_a_draining_worker_gets_no_new_work(world: World) -> None:
    queue(world, 1)
    with world.db.write() as session:
        request = SyncRequest(incarnation="one", number=1, draining=True)
        workers.sync(world.db, session, world.worker, request)
    clock = scheduler(world)
    assert clock.ticks.decisions["assigned"] == 0


def test_gpus_in_bad_health_are_not_given(world: World) -> None:
    gpus = world.another("g", gpus=2, hardware_class="gpu", cpus=8)
    with world.db.write() as session:
        request = SyncRequest(incarnation="one", number=1, usable_gpus=1)
        workers.sync(world.db, session, gpus.worker, request)
    measured = queue(world, 3)
    with world.db.write() as session:
        profile = world.profile(session).model_copy(update={"gpus": 1})
        shape = workers_shape(session, profile)
        for name in measured:
            row = session.get_one(schema.Measurement, name)
            row.hardware_class, row.gpus, row.shape_id = "gpu", 1, shape
    assert scheduler(world).ticks.decisions["assigned"] == 1
    gpus.sync()  # says nothing of its GPUs: all are well
    held = [world.attempt(spec.attempt) for spec in gpus.sync().assign]
    assert scheduler(world).ticks.decisions["assigned"] == 1
    assert len(held) == 1


def test_trouble_with_gpus_is_kept_and_written_when_it_changes(world: World) -> None:
    written: list[str] = []
    event.listen(
        world.db.engine,
        "before_cursor_execute",
        lambda _c, _cu, text, *_: written.extend([text] * text.startswith("UPDATE worker")),
    )

    def sync(number: int, *troubles: tuple[str, str]) -> list[tuple[str, str]]:
        sent = [DeviceTrouble(uuid=uuid, state=state, detail="d") for uuid, state in troubles]
        request = SyncRequest(incarnation="one", number=number, troubles=sent)
        written.clear()
        with world.db.write() as session:
            workers.sync(world.db, session, world.worker, request)
        return stored()

    def stored() -> list[tuple[str, str]]:
        with world.db.read() as session:
            row = session.get_one(schema.Worker, world.worker)
            return [(each.uuid, each.state) for each in worker_body(session, row).troubles]

    lost, busy = ("GPU-1", "lost"), ("GPU-2", "in_use")
    assert sync(1) == []
    assert sync(2, lost) == [lost]
    assert len(written) == 2
    assert sync(3, lost) == [lost]
    assert len(written) == 1, "the same again is not written"
    assert sync(4, lost, busy) == [lost, busy]
    assert sync(3) == [lost, busy], "an old sync says nothing"
    assert sync(5) == []
    assert sync(6, busy) == [busy]
    world.restart("two")
    assert stored() == [], "a new process looks for itself"


def test_a_worker_on_a_busy_host_gets_as_much_as_it_offers(world: World) -> None:
    other = world.another("v", cpus=4)
    with world.db.write() as session:
        cordons.cordon(world.db, session, world.worker, "new disk")
        request = SyncRequest(incarnation="one", number=1, usable_cpus=2)
        workers.sync(world.db, session, other.worker, request)
    queue(world, 4)
    clock = scheduler(world)
    assert clock.ticks.decisions["assigned"] == 2
    with world.db.write() as session:  # says nothing of its processors: all are free
        workers.sync(world.db, session, other.worker, SyncRequest(incarnation="one", number=2))
    clock.tick()
    assert clock.ticks.decisions["assigned"] == 4


def workers_shape(session: Session, profile: Profile) -> str:
    setting = shapes.Setting("", "", Conditions("gpu"))
    return shapes.find(session, setting, profile, needs_isolation=False)


def test_a_worker_that_fails_three_times_is_cordoned_and_then_tried_again(world: World) -> None:
    clock, other = scheduler(world), world.another("v")
    fail(world, 2)
    clock.tick()
    assert cordoned(world) < 0
    fail(world, 1)
    clock.tick()
    assert 590 < cordoned(world) <= 600
    assert world.row().cordon_reason == "3 infrastructure failures within 30 min"
    with world.db.write() as session:
        cordons.cordon(world.db, session, other.worker, "new disk")
    queue(world, 3)
    assert clock.tick() == 0
    pass_time(world, 601, schema.Worker, schema.Attempt)
    world.sync()
    assert clock.tick() == 1, "a worker on probation starts one attempt at a time"
    assert clock.tick() == 0
    (spec,) = world.sync().assign
    world.finish(world.attempt(spec.attempt), FAULT)
    with world.db.write() as session:
        cordons.uncordon(world.db, session, other.worker)
    other.sync()
    clock.tick()
    assert 1190 < cordoned(world) <= 1200, "failed again at once: twice as long"
    assert clock.ticks.decisions["cordoned"] == 2


def test_the_only_worker_of_its_kind_is_not_cordoned(world: World) -> None:
    clock, other = scheduler(world), world.another("v", hardware_class="another")
    fail(world, 4)
    clock.tick()
    assert cordoned(world) < 0
    world.another("x")
    clock.tick()
    assert cordoned(world) > 0
    assert cordoned(other) < 0


def test_a_worker_on_probation_whose_first_attempt_runs_gets_more(world: World) -> None:
    clock, other = scheduler(world), world.another("v")
    fail(world, 3)
    clock.tick()
    with world.db.write() as session:
        cordons.cordon(world.db, session, other.worker, "new disk")
    pass_time(world, 601, schema.Worker, schema.Attempt)
    world.sync()
    queue(world, 2)
    assert clock.tick() == 1
    (spec,) = world.sync().assign
    world.run(world.attempt(spec.attempt))
    assert clock.tick() == 1


def test_failures_long_ago_cordon_nobody(world: World) -> None:
    clock = scheduler(world)
    fail(world, 2)
    pass_time(world, 1801, schema.Attempt)
    fail(world, 1)
    clock.tick()
    assert cordoned(world) < 0


def test_attempts_that_were_lost_together_are_one_failure(world: World) -> None:
    clock, other = scheduler(world), world.another("v")
    for measurement in queue(world, 4):
        attempt = world.assign(measurement)
        assert attempt is not None
        world.run(attempt)
    pass_time(world, 181, schema.Attempt)
    other.sync()
    clock.tick()
    world.sync()
    clock.tick()
    assert clock.ticks.decisions["lost"] == 4
    assert cordoned(world) < 0


def test_an_operator_cordons_without_end_and_uncordons(world: World) -> None:
    clock = scheduler(world)
    fail(world, 2)
    with world.db.write() as session:
        cordons.cordon(world.db, session, world.worker, "new disk")
    queue(world, 1)
    pass_time(world, 3600, schema.Attempt)
    world.sync()
    assert clock.tick() == 0
    fail(world, 1)
    with world.db.write() as session:
        cordons.uncordon(world.db, session, world.worker)
    clock.tick()
    assert cordoned(world) < 0, "what failed before is forgotten"
    assert world.sync().assign


def test_nothing_is_lost_while_no_worker_at_all_is_heard_of(world: World) -> None:
    clock, other, attempt = scheduler(world), world.another("v"), running(world)
    pass_time(world, 3600, schema.Attempt, schema.Worker)  # the API was away for an hour
    clock.tick()
    assert world.attempt(attempt.id).state == "running"
    other.sync()  # it is back, and this worker was the first to notice
    clock.tick()
    assert clock.ticks.decisions["amnesty"] == 2
    assert world.sync(attempt).fenced == []
    pass_time(world, 181, schema.Attempt)
    clock.tick()
    assert world.attempt(attempt.id).state == "lost"


def test_a_deadline_that_passed_in_an_outage_does_not_cost_the_result(world: World) -> None:
    clock, attempt = scheduler(world), running(world)
    pass_time(world, 3600, schema.Attempt, schema.Worker)
    clock.tick()
    world.sync(attempt)
    clock.tick()
    world.finish(attempt)
    assert world.state(attempt.measurement_id) == "succeeded"


def test_a_leader_that_could_not_tick_gives_everybody_another_lease(world: World) -> None:
    stopped_for = 0.0
    clock = scheduler(world, lambda: time.monotonic() + stopped_for)
    attempt = running(world)
    stopped_for = 20.0  # longer than its own lease, as when Postgres was away
    pass_time(world, 181, schema.Attempt)
    world.another("v")
    clock.tick()
    assert world.attempt(attempt.id).state == "running"
    pass_time(world, 181, schema.Attempt)
    clock.tick()
    assert world.attempt(attempt.id).state == "lost"


def test_a_worker_of_which_nothing_was_heard_is_no_reason_to_cordon_it(world: World) -> None:
    clock = scheduler(world, unclaimed_seconds=40)
    for measurement in queue(world, 3):
        assert world.assign(measurement) is not None
    with world.db.read() as session:
        ids = session.scalars(select(schema.Attempt.id)).all()
    pass_time(world, 41, schema.Attempt, schema.Worker)
    world.another("v")
    clock.tick()
    clock.tick()
    assert clock.ticks.decisions["returned"] == 3
    assert [(world.attempt(a).failure or {})["code"] for a in ids] == ["unclaimed"] * 3
    assert cordoned(world) < 0
