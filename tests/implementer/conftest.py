"""The Implementer API over a database and a store in a temporary folder, without a worker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select
from starlette.testclient import TestClient

from assay.contracts.worker import WorkerRegistration
from assay.domain.placement import Placement
from assay.environments.catalog import Catalog
from assay.storage import attempts, environments, implementations, schema, workers
from assay.storage.database import Database
from assay.storage.objects import LocalStore
from services.implementer.app import create_app
from services.implementer.context import Context
from services.implementer.settings import ImplementerSettings
from tests.implementer.scored import WORKER_TOKEN, Service, open_service
from tests.storage.lifecycle import World
from tests.support.databases import sqlite_database


@pytest.fixture
def context(tmp_path: Path, store: LocalStore, catalog: Catalog) -> Iterator[Context]:
    """A context whose only worker has registered and does nothing."""
    db = sqlite_database(tmp_path / "api.db")
    worker_id = workers.admit(db, "w", WORKER_TOKEN)
    with db.write() as session:
        workers.register(
            db,
            session,
            worker_id,
            WorkerRegistration(
                name="w",
                incarnation="one",
                cpus=2,
                memory_bytes=1 << 33,
                hardware_class="cpu",
                sandbox="subprocess",
                isolated=False,
            ),
        )
    yield Context(db, store, catalog, ImplementerSettings(), variables={})
    db.dispose()


@pytest.fixture
def service(tmp_path: Path, catalog: Catalog) -> Iterator[Service]:
    """The API over a search of two ideas; nothing has been measured yet."""
    made = open_service(tmp_path, catalog)
    yield made
    made.context.db.dispose()


@pytest.fixture
def world(db: Database, store: LocalStore, catalog: Catalog) -> World:
    """A database with one worker, which does what a test tells it."""
    return World.create(db, store, catalog)


@contextmanager
def served(world: World, catalog: Catalog, **settings: Any) -> Iterator[TestClient]:
    """A client of the API over a world, with these settings."""
    read = ImplementerSettings(**settings)
    context = Context(world.db, world.store, catalog, read, variables={})
    with TestClient(create_app(context), raise_server_exceptions=False) as client:
        yield client


@pytest.fixture
def api(context: Context) -> Iterator[TestClient]:
    """A client of the API; server errors are answers, not exceptions."""
    with TestClient(create_app(context), raise_server_exceptions=False) as client:
        yield client


def batch(*texts: str, **changes: Any) -> dict[str, Any]:
    """The body of a batch of ideas."""
    ideas = [{"text": text} for text in texts or ("Count in twos.",)]
    return {"environment": "count", "profile": "tiny", "ideas": ideas, **changes}


def given_attempt(api: TestClient, context: Context) -> schema.Attempt:
    """An attempt of a new idea that the only worker was given."""
    made = api.post("/v1/batches", json=batch(options={"baseline_seeds": 0}))
    assert made.status_code == 202, made.text
    codebase = environments.put_codebase(context.store, {"train.py": "a = 1\n"})
    with context.db.write() as session:
        experiment = session.scalars(select(schema.Experiment.id)).one()
        work = implementations.begin(context.db, session, experiment)
        assert work is not None
        implementations.succeed(context.db, session, work, 0, codebase)
        measurement = session.scalars(select(schema.Measurement.id)).one()
        worker = session.scalars(select(schema.Worker.id)).one()
        placed = Placement(measurement, worker)
        given = attempts.assign(context.db, session, placed, timedelta(seconds=60))
        assert given is not None
        return given
