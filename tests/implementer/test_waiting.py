"""A batch says what its queued measurements wait for."""

from __future__ import annotations

import pytest

from assay.domain.failure_codes import Failure, FailureCode
from assay.domain.states import AttemptState, FailureStage
from assay.environments.catalog import Catalog
from assay.storage import cordons, waiting
from assay.storage.attempts import Outcome
from assay.storage.database import Database
from assay.storage.objects import LocalStore
from tests.storage.lifecycle import World

BUSY = Failure(FailureStage.TRAIN, FailureCode.HOST_BUSY, "no processor for 80 s")


@pytest.fixture
def world(db: Database, store: LocalStore, catalog: Catalog) -> World:
    return World.create(db, store, catalog)


def waits(world: World, batch: str) -> list[tuple[int, str]]:
    with world.db.read() as session:
        of_batch = waiting.of_batches(world.db, session, [batch])[batch]
        return [(found[0], found[1]) for found in of_batch]


def test_a_batch_waits_for_what_failed_for_its_host_and_for_workers(world: World) -> None:
    batch = world.submit("an idea")
    measurement = world.implement(world.experiments(batch)[0].id, "a = 2\n")
    assert waits(world, batch) == [], "only for its turn"
    world.measure(measurement, Outcome(AttemptState.FAILED, BUSY))
    assert waits(world, batch) == [(1, "host_busy")]
    other = world.submit("another idea")
    world.implement(world.experiments(other)[0].id, "a = 3\n")
    with world.db.write() as session:
        cordons.cordon(world.db, session, world.worker, "new disk")
    assert waits(world, other) == [(1, world.row().hardware_class)]
    assert waits(world, batch) == [(1, "host_busy")]
