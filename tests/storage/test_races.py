"""Transactions that meet on Postgres: each test holds one open while another one runs into it."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest

from assay.contracts.search import EpochRequest, SearchRequest
from assay.contracts.worker import HeldAttempt, WorkerRegistration
from assay.domain.errors import Fenced
from assay.domain.placement import Placement
from assay.domain.states import AttemptState
from assay.environments.catalog import Catalog
from assay.storage import (
    assignments,
    attempts,
    batches,
    environments,
    expiry,
    implementations,
    schema,
    searches,
    workers,
)
from assay.storage.attempts import Outcome, Telemetry
from assay.storage.database import Database
from assay.storage.implementations import Work
from assay.storage.objects import LocalStore
from services.scheduler.clock import Scheduler
from services.scheduler.settings import SchedulerSettings
from tests.storage.lifecycle import World

pytestmark = pytest.mark.postgres  # SQLite has one writer at a time
SUCCESS = Outcome(AttemptState.SUCCEEDED, metric=1.0, metrics={"score": 1.0}, started=True)


@pytest.fixture
def world(postgres: Database, store: LocalStore, catalog: Catalog) -> World:
    return World.create(postgres, store, catalog)


@contextmanager
def meanwhile(action: Callable[[], Any]) -> Iterator[list[Any]]:
    """Start `action` in a thread at the end of the block; what came of it is in the list."""
    outcome: list[Any] = []
    thread = threading.Thread(target=lambda: outcome.append(_outcome(action)))
    yield outcome
    thread.start()
    thread.join(0.5)  # by now it waits for a lock of the transaction around the block
    outcome.append(thread)


def _outcome(action: Callable[[], Any]) -> Any:
    try:
        return action()
    except Exception as error:
        return error


def came_to(outcome: list[Any]) -> Any:
    """The result of `meanwhile`'s action, after the transaction around it has ended."""
    thread = next(item for item in outcome if isinstance(item, threading.Thread))
    thread.join(20)
    return next(item for item in outcome if item is not thread)


def implemented(world: World, experiment: str, content: str) -> tuple[Work, str]:
    with world.db.write() as session:
        work = implementations.begin(world.db, session, experiment)
    assert work is not None
    return work, environments.put_codebase(world.store, {"train.py": content})


def cancel(world: World, batch: str) -> None:
    with world.db.write() as session:
        batches.cancel(world.db, session, batch)


def test_an_experiment_that_joins_a_measurement_as_it_ends_is_told(world: World) -> None:
    batch = world.submit("first", "joins")
    first, joins = (e.id for e in world.experiments(batch))
    attempt = world.assign(world.implement(first, "same\n"))
    assert attempt is not None
    world.claim(attempt)
    work, codebase = implemented(world, joins, "same\n")
    with world.db.write() as session:
        with meanwhile(lambda: world.finish(attempt)) as finished:
            implementations.succeed(world.db, session, work, 0, codebase)
    assert came_to(finished) is AttemptState.SUCCEEDED
    assert [e.state for e in world.experiments(batch)] == ["succeeded", "succeeded"]


def test_a_measurement_that_is_joined_while_it_is_cancelled_goes_on(world: World) -> None:
    cancelled, joining = world.submit("cancelled"), world.submit("joins")
    world.implement(world.experiments(cancelled)[0].id, "same\n")
    joins = world.experiments(joining)[0].id
    work, codebase = implemented(world, joins, "same\n")
    with world.db.write() as session:
        with meanwhile(lambda: cancel(world, cancelled)) as done:
            implementations.succeed(world.db, session, work, 0, codebase)
    assert came_to(done) is None
    assert world.state(world.measurements(joins)[0]) == "queued"


