"""Nothing lost, nothing doubled: the rules on rows, the same on SQLite and Postgres."""

from __future__ import annotations

import math
from datetime import timedelta

import pytest
from sqlalchemy import inspect, select, text, update
from sqlalchemy.exc import DBAPIError

from assay.contracts.worker import SyncResponse
from assay.domain.errors import Conflict, Fenced
from assay.domain.failure_codes import Failure, FailureCode
from assay.domain.states import AttemptState, FailureStage
from assay.environments.catalog import Catalog
from assay.storage import attempts, batches, expiry, leader, outbox, schema
from assay.storage.attempts import Loss, Outcome, Piece, Rescored, Telemetry
from assay.storage.database import Database
from assay.storage.measurements import MAX_INFRASTRUCTURE_FAILURES
from assay.storage.objects import LocalStore
from tests.storage.lifecycle import CRASH, TTL, World

LOST = Failure(FailureStage.START, FailureCode.SANDBOX_FAILED, "no room")


@pytest.fixture
def world(db: Database, store: LocalStore, catalog: Catalog) -> World:
    return World.create(db, store, catalog)


def one(world: World) -> tuple[str, str, str]:
    """A batch of one implemented idea: batch, experiment, measurement."""
    batch = world.submit("an idea")
    experiment = world.experiments(batch)[0].id
    return batch, experiment, world.implement(experiment, "a = 1\n")


def test_a_measured_idea_ends_as_succeeded_and_finishes_its_batch(world: World) -> None:
    batch, _, measurement = one(world)
    world.measure(measurement)
    assert world.experiments(batch)[0].state == "succeeded"
    with world.db.read() as session:
        row = session.get_one(schema.Batch, batch)
        assert (row.state, row.finished_at is not None) == ("finished", True)
        kinds = session.scalars(
            select(schema.Event.type)
            .where(schema.Event.batch_id == batch)
            .order_by(schema.Event.id)
        ).all()
    assert kinds[-1] == "batch.finished"
    assert kinds.count("batch.finished") == 1


def test_a_crash_of_the_codebase_is_a_result_and_is_not_tried_again(world: World) -> None:
    batch, _, measurement = one(world)
    world.measure(measurement, Outcome(AttemptState.FAILED, CRASH, started=True))
    experiment = world.experiments(batch)[0]
    assert experiment.state == "failed"
    assert experiment.failure == CRASH.as_dict()
    assert world.assign(measurement) is None


def test_a_result_is_committed_once_however_often_it_is_sent(world: World) -> None:
    _, _, measurement = one(world)
    attempt = world.measure(measurement)
    assert world.finish(attempt) is AttemptState.SUCCEEDED
    assert world.results() == 1


@pytest.mark.parametrize("difference", [-1, 1])
def test_another_token_commits_nothing(world: World, difference: int) -> None:
    _, _, measurement = one(world)
    attempt = world.assign(measurement)
    assert attempt is not None
    attempt.lease_token += difference
    with pytest.raises(Fenced):
        world.claim(attempt)
    with pytest.raises(Fenced):
        world.finish(attempt)
    assert world.results() == 0


def test_a_worker_that_comes_back_after_its_lease_is_fenced(world: World) -> None:
    batch, _, measurement = one(world)
    zombie = world.assign(measurement)
    assert zombie is not None
    world.claim(zombie)
    with world.db.write() as session:
        late = world.db.now(session) + timedelta(hours=1)
        assert expiry.expire(world.db, session, late) == 1
    assert world.experiments(batch)[0].state == "queued"
    second = world.assign(measurement)
    assert second is not None
    assert second.lease_token > zombie.lease_token
    with pytest.raises(Fenced):
        world.finish(zombie)
    world.claim(second)
    world.finish(second)
    assert world.results() == 1
    assert world.experiments(batch)[0].state == "succeeded"


