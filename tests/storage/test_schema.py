"""The migrations give the schema the code expects, and its constraints hold."""

from __future__ import annotations

import pytest
from alembic import command
from alembic.util import CommandError
from sqlalchemy import text
from sqlalchemy.exc import DatabaseError

from assay.domain.errors import Unavailable
from assay.storage import schema
from assay.storage.database import Database, alembic_config
from assay.storage.rows import insert_missing


def test_migrations_give_the_schema_of_the_models(db: Database) -> None:
    try:
        command.check(alembic_config(db.url))
    except CommandError as error:
        pytest.fail(f"models and migrations differ: {error}")


def test_migrating_twice_changes_nothing(db: Database) -> None:
    db.migrate()


def test_the_schema_can_be_taken_down_again(db: Database) -> None:
    command.downgrade(alembic_config(db.url), "base")
    db.migrate()


def test_sqlite_is_set_up_to_lose_nothing(tmp_path: object) -> None:
    db = Database(f"sqlite:///{tmp_path}/x.db")
    with db.read() as session:
        assert session.execute(text("PRAGMA journal_mode")).scalar() == "wal"
        assert session.execute(text("PRAGMA synchronous")).scalar() == 2
        assert session.execute(text("PRAGMA foreign_keys")).scalar() == 1
    db.dispose()


def test_a_full_disk_is_said_to_be_full(tmp_path: object) -> None:
    db = Database(f"sqlite:///{tmp_path}/x.db")
    db.migrate()
    with db.engine.connect() as connection:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar()
        connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")
        connection.commit()
        big = "x" * 100_000
        with pytest.raises(DatabaseError, match="full"):
            connection.exec_driver_sql(
                "INSERT INTO outbox (topic, key, created_at) VALUES (?, 'k', '2026-01-01')",
                (big,),
            )
    db.dispose()


def test_an_unreachable_database_is_unavailable() -> None:
    db = Database("postgresql+psycopg://nobody@127.0.0.1:1/none")
    with pytest.raises(Unavailable, match="cannot be used"):
        with db.read() as session:
            session.execute(text("SELECT 1"))


def test_inserting_what_is_there_says_so(db: Database) -> None:
    with db.write() as session:
        row = {"name": "x", "holder": "a", "epoch": 1, "expires_at": db.now(session)}
        assert [insert_missing(session, schema.Leader, [row]) for _ in range(2)] == [1, 0]
        assert insert_missing(session, schema.Leader, [row, row | {"name": "y"}]) == 1
