"""Attempts that do not go on as they should: untaken, late, silent, adopted, removed."""

from __future__ import annotations

import logging
from itertools import pairwise

import pytest
from sqlalchemy import select

from assay.domain.errors import Conflict, Fenced, Forbidden
from assay.domain.failure_codes import Failure, FailureCode
from assay.domain.states import AttemptState, FailureStage
from assay.environments.catalog import Catalog
from assay.storage import attempts, batches, schema, workers
from assay.storage.attempts import Outcome, Telemetry
from assay.storage.database import Database
from assay.storage.objects import LocalStore
from tests.scheduler.moments import pass_time, scheduler
from tests.storage.lifecycle import World

NO_START = Failure(FailureStage.START, FailureCode.SANDBOX_FAILED, "no room")
FAULT = Outcome(AttemptState.FAILED, NO_START)
STOPPED = Failure(FailureStage.START, FailureCode.WORKER_STOPPED, "SIGTERM")
PLANNED = Outcome(AttemptState.FAILED, STOPPED)
KILLED = Failure(FailureStage.TRAIN, FailureCode.CRASHED, "killed by SIGKILL")
UNCLEAR = Outcome(AttemptState.FAILED, KILLED, unclear=True)


@pytest.fixture
def world(db: Database, store: LocalStore, catalog: Catalog) -> World:
    return World.create(db, store, catalog)


def given(world: World) -> schema.Attempt:
    """A new measurement, assigned to the world's worker."""
    attempt = world.assign(world.measurement_of_one())
    assert attempt is not None
    return attempt


def messages(world: World) -> int:
    with world.db.read() as session:
        return len(
            session.scalars(select(schema.Outbox.id).where(schema.Outbox.topic == "worker")).all()
        )


def test_a_worker_that_does_not_take_an_attempt_is_told_again_and_then_loses_it(
    world: World,
) -> None:
    attempt, clock = given(world), scheduler(world, starting_per_worker=1)
    rung = [messages(world)]
    for seconds in (4, 2, 10, 15):  # 4, 6, 16 and 31 seconds after it was assigned
        pass_time(world, seconds, schema.Attempt)
        clock.tick()
        clock.tick()  # at once again: nothing to say
        rung.append(messages(world))
    assert [b - a for a, b in pairwise(rung)] == [0, 1, 1, 1]
    assert clock.ticks.decisions["rung"] == 3
    other = world.another("v")
    pass_time(world, 30, schema.Attempt)
    clock.tick()
    stored = world.attempt(attempt.id)
    assert (stored.state, stored.released_at is not None) == ("lost", True)
    assert stored.failure is not None
    assert stored.failure["code"] == "ignored"
    clock.tick()
    (spec,) = other.sync().assign  # to somebody else, since there is somebody else
    assert spec.measurement == attempt.measurement_id
    with pytest.raises(Fenced):
        world.claim(attempt)
    with world.db.read() as session:
        row = session.get_one(schema.Measurement, attempt.measurement_id)
        assert row.infrastructure_failures == 0


def test_an_attempt_past_its_deadline_is_lost_though_its_worker_holds_it(world: World) -> None:
    attempt, clock = given(world), scheduler(world)
    world.run(attempt)
    deadline = world.attempt(attempt.id).deadline_at
    assert deadline is not None
    for _ in range(4):  # five times the budget of 10 and two evaluations of 10, and a margin of 60
        pass_time(world, 50, schema.Attempt)
        world.sync(attempt)
        clock.tick()
        assert world.attempt(attempt.id).state == "running"
    pass_time(world, 11, schema.Attempt)
    world.sync(attempt)
    clock.tick()
    stored = world.attempt(attempt.id)
    assert (stored.state, stored.released_at) == ("lost", None)
    assert stored.failure is not None
    assert stored.failure["code"] == "deadline"
    assert world.sync(attempt).fenced == [attempt.id]


def test_claiming_again_does_not_move_the_deadline(world: World) -> None:
    attempt = given(world)
    world.claim(attempt)
    first = world.attempt(attempt.id).deadline_at
    world.claim(attempt)
    assert world.attempt(attempt.id).deadline_at == first


def test_a_measurement_that_took_two_workers_with_it_is_quarantined(world: World) -> None:
    attempt = given(world)
    world.run(attempt)
    world.restart("two")
    assert world.state(attempt.measurement_id) == "queued"
    again = world.assign(attempt.measurement_id)
    assert again is not None
    world.run(again)
    world.restart("three")  # the same worker: it may be the worker
    assert world.state(attempt.measurement_id) == "queued"
    other = world.another("v")
    last = other.assign(attempt.measurement_id)
    assert last is not None
    other.run(last)
    other.restart("two")
    with world.db.read() as session:
        row = session.get_one(schema.Measurement, attempt.measurement_id)
        assert (row.state, row.failure and row.failure["code"]) == ("failed", "quarantined")
        assert row.failure
        assert row.failure["retryable"]


def test_attempts_that_were_lost_before_they_ran_quarantine_nothing(world: World) -> None:
    attempt = given(world)
    world.claim(attempt)
    world.restart("two")
    other = world.another("v")
    second = other.assign(attempt.measurement_id)
    assert second is not None
    other.claim(second)
    other.restart("two")
    assert world.state(attempt.measurement_id) == "queued"


