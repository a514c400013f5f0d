"""A worker that is admitted again: with another token its old process is out."""

from __future__ import annotations

import pytest

from assay.domain.errors import Conflict
from assay.environments.catalog import Catalog
from assay.storage import schema, workers
from assay.storage.database import Database
from assay.storage.objects import LocalStore
from tests.storage.lifecycle import World


@pytest.fixture
def world(db: Database, store: LocalStore, catalog: Catalog) -> World:
    return World.create(db, store, catalog)


def worker(world: World) -> schema.Worker:
    with world.db.read() as session:
        return session.get_one(schema.Worker, world.worker)


def test_a_worker_with_a_new_token_is_stopped_until_it_registers(world: World) -> None:
    assert workers.admit(world.db, "w", "another") == world.worker
    assert worker(world).state == "stopped"
    world.restart("two")
    assert worker(world).state == "active"


def test_the_process_that_has_the_old_token_cannot_become_active_again(world: World) -> None:
    """An API process that remembers the old token for some seconds lets its sync through."""
    workers.admit(world.db, "w", "another")
    with pytest.raises(Conflict) as refused:
        world.sync()
    assert refused.value.code == "stale_incarnation"
    assert worker(world).state == "stopped"


def test_the_same_token_again_changes_nothing(world: World) -> None:
    """An API that restarts admits the workers that its settings name."""
    world.sync()
    before = worker(world)
    workers.admit(world.db, "w", "secret")
    after = worker(world)
    assert (after.state, after.incarnation) == ("active", before.incarnation)
    world.sync()


def test_what_the_new_process_has_adopted_goes_on(world: World) -> None:
    """`assay serve` gives its worker a new token at every start."""
    (batch,) = [world.submit("Count in twos.")]
    measurement = world.implement(world.experiments(batch)[0].id, "a = 1\n")
    attempt = world.assign(measurement)
    assert attempt is not None
    workers.admit(world.db, "w", "another")
    world.restart("two", attempt)
    with world.db.read() as session:
        assert session.get_one(schema.Attempt, attempt.id).state == "assigned"


def test_a_worker_that_never_registered_is_still_waited_for(world: World) -> None:
    new = workers.admit(world.db, "new", "first")
    workers.admit(world.db, "new", "second")
    with world.db.read() as session:
        assert session.get_one(schema.Worker, new).incarnation == ""