def test_an_idea_that_is_cancelled_as_it_is_implemented_is_not_measured(world: World) -> None:
    batch = world.submit("an idea")
    work, codebase = implemented(world, world.experiments(batch)[0].id, "a = 1\n")

    def succeed() -> None:
        with world.db.write() as session:
            implementations.succeed(world.db, session, work, 0, codebase)

    with world.db.write() as session, meanwhile(succeed) as done:
        batches.cancel(world.db, session, batch)
    assert came_to(done) is None
    with world.db.read() as session:
        states = [m.state for m in session.query(schema.Measurement)]
        implementation = session.query(schema.Implementation).one()
    assert states in ([], ["cancelled"])
    assert implementation.state == "cancelled"


def test_a_restarted_worker_does_not_lose_what_has_just_finished(world: World) -> None:
    batch = world.submit("an idea")
    attempt = world.assign(world.implement(world.experiments(batch)[0].id, "a = 1\n"))
    assert attempt is not None
    world.claim(attempt)
    with world.db.write() as session, meanwhile(lambda: world.restart("two")) as restarted:
        key = (attempt.id, world.worker, attempt.lease_token)
        attempts.finish(world.db, session, *key, SUCCESS, Telemetry())
    assert came_to(restarted) is None
    assert world.experiments(batch)[0].state == "succeeded"


def test_an_epoch_that_is_put_twice_at_once_is_stored_once(world: World) -> None:
    request = SearchRequest(
        environment="count", profile="tiny", strategy="s", epochs=3, batch_size=1
    )
    epoch = EpochRequest.model_validate({"ideas": [{"text": "x"}]})
    with world.db.write() as session:
        search = searches.create(world.db, session, request, "local", world.environment)

    def put() -> bool:
        with world.db.write() as session:
            return searches.put_epoch(world.db, session, search, 0, epoch)

    with world.db.write() as session, meanwhile(put) as again:
        assert searches.put_epoch(world.db, session, search, 0, epoch)
    assert came_to(again) is False


def test_finishing_and_cancelling_at_once_do_not_wait_in_a_circle(world: World) -> None:
    for _ in range(3):
        batch = world.submit(*map(str, range(6)))
        held = []
        for number, experiment in enumerate(world.experiments(batch)):
            attempt = world.assign(world.implement(experiment.id, f"{batch}{number}\n"))
            assert attempt is not None
            world.claim(attempt)
            held.append(attempt)
        assert [e for e in _at_once(world, batch, held) if not isinstance(e, Fenced)] == []
        with world.db.read() as session:
            assert session.get_one(schema.Batch, batch).finished_at is not None


