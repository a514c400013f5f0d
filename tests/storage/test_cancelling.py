"""A large batch is cancelled in steps, each short, that any process may continue."""

from __future__ import annotations

import time

import pytest
from sqlalchemy import event, func, select

from assay.contracts.search import SearchRequest
from assay.domain.states import AttemptState, SearchState
from assay.environments.catalog import Catalog
from assay.storage import batches, implementations, outbox, schema, searches
from assay.storage.attempts import Outcome
from assay.storage.database import Database
from assay.storage.objects import LocalStore
from services.scheduler.clock import Scheduler
from services.scheduler.settings import SchedulerSettings
from tests.storage.lifecycle import World

IDEAS = 450


@pytest.fixture
def world(db: Database, store: LocalStore, catalog: Catalog) -> World:
    return World.create(db, store, catalog)


def cancel(world: World, batch: str) -> int:
    with world.db.write() as session:
        return batches.cancel(world.db, session, batch)


def proceed(world: World) -> int:
    with world.db.write() as session:
        return batches.continue_cancelling(world.db, session)


def row(world: World, batch: str) -> schema.Batch:
    with world.db.read() as session:
        return session.get_one(schema.Batch, batch)


def counts(world: World, batch: str) -> dict[str, int]:
    with world.db.read() as session:
        rows = session.execute(
            select(schema.Experiment.state, func.count())
            .where(schema.Experiment.batch_id == batch)
            .group_by(schema.Experiment.state)
        )
        return {row.state: row[1] for row in rows}


def statements(world: World, batch: str) -> int:
    """How many statements it takes to cancel a batch, or the first of its experiments."""
    seen = 0

    def count(*_: object) -> None:
        nonlocal seen
        seen += 1

    event.listen(world.db.engine, "before_cursor_execute", count)
    cancel(world, batch)
    event.remove(world.db.engine, "before_cursor_execute", count)
    return seen


def test_cancelling_takes_as_many_statements_for_many_experiments_as_for_few(
    world: World,
) -> None:
    few, many = world.submit(*map(str, range(3))), world.submit(*map(str, range(60)))
    assert statements(world, many) == statements(world, few)


def test_a_large_batch_is_cancelled_at_once_and_its_experiments_in_steps(world: World) -> None:
    batch = world.submit(*map(str, range(IDEAS)))
    assert cancel(world, batch) == batches.CHUNK
    assert (row(world, batch).state, row(world, batch).finished_at) == ("cancelled", None)
    assert counts(world, batch) == {"cancelled": 200, "submitted": 250}, "progress is visible"
    assert proceed(world) == batches.CHUNK
    assert proceed(world) == 50
    assert row(world, batch).finished_at is not None
    assert proceed(world) == 0
    with world.db.read() as session:
        kinds = session.scalars(
            select(schema.Event.type)
            .where(schema.Event.batch_id == batch)
            .order_by(schema.Event.id)
        ).all()
        assert not batches.is_cancelling(session)
    assert kinds == ["experiment.changed"] * IDEAS + ["batch.finished"]


def test_the_scheduler_continues_what_another_process_began(world: World) -> None:
    batch = world.submit(*map(str, range(IDEAS)))
    cancel(world, batch)
    scheduler = Scheduler(world.db, SchedulerSettings(), lambda: None)
    for _ in range(3):
        scheduler.tick()
    assert counts(world, batch) == {"cancelled": IDEAS}
    assert scheduler.ticks.decisions["cancelled"] == IDEAS - batches.CHUNK


def test_what_keeps_models_and_hosts_busy_is_cancelled_first(world: World) -> None:
    batch = world.submit(*map(str, range(IDEAS)))
    first, second = (each.id for each in world.experiments(batch)[:2])
    attempt = world.assign(world.implement(first, "a = 1\n"))
    assert attempt is not None
    world.claim(attempt)
    with world.db.write() as session:
        assert implementations.begin(world.db, session, second, "imp_1") is not None
    cancel(world, batch)
    states = {each.id: each.state for each in world.experiments(batch)}
    assert (states[first], states[second]) == ("cancelled", "cancelled")
    assert world.sync(attempt).stop == [attempt.id]
    with world.db.read() as session:
        told = {
            tuple(each) for each in session.execute(select(schema.Outbox.topic, schema.Outbox.key))
        }
    assert (outbox.Topic.IMPLEMENTER.value, "imp_1") in told
    assert (outbox.Topic.WORKER.value, world.worker) in told


def test_nothing_of_a_cancelled_batch_is_begun(world: World) -> None:
    batch = world.submit(*map(str, range(IDEAS)))
    cancel(world, batch)
    waiting = [each.id for each in world.experiments(batch) if each.state == "submitted"]
    with world.db.write() as session:
        assert implementations.begin(world.db, session, waiting[0]) is None
    with world.db.read() as session:
        assert implementations.unfinished(world.db, session) == []


def test_a_result_that_came_first_stays(world: World) -> None:
    batch = world.submit(*map(str, range(IDEAS)))
    last = world.experiments(batch)[-1].id
    attempt = world.assign(world.implement(last, "a = 1\n"))
    assert attempt is not None
    world.run(attempt)
    world.finish(attempt, Outcome(AttemptState.SUCCEEDED, metric=1.0, metrics={"score": 1.0}))
    cancel(world, batch)
    while proceed(world):
        pass
    assert counts(world, batch) == {"cancelled": IDEAS - 1, "succeeded": 1}


def test_cancelling_a_search_cancels_no_more_at_once_than_cancelling_a_batch(
    world: World,
) -> None:
    request = SearchRequest(
        environment="count", profile="tiny", strategy="s", epochs=3, batch_size=1
    )
    with world.db.write() as session:
        search = searches.create(world.db, session, request, "local", world.environment)
    made = [world.submit(*map(str, range(150))) for _ in range(3)]
    with world.db.write() as session:
        for batch in made:
            session.get_one(schema.Batch, batch).search_id = search
    with world.db.write() as session:
        searches.end(world.db, session, search, SearchState.CANCELLED)
    assert {row(world, batch).state for batch in made} == {"cancelled"}
    done = sum(counts(world, batch).get("cancelled", 0) for batch in made)
    assert done == batches.CHUNK
    while proceed(world):
        pass
    assert all(row(world, batch).finished_at is not None for batch in made)


@pytest.mark.slow
def test_cancelling_ten_thousand_takes_seconds_and_nobody_waits_for_one(world: World) -> None:
    batch = world.submit(*map(str, range(10_000)))
    longest, step = 0.0, cancel(world, batch)
    while step:
        began = time.process_time()
        step = proceed(world)
        longest = max(longest, time.process_time() - began)
    assert counts(world, batch) == {"cancelled": 10_000}
    assert longest < 1, "CPU seconds for which other writers wait"


def test_a_batch_is_announced_by_one_message_however_many_ideas_it_has(world: World) -> None:
    batch = world.submit(*map(str, range(30)))
    with world.db.read() as session:
        keys = session.scalars(
            select(schema.Outbox.key).where(schema.Outbox.topic == outbox.Topic.IMPLEMENT.value)
        ).all()
    assert keys == [batch]
