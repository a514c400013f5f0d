"""The scheduler's clock: outages, silent workers, queues for workers that are not there."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest
from sqlalchemy import update

from assay.domain.conditions import Conditions
from assay.domain.errors import Fenced
from assay.environments.catalog import Catalog
from assay.storage import schema, shapes
from assay.storage.database import Database
from assay.storage.objects import LocalStore
from services.scheduler.clock import Scheduler
from services.scheduler.settings import SchedulerSettings
from tests.storage.lifecycle import World


@pytest.fixture
def world(db: Database, store: LocalStore, catalog: Catalog) -> World:
    return World.create(db, store, catalog)


def scheduler(world: World, **settings: float) -> Scheduler:
    chosen = SchedulerSettings.model_validate(settings)
    return Scheduler(world.db, chosen, lambda: None, holder="local")


def running(world: World) -> schema.Attempt:
    batch = world.submit("an idea")
    attempt = world.assign(world.implement(world.experiments(batch)[0].id, "a = 1\n"))
    assert attempt is not None
    world.claim(attempt)
    return attempt


def turn_back(world: World) -> None:
    """As if an hour had passed: of every lease, and since anybody was heard of."""
    hour = timedelta(hours=1)
    with world.db.write() as session:
        then = world.db.now(session) - hour
        session.execute(update(schema.Attempt).values(lease_expires_at=then))
        session.execute(update(schema.Leader).values(expires_at=then))
        session.execute(update(schema.Worker).values(last_seen_at=then))


@pytest.mark.parametrize("leader_seconds", [1, 3600])
def test_nothing_is_lost_after_an_outage_of_the_leader_itself(
    world: World, leader_seconds: float
) -> None:
    # A short lease is renewed in the next tick; a long one is believed in, as by a laptop that
    # slept, whose monotonic clock stood still.
    attempt = running(world)
    clock = scheduler(world, leader_seconds=leader_seconds)
    clock.tick()
    turn_back(world)
    time.sleep(0.4)
    if leader_seconds > 1:
        with pytest.raises(Fenced, match="ran out"):
            clock.tick()
        clock = scheduler(world)
    clock.tick()
    assert world.state(attempt.measurement_id) == "running"
    assert world.sync(attempt).fenced == []


def test_an_idle_worker_that_falls_silent_counts_as_lost(world: World) -> None:
    clock = scheduler(world)
    clock.tick()
    with world.db.write() as session:
        then = world.db.now(session) - timedelta(hours=1)
        session.execute(update(schema.Worker).values(last_seen_at=then))
    clock.tick()
    assert _worker_state(world) == "lost"
    world.sync()
    assert _worker_state(world) == "active"


def _worker_state(world: World) -> str:
    with world.db.read() as session:
        return session.get_one(schema.Worker, world.worker).state


def test_a_queue_for_absent_workers_holds_nobody_else_up(world: World) -> None:
    batch = world.submit("for nobody", "for nobody either", "for us")
    *absent, ours = [world.implement(e.id, f"{e.id}\n") for e in world.experiments(batch)]
    with world.db.write() as session:
        profile = world.profile(session)
        elsewhere = shapes.find(
            session, shapes.Setting("", "", Conditions("h100")), profile, needs_isolation=False
        )
        session.execute(
            update(schema.Measurement)
            .where(schema.Measurement.id.in_(absent))
            .values(hardware_class="h100", shape_id=elsewhere)
        )
    assert scheduler(world).tick() == 1
    assert world.state(ours) == "running"