def _at_once(world: World, batch: str, held: list[schema.Attempt]) -> list[Exception]:
    gate = threading.Barrier(len(held) + 1)
    errors: list[Exception] = []

    def run(action: Callable[[], object]) -> None:
        gate.wait()
        try:
            action()
        except Exception as error:
            errors.append(error)

    actions: list[Callable[[], object]] = [lambda: cancel(world, batch)]
    actions += [functools.partial(world.finish, attempt) for attempt in held]
    threads = [threading.Thread(target=run, args=(action,)) for action in actions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return errors


def running(world: World) -> schema.Attempt:
    attempt = world.assign(world.measurement_of_one())
    assert attempt is not None
    world.run(attempt)
    return attempt


def test_a_measurement_that_is_cancelled_as_it_is_assigned_runs_nowhere(world: World) -> None:
    batch = world.submit("an idea")
    measurement = world.implement(world.experiments(batch)[0].id, "a = 1\n")
    with world.db.write() as session, meanwhile(lambda: cancel(world, batch)) as cancelled:
        given = assignments.assign(
            world.db, session, [Placement(measurement, world.worker)], timedelta(minutes=1)
        )
    assert came_to(cancelled) is None
    assert len(given) == 1
    assert world.sync().assign == []  # it was not taken yet: nothing has to be stopped
    assert world.state(measurement) == "cancelled"


def test_a_measurement_that_is_assigned_as_it_is_cancelled_is_not(world: World) -> None:
    batch = world.submit("an idea")
    measurement = world.implement(world.experiments(batch)[0].id, "a = 1\n")
    with world.db.write() as session, meanwhile(lambda: world.assign(measurement)) as assigned:
        batches.cancel(world.db, session, batch)
    assert came_to(assigned) is None
    assert world.state(measurement) == "cancelled"


def test_an_attempt_that_finishes_as_it_is_lost_counts(world: World) -> None:
    attempt = running(world)

    def expire() -> int:
        with world.db.write() as session:
            late = world.db.now(session) + timedelta(hours=1)
            return expiry.expire(world.db, session, late)

    with world.db.write() as session, meanwhile(expire) as expired:
        key = (attempt.id, world.worker, attempt.lease_token)
        attempts.finish(world.db, session, *key, SUCCESS, Telemetry())
    assert came_to(expired) == 0
    assert world.state(attempt.measurement_id) == "succeeded"


def test_an_attempt_that_is_ended_as_it_finishes_is_fenced(world: World) -> None:
    attempt = running(world)
    with world.db.write() as session, meanwhile(lambda: world.finish(attempt)) as finished:
        late = world.db.now(session) + timedelta(hours=1)
        assert expiry.end_late(world.db, session, [attempt.id], late) == 1
    assert isinstance(came_to(finished), Fenced)
    assert world.state(attempt.measurement_id) == "queued"
    assert world.results() == 0


def test_a_claim_that_comes_as_its_attempt_is_taken_back_is_fenced(world: World) -> None:
    attempt = world.assign(world.measurement_of_one())
    assert attempt is not None
    with world.db.write() as session, meanwhile(lambda: world.claim(attempt)) as claimed:
        assert expiry.take_back(world.db, session, [attempt.id]) == 1
    assert isinstance(came_to(claimed), Fenced)
    assert world.attempt(attempt.id).released_at is not None


def test_an_attempt_that_is_adopted_as_its_lease_expires_goes_on(world: World) -> None:
    attempt = running(world)

    def expire() -> int:
        with world.db.write() as session:
            return expiry.expire(world.db, session, world.db.now(session))

    with world.db.write() as session:
        row = session.get_one(schema.Attempt, attempt.id)
        row.lease_expires_at = world.db.now(session) - timedelta(seconds=1)
    with world.db.write() as session, meanwhile(expire) as expired:
        held = [HeldAttempt(attempt=attempt.id, lease_token=attempt.lease_token)]
        request = WorkerRegistration(
            name="w",
            incarnation="two",
            cpus=4,
            memory_bytes=1 << 34,
            hardware_class="cpu",
            sandbox="subprocess",
            isolated=False,
            adopted=held,
        )
        workers.register(world.db, session, world.worker, request)
    assert came_to(expired) == 0
    assert world.attempt(attempt.id).state == "running"


def test_of_two_schedulers_one_assigns(world: World) -> None:
    batch = world.submit(*map(str, range(8)))
    for experiment in world.experiments(batch):
        world.implement(experiment.id, f"{experiment.id}\n")
    settings = SchedulerSettings(leader_seconds=600)
    clocks = [Scheduler(world.db, settings, lambda: None) for _ in range(2)]
    gate = threading.Barrier(2)
    made: list[int] = []

    def tick(clock: Scheduler) -> None:
        gate.wait()
        made.extend(clock.tick() for _ in range(3))

    threads = [threading.Thread(target=tick, args=(clock,)) for clock in clocks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sum(made) == 4
    assert sorted(clock.leads for clock in clocks) == [False, True]


def test_of_two_codebases_with_the_same_code_the_first_stands_for_both(world: World) -> None:
    """Also where the second is recorded before the first is committed."""

    def add(codebase: str, canonical: str | None) -> str:
        with world.db.write() as session:
            return environments.add_codebase(
                world.db, session, codebase, world.environment, canonical
            )

    with world.db.write() as session:
        first = environments.add_codebase(world.db, session, "a" * 64, world.environment, "same")
        with meanwhile(lambda: add("b" * 64, "same")) as second:
            pass
    assert (first, came_to(second)) == ("a" * 64, "a" * 64)
    assert add("b" * 64, None) == "b" * 64
    assert add("b" * 64, "same") == "b" * 64, "recorded before its code was known: its own"
    assert add("c" * 64, "same") == "a" * 64