def test_a_lost_attempt_keeps_its_resources_until_the_host_says_it_is_gone(world: World) -> None:
    _, _, measurement = one(world)
    lost = world.assign(measurement)
    assert lost is not None
    world.claim(lost)
    with world.db.write() as session:
        expiry.expire(world.db, session, world.db.now(session) + timedelta(hours=1))
    assert world.sync(lost).fenced == [lost.id]
    assert not _released(world, lost.id)
    assert world.sync().fenced == []
    assert _released(world, lost.id)


def _released(world: World, attempt: str) -> bool:
    with world.db.read() as session:
        return session.get_one(schema.Attempt, attempt).released_at is not None


def test_a_sync_that_comes_late_takes_nothing_away(world: World) -> None:
    _, _, measurement = one(world)
    late = next(world.numbers)  # sent when nothing was held, and stuck in a network since
    attempt = world.assign(measurement)
    assert attempt is not None
    assert [spec.attempt for spec in world.sync().assign] == [attempt.id]
    world.claim(attempt)
    answer = world.sync(number=late, usable_gpus=7, draining=True)
    assert answer == SyncResponse(assign=[], stop=[], fenced=[])
    assert not _released(world, attempt.id)
    assert (world.row().usable_gpus, world.row().draining) == (0, False)
    assert world.finish(attempt) is AttemptState.SUCCEEDED


def test_a_restarted_process_counts_its_syncs_anew(world: World) -> None:
    _, _, measurement = one(world)
    world.sync(number=1000)
    world.restart("two")
    attempt = world.assign(measurement)
    assert attempt is not None
    assert [spec.attempt for spec in world.sync(number=1).assign] == [attempt.id]


def test_a_worker_that_stops_gives_back_what_it_did_not_take(world: World) -> None:
    _, _, measurement = one(world)
    attempt = world.assign(measurement)
    assert attempt is not None
    assert world.sync(draining=True).assign == []
    assert _released(world, attempt.id)
    assert world.state(measurement) == "queued"
    world.sync(draining=False)
    assert world.measure(measurement)


def test_the_time_to_prepare_is_no_part_of_the_budget(world: World) -> None:
    _, _, measurement = one(world)
    attempt = world.assign(measurement)
    assert attempt is not None
    world.claim(attempt)
    claimed = world.attempt(attempt.id).deadline_at
    assert claimed is not None
    world.run(attempt)
    running = world.attempt(attempt.id).deadline_at
    assert running is not None
    assert running > claimed


def test_who_asks_for_what_runs_already_was_started_too(world: World) -> None:
    first, _, measurement = one(world)
    attempt = world.assign(measurement)
    assert attempt is not None
    world.run(attempt)
    second = world.submit("the same")
    world.implement(world.experiments(second)[0].id, "a = 1\n")
    world.finish(attempt, Outcome(AttemptState.FAILED, failure=CRASH, started=True))
    found = [*world.experiments(first), *world.experiments(second)]
    assert [(e.state, e.was_started) for e in found] == [("failed", True)] * 2


def test_a_restarted_worker_loses_what_it_held_and_it_is_queued_again(world: World) -> None:
    batch, _, measurement = one(world)
    attempt = world.assign(measurement)
    assert attempt is not None
    world.claim(attempt)
    world.restart("two")
    assert world.state(measurement) == "queued"
    assert _released(world, attempt.id)
    world.measure(measurement)
    assert world.experiments(batch)[0].state == "succeeded"


def test_an_old_incarnation_is_told_to_stop(world: World) -> None:
    world.restart("two")
    world.incarnation = "one"
    with pytest.raises(Conflict, match="newer process"):
        world.sync()


def test_sync_repeats_an_assignment_that_was_not_taken(world: World) -> None:
    _, _, measurement = one(world)
    attempt = world.assign(measurement)
    assert attempt is not None
    for _ in range(2):
        assert [spec.attempt for spec in world.sync().assign] == [attempt.id]
    world.claim(attempt)
    assert world.sync(attempt).assign == []