def test_what_did_not_start_waits_twice_as_long_every_time(world: World) -> None:
    measurement = world.measurement_of_one()
    waits = []
    for _ in range(3):
        world.measure(measurement, FAULT)
        with world.db.read() as session:
            row = session.get_one(schema.Measurement, measurement)
            assert row.not_before is not None
            waits.append(round((row.not_before - world.db.now(session)).total_seconds()))
    assert waits == [10, 20, 40]
    clock = scheduler(world, cordon_failures=10)
    assert clock.ticks.decisions["assigned"] == 0
    pass_time(world, 41, schema.Measurement)
    assert clock.tick() == 1


def test_what_is_unclear_is_tried_once_more_and_then_is_the_codebases(world: World) -> None:
    measurement = world.measurement_of_one()
    for outcome, state in (
        (PLANNED, "queued"),
        (FAULT, "queued"),
        (UNCLEAR, "queued"),
        (PLANNED, "queued"),
        (UNCLEAR, "failed"),
    ):
        pass_time(world, 3600, schema.Measurement)
        world.measure(measurement, outcome)
        assert world.state(measurement) == state
    with world.db.read() as session:
        row = session.get_one(schema.Measurement, measurement)
        assert row.failure is not None
        assert (row.failure["code"], row.infrastructure_failures) == ("crashed", 1)
        counted = session.scalars(
            select(schema.Attempt.id).where(schema.Attempt.infrastructure)
        ).all()
    assert len(counted) == 1, "what is unclear counts towards no cordon"


def test_a_planned_stop_waits_for_nothing(world: World) -> None:
    measurement = world.measurement_of_one()
    stopped = Failure(FailureStage.START, FailureCode.WORKER_STOPPED, "told to stop")
    world.measure(measurement, Outcome(AttemptState.FAILED, stopped))
    assert scheduler(world).ticks.decisions["assigned"] == 1


def test_a_restarted_worker_keeps_what_it_adopted(world: World) -> None:
    batch = world.submit("adopted", "dead", "of another token")
    kept, dead, stale = [
        world.assign(world.implement(e.id, f"{e.id}\n")) for e in world.experiments(batch)
    ]
    assert kept is not None
    assert dead is not None
    assert stale is not None
    for attempt in (kept, dead, stale):
        world.run(attempt)
    deadline = world.attempt(kept.id).deadline_at
    stale.lease_token -= 1
    world.restart("two", kept, stale)
    assert [world.attempt(a.id).state for a in (kept, dead, stale)] == ["running", "lost", "lost"]
    assert world.attempt(kept.id).deadline_at == deadline
    assert world.sync(kept).fenced == []
    world.finish(kept)
    assert world.state(kept.measurement_id) == "succeeded"


def test_an_adopted_attempt_that_was_lost_meanwhile_stays_taken_until_it_is_gone(
    world: World,
) -> None:
    attempt, clock = given(world), scheduler(world)
    world.run(attempt)
    world.another("v")  # that somebody is heard of shows that the API works
    pass_time(world, 200, schema.Attempt)
    clock.tick()
    world.restart("two", attempt)
    assert world.attempt(attempt.id).released_at is None
    assert world.sync(attempt).fenced == [attempt.id]
    world.sync()
    assert world.attempt(attempt.id).released_at is not None


def test_a_removed_worker_holds_nothing_and_its_process_is_told_to_stop(world: World) -> None:
    attempt = given(world)
    world.run(attempt)
    with world.db.write() as session:
        workers.remove(world.db, session, world.worker)
    stored = world.attempt(attempt.id)
    assert (stored.state, stored.released_at is not None) == ("lost", True)
    assert world.row().state == "stopped"
    with world.db.read() as session:
        row = session.get_one(schema.Measurement, attempt.measurement_id)
        assert (row.state, row.infrastructure_failures) == ("queued", 0)
    with pytest.raises(Conflict, match="newer process"):
        world.sync(attempt)
    with pytest.raises(Fenced):
        world.finish(attempt)
    clock = scheduler(world)
    assert clock.ticks.decisions["assigned"] == 0
    world.restart("two")
    assert clock.tick() == 1


def test_a_worker_cannot_report_about_another_ones_attempt(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    attempt = given(world)
    thief = world.another("thief")
    with caplog.at_level(logging.WARNING):
        with pytest.raises(Forbidden):
            thief.claim(attempt)
        with pytest.raises(Forbidden):
            thief.finish(attempt)
    assert caplog.text.count(f"reported about attempt {attempt.id}") == 2
    assert attempt.id in [spec.attempt for spec in world.sync().assign]


def test_an_attempt_that_is_cancelled_before_it_is_taken_is_not_handed_out(world: World) -> None:
    batch = world.submit("an idea")
    attempt = world.assign(world.implement(world.experiments(batch)[0].id, "a = 1\n"))
    assert attempt is not None
    with world.db.write() as session:
        batches.cancel(world.db, session, batch)
    assert world.sync().assign == []
    stored = world.attempt(attempt.id)
    assert (stored.state, stored.released_at is not None) == ("cancelled", True)
    assert world.state(attempt.measurement_id) == "cancelled"


def test_system_points_are_stored_once(world: World) -> None:
    attempt = given(world)
    world.claim(attempt)
    telemetry = Telemetry(system=((0, 10.0, {"cpu_seconds": 3.5}), (1, 20.0, {"gpu": 0.9})))
    for _ in range(2):
        with world.db.write() as session:
            key = (attempt.id, world.worker, attempt.lease_token)
            attempts.progress(world.db, session, *key, telemetry)
    with world.db.read() as session:
        points = session.scalars(select(schema.SystemPoint).order_by(schema.SystemPoint.seq)).all()
        assert [(p.seconds, p.values) for p in points] == [
            (10.0, {"cpu_seconds": 3.5}),
            (20.0, {"gpu": 0.9}),
        ]
