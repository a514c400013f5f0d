"""Random lives of measurements: nothing is lost, doubled or left behind."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from sqlalchemy import create_engine, text

from assay.environments.catalog import Catalog
from assay.storage.database import Database
from assay.storage.objects import LocalStore
from tests.scheduler.machine import Lifecycle
from tests.storage.lifecycle import World
from tests.support.databases import sqlite_database

LIFE = settings(
    derandomize=True,
    deadline=None,
    database=None,
    stateful_step_count=30,
    phases=(Phase.generate, Phase.shrink),
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.hypothesis
@pytest.mark.timeout(900)
def test_on_sqlite(tmp_path: Path, store: LocalStore, catalog: Catalog) -> None:
    class OnSqlite(Lifecycle):
        def make(self) -> World:
            path = tmp_path / f"{uuid.uuid4().hex}.db"
            return World.create(sqlite_database(path), store, catalog)

    run_state_machine_as_test(
        OnSqlite, settings=settings(LIFE, max_examples=min(20, settings.default.max_examples // 5))
    )


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.postgres
def test_on_postgres(postgres: Database, store: LocalStore, catalog: Catalog) -> None:
    tables = "outbox, event, log_chunk, worker, environment, leader, lease, shape"
    postgres.dispose()

    class OnPostgres(Lifecycle):
        def make(self) -> World:
            engine = create_engine(postgres.url)
            with engine.begin() as connection:
                connection.execute(text(f"TRUNCATE {tables} CASCADE"))
            engine.dispose()
            return World.create(Database(postgres.url), store, catalog)

    run_state_machine_as_test(OnPostgres, settings=settings(LIFE, max_examples=4))