def test_an_attempt_the_worker_no_longer_holds_is_tried_again(world: World) -> None:
    _, _, measurement = one(world)
    attempt = world.assign(measurement)
    assert attempt is not None
    world.claim(attempt)
    world.sync()
    assert world.state(measurement) == "queued"


def test_infrastructure_failures_are_retried_but_not_for_ever(world: World) -> None:
    batch, _, measurement = one(world)
    for _ in range(MAX_INFRASTRUCTURE_FAILURES):
        world.measure(measurement, Outcome(AttemptState.FAILED, LOST))
        assert world.state(measurement) == "queued"
    world.measure(measurement, Outcome(AttemptState.FAILED, LOST))
    experiment = world.experiments(batch)[0]
    assert experiment.state == "failed"
    assert experiment.failure is not None
    assert experiment.failure["code"] == "infrastructure"


def test_planned_stops_of_a_worker_are_no_failures(world: World) -> None:
    batch, _, measurement = one(world)
    stopped = Failure(FailureStage.START, FailureCode.WORKER_STOPPED, "told to stop")
    for _ in range(MAX_INFRASTRUCTURE_FAILURES + 2):
        world.measure(measurement, Outcome(AttemptState.FAILED, stopped))
        assert world.state(measurement) == "queued"
    world.measure(measurement)
    assert world.experiments(batch)[0].state == "succeeded"


def test_identical_codebases_share_one_measurement(world: World) -> None:
    batch = world.submit("one", "two")
    first, second = (e.id for e in world.experiments(batch))
    measurement = world.implement(first, "same\n")
    assert world.implement(second, "same\n") == measurement
    world.measure(measurement)
    assert [e.state for e in world.experiments(batch)] == ["succeeded", "succeeded"]
    assert world.results() == 1


def test_a_shared_measurement_is_as_isolated_as_the_strictest_wants(world: World) -> None:
    _, _, measurement = one(world)
    assert not _needs_isolation(world, measurement)
    strict = world.submit("the same, by a model")
    with world.db.write() as session:
        session.get_one(schema.Batch, strict).executor = "anthropic:claude-opus-4-5"
    assert world.implement(world.experiments(strict)[0].id, "a = 1\n") == measurement
    assert _needs_isolation(world, measurement)


@pytest.mark.parametrize("isolated", [True, False])
def test_a_result_without_isolation_is_not_handed_to_who_needs_it(
    world: World, isolated: bool
) -> None:
    _, _, measurement = one(world)
    outcome = Outcome(
        AttemptState.SUCCEEDED,
        metric=1e9,
        metrics={"score": 1e9},
        provenance={"isolated": isolated},
        started=True,
        seconds=1.0,
    )
    world.measure(measurement, outcome)
    strict = world.submit("the same, by a model")
    with world.db.write() as session:
        session.get_one(schema.Batch, strict).executor = "anthropic:claude-opus-4-5"
    measured = world.implement(world.experiments(strict)[0].id, "a = 1\n")
    assert (measured == measurement) is isolated
    assert world.experiments(strict)[0].state == ("succeeded" if isolated else "queued")


def test_a_second_evaluation_is_stored_beside_its_result_once(world: World) -> None:
    _, _, measurement = one(world)
    outcome = Outcome(
        AttemptState.SUCCEEDED,
        metric=12.50123,
        metrics={"score": 12.50123},
        rescored=Rescored(12.50321, {"score": 12.50321, "other": math.inf}, 2.5),
        started=True,
        seconds=1.0,
    )
    attempt = world.measure(measurement, outcome)
    assert world.finish(attempt, outcome) is AttemptState.SUCCEEDED  # the first answer got lost
    with world.db.read() as session:
        (found,) = session.scalars(select(schema.Rescore)).all()
        first = session.get_one(schema.Result, measurement)
    assert (found.measurement_id, found.metric, found.seconds) == (measurement, 12.50321, 2.5)
    assert found.metrics == {"score": 12.50321, "other": "Infinity"}
    assert first.metric == 12.50123, "the first one counts"


