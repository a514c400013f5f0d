"""Uploaded codebases that nothing names are removed once they are old, and no others."""

from __future__ import annotations

from datetime import timedelta

import pytest

from assay.contracts.batch import BatchRequest
from assay.domain.conditions import Conditions
from assay.environments.catalog import Catalog
from assay.storage import batches, environments, garbage, schema
from assay.storage.database import Database
from assay.storage.objects import LocalStore, codebase_key
from tests.storage.lifecycle import CLASS, World

EVERYTHING, OLD = timedelta(days=-1), timedelta(days=30)


@pytest.fixture
def world(db: Database, store: LocalStore, catalog: Catalog) -> World:
    return World.create(db, store, catalog)


def upload(world: World, content: str) -> str:
    codebase = environments.put_codebase(world.store, {"train.py": content})
    with world.db.write() as session:
        environments.keep_codebase(world.db, session, codebase, world.environment)
    return codebase


def submit(world: World, codebase: str) -> str:
    request = BatchRequest.model_validate(
        {
            "environment": "count",
            "profile": "tiny",
            "executor": "none",
            "ideas": [{"text": "Measure it.", "codebase": codebase}],
        }
    )
    with world.db.write() as session:
        on = Conditions(CLASS)
        return batches.create(world.db, session, request, "local", world.environment, on)


def is_known(world: World, codebase: str) -> bool:
    with world.db.read() as session:
        recorded = session.get(schema.Codebase, codebase) is not None
    assert recorded == world.store.exists(codebase_key(codebase))
    return recorded


def test_an_upload_that_nothing_names_is_removed_once_it_is_old(world: World) -> None:
    submitted, left = upload(world, "a = 1\n"), upload(world, "a = 2\n")
    submit(world, submitted)
    (row,) = world.experiments(world.submit("an idea"))
    world.implement(row.id, "a = 3\n")
    assert garbage.collect(world.db, world.store, OLD).objects == 0
    assert garbage.collect(world.db, world.store, EVERYTHING).objects == 1
    assert (is_known(world, submitted), is_known(world, left)) == (True, False)


def test_uploading_or_submitting_again_starts_the_time_anew(world: World) -> None:
    codebase = upload(world, "a = 1\n")
    with world.db.write() as session:
        row = session.get_one(schema.Codebase, codebase)
        row.created_at -= timedelta(days=60)
        then = row.created_at
    assert upload(world, "a = 1\n") == codebase
    with world.db.read() as session:
        assert session.get_one(schema.Codebase, codebase).created_at > then + timedelta(days=59)
