"""Messages that commit with the change that causes them, and their delivery.

A message says only "look at this row". Losing or repeating one changes nothing: the receivers
look at the rows again on their own clock.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from datetime import timedelta
from enum import StrEnum
from typing import Protocol

from sqlalchemy import bindparam, delete, insert, select
from sqlalchemy.orm import Session

from assay.domain.errors import Unavailable
from assay.storage import schema
from assay.storage.database import Database
from assay.storage.rows import changed, run, table_of
from assay.storage.types import clock
from assay.telemetry import counts

log = logging.getLogger(__name__)


class Topic(StrEnum):
    """What a message is about; its key is a row's id."""

    IMPLEMENT = "implement"  # experiments of a batch, or one of them, wait to be implemented
    IMPLEMENTER = "implementer"  # an idea or a search that this holder has was cancelled
    DRIVE = "drive"  # a search waits for a process of the service to drive it
    SCHEDULE = "schedule"  # a measurement was queued, or resources became free
    WEBHOOK = "webhook"  # an event waits to be sent to a webhook
    WORKER = "worker"  # a worker has something to fetch


class Dispatcher(Protocol):
    """Carries messages to whoever handles a topic."""

    def send(self, topic: Topic, key: str) -> None:
        """Deliver a message, at most once, perhaps never."""
        ...


#: Between two deliveries, in seconds: under load, messages gather and go in one transaction.
_PAUSE = 0.01
_POSTED = "assay_posted"
_OUTBOX = table_of(schema.Outbox)
_POST = insert(_OUTBOX).values(topic=bindparam("topic"), key=bindparam("key"), created_at=clock())
_AFTER = (
    select(_OUTBOX.c.id, _OUTBOX.c.topic, _OUTBOX.c.key)
    .where(_OUTBOX.c.id > bindparam("last"))
    .order_by(_OUTBOX.c.id)
    .limit(bindparam("most"))
)


def post(session: Session, topic: Topic, key: str) -> None:
    """Write a message in the current transaction."""
    run(session, _POST, topic=topic.value, key=key)
    session.info[_POSTED] = True


def post_all(db: Database, session: Session, topic: Topic, keys: Iterable[str]) -> None:
    """Write a message for each key, in one statement."""
    now = db.now(session)
    rows = [{"topic": topic.value, "key": key, "created_at": now} for key in sorted(set(keys))]
    if rows:
        session.connection().execute(insert(_OUTBOX), rows)
        session.info[_POSTED] = True


def has_posted(session: Session) -> bool:
    """Whether a transaction wrote messages, so that a relay has something to do."""
    return bool(session.info.get(_POSTED))


class Nowhere:
    """A dispatcher for servers without a broker: everybody looks on a clock."""

    def send(self, topic: Topic, key: str) -> None:
        """The message is dropped."""


class Relay:
    """Delivers what is in the outbox, oldest first.

    On Postgres several processes may relay at once: each takes rows that no other has locked, and
    deletes them in the transaction in which it read them. On SQLite there is one process, and
    every deletion would be a transaction synced to disk, so that delivered messages are deleted in
    bunches. A crash in between sends messages again, which changes nothing.
    """

    BUNCH = 100
    #: Messages that one delivery takes.
    MOST = 1_000

    def __init__(self, db: Database, dispatcher: Dispatcher) -> None:
        self._db = db
        self._dispatcher = dispatcher
        self._sent: set[int] = set()

    def deliver(self) -> int:
        """Deliver what has not been delivered. Returns how many messages there were.

        Raises:
            Unavailable: the database or the broker cannot be used; nothing is forgotten.
        """
        return self._deliver_alone() if self._db.is_sqlite else self._deliver_beside_others()

    def _deliver_beside_others(self) -> int:
        table = schema.Outbox
        with self._db.write() as session:
            rows = session.execute(
                select(table.id, table.topic, table.key)
                .order_by(table.id)
                .limit(self.MOST)
                .with_for_update(skip_locked=True)
            ).all()
            if not rows:
                return 0
            self._send([(row.topic, row.key) for row in rows])
            changed(session, delete(table).where(table.id.in_([row.id for row in rows])))
        return len(rows)

    def _deliver_alone(self) -> int:
        # One writer at a time, and AUTOINCREMENT: no lower id commits later, none is used again.
        last = max(self._sent, default=0)
        with self._db.read() as session:
            rows = run(session, _AFTER, last=last, most=self.MOST).all()
        self._send([(row.topic, row.key) for row in rows])
        self._sent.update(row.id for row in rows)
        if len(self._sent) >= self.BUNCH:
            self.tidy()
        return len(rows)

    def _send(self, messages: list[tuple[str, str]]) -> None:
        for topic, key in dict.fromkeys(messages):
            self._dispatcher.send(Topic(topic), key)
            counts.DELIVERED.labels(topic).inc()

    def tidy(self) -> None:
        """Delete what was delivered."""
        if not self._sent:
            return
        with self._db.write() as session:
            changed(session, delete(schema.Outbox).where(schema.Outbox.id.in_(self._sent)))
        self._sent.clear()

    def forget(self, age: timedelta) -> int:
        """Delete what could not be delivered for so long: its receivers have looked meanwhile.

        Returns how many messages there were.
        """
        table = schema.Outbox
        with self._db.write() as session:
            before = self._db.now(session) - age
            old = (
                select(table.id)
                .where(table.created_at < before)
                .order_by(table.id)
                .with_for_update(skip_locked=True)
            )
            return changed(session, delete(table).where(table.id.in_(old)))


class RelayLoop:
    """A relay in a thread: it runs when it is woken, and on a clock for what others commit."""

    def __init__(
        self,
        db: Database,
        dispatcher: Dispatcher,
        *,
        poll_seconds: float = 0.5,
        keep: timedelta = timedelta(seconds=60),
    ) -> None:
        """`keep`: how long messages are kept that no broker takes."""
        self._relay = Relay(db, dispatcher)
        self._poll_seconds = poll_seconds
        self._keep = keep
        self._news = threading.Event()
        self._stopping = threading.Event()
        self._away = False

    def wake(self) -> None:
        """There are new messages."""
        self._news.set()

    def stop(self) -> None:
        """End `run`."""
        self._stopping.set()
        self._news.set()

    def run(self) -> None:
        """Deliver until stopped."""
        while not self._stopping.is_set():
            has_news = self._news.wait(self._poll_seconds)
            self._news.clear()
            try:
                delivered = self._relay.deliver()
                if delivered:
                    self._note(None)
                    self._stopping.wait(_PAUSE)
                if delivered >= self._relay.MOST:
                    self._news.set()
                if not has_news:
                    self._relay.tidy()
            except Unavailable as error:
                self._note(error)
                self._stopping.wait(self._poll_seconds)

    def _note(self, error: Unavailable | None) -> None:
        """Say once that messages wait, and once that they do not; keep them from piling up."""
        if error is None:
            if self._away:
                log.info("messages are delivered again")
            self._away = False
            return
        if not self._away:
            log.warning("messages wait in the outbox: %s", error)
        self._away = True
        try:
            self._relay.forget(self._keep)
        except Unavailable as fault:
            log.debug("the outbox cannot be tidied: %s", fault)