def _needs_isolation(world: World, measurement: str) -> bool:
    with world.db.read() as session:
        return session.get_one(schema.Measurement, measurement).needs_isolation


def test_an_idea_whose_codebase_is_measured_already_succeeds_at_once(world: World) -> None:
    _, _, measurement = one(world)
    world.measure(measurement)
    later = world.submit("the same again")
    world.implement(world.experiments(later)[0].id, "a = 1\n")
    assert world.experiments(later)[0].state == "succeeded"


def test_an_experiment_on_several_seeds_waits_for_all(world: World) -> None:
    batch = world.submit("an idea", seeds=[0, 1, 2])
    experiment = world.experiments(batch)[0].id
    world.implement(experiment, "a = 1\n")
    first, second, third = world.measurements(experiment)
    world.measure(first)
    world.measure(second)
    assert world.experiments(batch)[0].state == "running"
    world.measure(third)
    assert world.experiments(batch)[0].state == "succeeded"


def test_a_database_that_has_one_live_attempt_refuses_a_second(world: World) -> None:
    _, _, measurement = one(world)
    attempt = world.assign(measurement)
    assert attempt is not None
    with world.db.read() as session:
        row = session.get_one(schema.Attempt, attempt.id)
        values = {each.key: getattr(row, each.key) for each in inspect(row).mapper.column_attrs}
    values |= {"id": "att_other", "number": 7}
    with pytest.raises(DBAPIError, match=r"uq_attempt_live|attempt\.measurement_id"):
        with world.db.write() as session:
            session.add(schema.Attempt(**values))


@pytest.mark.parametrize("table", [schema.Experiment, schema.Measurement, schema.Attempt])
def test_the_database_refuses_to_leave_a_terminal_state(
    world: World, table: type[schema.Experiment]
) -> None:
    _, _, measurement = one(world)
    world.measure(measurement)
    with pytest.raises(DBAPIError, match="terminal state is final"):
        with world.db.write() as session:
            session.execute(update(table).values(state="running"))


def test_cancelling_stops_what_is_queued_and_what_runs(world: World) -> None:
    batch = world.submit("queued", "running", "submitted")
    queued, running, _ = (e.id for e in world.experiments(batch))
    waiting = world.implement(queued, "q\n")
    attempt = world.assign(world.implement(running, "r\n"))
    assert attempt is not None
    world.claim(attempt)
    for _ in range(2):  # repeating it changes nothing
        with world.db.write() as session:
            batches.cancel(world.db, session, batch)
    assert {e.state for e in world.experiments(batch)} == {"cancelled"}
    assert world.state(waiting) == "cancelled"
    assert world.sync(attempt).stop == [attempt.id]
    world.finish(attempt, Outcome(AttemptState.CANCELLED))
    assert world.state(attempt.measurement_id) == "cancelled"
    with world.db.read() as session:
        assert session.get_one(schema.Batch, batch).state == "cancelled"


def test_cancelling_spares_a_measurement_that_another_batch_waits_for(world: World) -> None:
    _, _, measurement = one(world)
    other = world.submit("the same")
    world.implement(world.experiments(other)[0].id, "a = 1\n")
    with world.db.write() as session:
        batches.cancel(world.db, session, other)
    assert world.state(measurement) == "queued"


def test_a_cancelled_measurement_does_not_stand_for_its_codebase(world: World) -> None:
    batch, _, measurement = one(world)
    with world.db.write() as session:
        batches.cancel(world.db, session, batch)
    again = world.submit("the same")
    assert world.implement(world.experiments(again)[0].id, "a = 1\n") != measurement


