"""In which order a batch's ideas and its baseline are started."""

from __future__ import annotations

import pytest
from sqlalchemy import select

from assay.domain.placement import Policy
from assay.domain.placement.policy import queue_order
from assay.environments.catalog import Catalog
from assay.storage import batches, schema
from assay.storage.baselines import seeds_with_ideas
from assay.storage.database import Database
from assay.storage.objects import LocalStore
from assay.storage.placing import Rules, demands, supplies, view, waiting
from tests.storage.lifecycle import World


@pytest.fixture
def world(db: Database, store: LocalStore, catalog: Catalog) -> World:
    return World.create(db, store, catalog)


def implemented(world: World, batch: str, content: str) -> str:
    """The measurement of the batch's only idea."""
    return world.implement(world.experiments(batch)[0].id, content)


def baseline(world: World) -> list[str]:
    """The measurements of the baseline by seed."""
    table = schema.Measurement
    with world.db.read() as session:
        codebase = session.get_one(schema.Environment, world.environment).codebase
        query = select(table.id).where(table.codebase_id == codebase).order_by(table.seed)
        return list(session.scalars(query))


def queue(world: World) -> list[str]:
    """What waits, first first."""
    policy = Policy(reservations=50)
    with world.db.read() as session:
        seen = view(world.db, session, 1800)
        free = supplies(seen, Rules(policy, 60, 1800))
        found = demands(session, waiting(session, seen.now), seen.now, free, policy)
    return [demand.measurement for demand in sorted(found, key=queue_order)]


def test_ideas_come_before_the_seeds_that_only_the_baseline_has(world: World) -> None:
    first = world.submit("one", baseline_seeds=3, seeds=[1])
    zero, shared, two = baseline(world)
    assert queue(world) == [shared, zero, two]
    idea = implemented(world, first, "a = 1\n")
    assert queue(world) == [shared, idea, zero, two]
    later = implemented(world, world.submit("two", priority=-100), "a = 2\n")
    assert queue(world) == [shared, idea, later, zero, two]


def test_seeds_that_workers_would_run_unrecorded_come_early(world: World) -> None:
    """Caps relative to the baseline make a worker run it three times before its first idea."""
    with world.db.read() as session:
        profile = world.profile(session)
    budget = profile.budget.model_copy(update={"compute": 1.5})
    relative = profile.model_copy(update={"budget": budget})
    assert seeds_with_ideas(profile, range(20), [6, 90]) == [6]
    assert seeds_with_ideas(relative, range(20), [6, 90]) == [0, 1, 2, 3, 6]
    assert seeds_with_ideas(relative, range(2), [0]) == [0, 1]


def test_the_rest_is_asked_for_when_the_ideas_of_a_batch_are_done(world: World) -> None:
    first = world.submit("one", baseline_seeds=3)
    _, *rest = baseline(world)
    idea = implemented(world, first, "a = 1\n")
    waiting = implemented(world, world.submit("two", seeds=[7]), "a = 2\n")
    world.measure(idea)
    newer = implemented(world, world.submit("three", seeds=[8]), "a = 3\n")
    assert queue(world)[1:] == [waiting, *rest, newer]


def test_seeds_that_no_finished_batch_asked_for_stay_where_they_are(world: World) -> None:
    world.submit("one", baseline_seeds=4)
    _, one, two, three = baseline(world)
    small = world.submit("two", baseline_seeds=2)
    world.measure(implemented(world, small, "a = 1\n"))
    newer = implemented(world, world.submit("three", seeds=[8]), "a = 3\n")
    assert queue(world)[1:] == [one, newer, two, three]


def test_a_cancelled_batch_asks_for_nothing(world: World) -> None:
    first = world.submit("one", baseline_seeds=2)
    _, rest = baseline(world)
    with world.db.write() as session:
        batches.cancel(world.db, session, first)
    newer = implemented(world, world.submit("two", seeds=[8]), "a = 1\n")
    assert queue(world)[1:] == [newer, rest]


def test_a_seed_that_waits_is_queued_as_its_most_urgent_request_asks(world: World) -> None:
    world.submit("one", baseline_seeds=3)
    zero, one, two = baseline(world)
    world.submit("two", baseline_seeds=3, seeds=[2], priority=5)
    assert queue(world) == [two, zero, one]
