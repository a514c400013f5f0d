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
from assay.storage.rows import append, changed


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
    append(session, schema.Outbox, topic=topic.value, key=key, created_at=db.now(session))


class Relay:
    """Delivers what is in the outbox, oldest first.

    Delivered messages are deleted in bunches, since every deletion is a transaction: a crash
    before it sends them again, which changes nothing.
    """

    BUNCH = 100

    def __init__(self, db: Database, dispatcher: Dispatcher) -> None:
        self._db = db
        self._dispatcher = dispatcher
        self._sent: set[int] = set()

    def deliver(self) -> int:
        """Deliver what has not been delivered. Returns how many messages there were."""
        with self._db.read() as session:
            rows = session.execute(
                select(schema.Outbox.id, schema.Outbox.topic, schema.Outbox.key)
                .order_by(schema.Outbox.id)
                .limit(self.BUNCH * 10)
            ).all()
        new = [row for row in rows if row.id not in self._sent]
        for topic, key in dict.fromkeys((row.topic, row.key) for row in new):
            self._dispatcher.send(Topic(topic), key)
        self._sent.update(row.id for row in new)
        if len(self._sent) >= self.BUNCH:
            self.tidy()
        return len(new)

    def tidy(self) -> None:
        """Delete what was delivered. By id: on Postgres a lower id may commit later."""
        if not self._sent:
            return
        with self._db.write() as session:
            changed(session, delete(schema.Outbox).where(schema.Outbox.id.in_(self._sent)))
        self._sent.clear()