def test_telemetry_that_is_sent_twice_is_stored_once(world: World) -> None:
    _, _, measurement = one(world)
    attempt = world.assign(measurement)
    assert attempt is not None
    world.claim(attempt)
    telemetry = Telemetry(
        (Piece("train", 0, b"hello\n"),),
        ((0, 1.0, {"loss": float("nan")}), (1, 2.0, {"loss": 1.0})),
    )
    with world.db.write() as session:
        attempts.progress(
            world.db,
            session,
            attempt.id,
            world.worker,
            attempt.lease_token,
            telemetry,
            AttemptState.RUNNING,
        )
    world.finish(attempt, telemetry=telemetry)
    with world.db.read() as session:
        assert len(session.scalars(select(schema.LogChunk)).all()) == 1
        points = session.scalars(select(schema.CurvePoint).order_by(schema.CurvePoint.seq)).all()
        assert [p.values["loss"] for p in points] == ["NaN", 1.0]


def test_messages_are_delivered_after_the_commit_and_not_without_it(world: World) -> None:
    class Recorder:
        def __init__(self) -> None:
            self.sent: list[tuple[str, str]] = []

        def send(self, topic: outbox.Topic, key: str) -> None:
            self.sent.append((topic.value, key))

    outbox.Relay(world.db, Recorder()).deliver()

    def post_and_fail() -> None:
        with world.db.write() as session:
            outbox.post(session, outbox.Topic.IMPLEMENT, "never")
            session.execute(text("SELECT FROM WHERE"))

    with pytest.raises(DBAPIError):
        post_and_fail()
    batch = world.submit("an idea")
    recorder = Recorder()
    relay = outbox.Relay(world.db, recorder)
    message = ("implement", batch)
    relay.deliver()
    assert recorder.sent[-1] == message
    assert relay.deliver() == 0
    relay.tidy()
    assert outbox.Relay(world.db, recorder).deliver() == 0


def test_one_leader_at_a_time_and_a_paused_one_cannot_act(world: World) -> None:
    first = leader.acquire(world.db, "a", timedelta(seconds=-1))  # its lease has run out
    assert first is not None
    second = leader.acquire(world.db, "b", TTL)
    assert second == first + 1
    assert leader.acquire(world.db, "a", TTL) is None
    with pytest.raises(Fenced):
        with world.db.write() as session:
            leader.check(world.db, session, first)
    assert leader.acquire(world.db, "b", TTL, second) == second  # it renews
    restarted = leader.acquire(world.db, "b", TTL)
    assert restarted == second + 1
    leader.release(world.db, "b")
    assert leader.acquire(world.db, "a", TTL) == restarted + 1


@pytest.mark.parametrize("code", [FailureCode.UNCLAIMED, FailureCode.IGNORED])
def test_a_worker_that_was_heard_of_is_blamed_for_what_it_did_not_take(
    world: World, code: FailureCode
) -> None:
    _, _, measurement = one(world)
    for _ in range(MAX_INFRASTRUCTURE_FAILURES + 2):
        attempt = world.assign(measurement)
        assert attempt is not None
        with world.db.write() as session:
            row = session.get_one(schema.Attempt, attempt.id)
            attempts.lose(world.db, session, [row], Loss("why", code, released=True))
        stored = world.attempt(attempt.id)
        assert stored.infrastructure is (code is FailureCode.IGNORED)
        assert world.state(measurement) == "queued"


def test_a_restart_counts_as_a_try_and_not_against_the_worker(world: World) -> None:
    _, _, measurement = one(world)
    attempt = world.assign(measurement)
    assert attempt is not None
    world.claim(attempt)
    world.restart("two")
    stored = world.attempt(attempt.id)
    assert (stored.failure or {})["code"] == "worker_restarted"
    assert not stored.infrastructure
    with world.db.read() as session:
        row = session.get_one(schema.Measurement, measurement)
        assert (row.state, row.infrastructure_failures) == ("queued", 1)
