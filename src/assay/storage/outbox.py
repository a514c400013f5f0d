"""Messages that commit with the change that causes them, and their delivery.

A message says only "look at this row". Losing or repeating one changes nothing: the receivers
look at the rows again on their own clock.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from assay.storage import schema
from assay.storage.database import Database


class Topic(StrEnum):
    """What a message is about; its key is a row's id."""

    IMPLEMENT = "implement"  # an experiment waits to be implemented
    SCHEDULE = "schedule"  # a measurement was queued, or resources became free
    WORKER = "worker"  # a worker has something to fetch


class Dispatcher(Protocol):
    """Carries messages to whoever handles a topic."""

    def send(self, topic: Topic, key: str) -> None:
        """Deliver a message, at most once, perhaps never."""
        ...


def post(db: Database, session: Session, topic: Topic, key: str) -> None:
    """Write a message in the current transaction."""
    session.add(schema.Outbox(topic=topic.value, key=key, created_at=db.now(session)))


def relay(db: Database, dispatcher: Dispatcher, *, limit: int = 500) -> int:
    """Deliver what is in the outbox, oldest first. Returns how many messages were delivered.

    A message is deleted after it was sent: a crash in between sends it twice.
    """
    with db.read() as session:
        rows = session.execute(
            select(schema.Outbox.id, schema.Outbox.topic, schema.Outbox.key)
            .order_by(schema.Outbox.id)
            .limit(limit)
        ).all()
    for message in dict.fromkeys((row.topic, row.key) for row in rows):
        dispatcher.send(Topic(message[0]), message[1])
    if rows:
        with db.write() as session:
            sent = [row.id for row in rows]  # by id: on Postgres a lower id may commit later
            session.execute(
                delete(schema.Outbox)
                .where(schema.Outbox.id.in_(sent))
                .execution_options(synchronize_session=False)
            )
    return len(rows)
