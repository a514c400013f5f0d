"""Connections that were cut while nobody used them, and what a transaction leaves to relay."""

from __future__ import annotations

import time

import pytest
from sqlalchemy import text

from assay.storage import database, outbox
from assay.storage.database import Database


@pytest.mark.postgres
def test_a_connection_that_was_cut_while_idle_is_replaced(postgres: Database) -> None:
    with postgres.read() as session:
        backend = session.scalars(text("SELECT pg_backend_pid()")).one()
    other = Database(postgres.url)
    with other.write() as session:
        session.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": backend})
    other.dispose()
    time.sleep(database.TRUSTED_SECONDS * 2)
    with postgres.read() as session:
        assert session.scalars(text("SELECT pg_backend_pid()")).one() != backend


def test_only_a_transaction_with_messages_wakes_a_relay(db: Database) -> None:
    with db.write() as session:
        db.now(session)
    assert not outbox.has_posted(session)
    with db.write() as session:
        outbox.post(session, outbox.Topic.SCHEDULE, "slots")
    assert outbox.has_posted(session)
    with db.write() as session:
        outbox.post_all(db, session, outbox.Topic.WORKER, [])
    assert not outbox.has_posted(session)
