"""Notices: which rows a commit has changed, for streams that show them.

`note` marks a row in a transaction, and `Database.write` announces it after the commit. A message
of the outbox goes to one receiver; a notice goes to everybody who subscribed, in this process
(SQLite) or in every process of the API (Postgres, `LISTEN`). A notice that is lost only costs
time: subscribers also look on a clock of their own.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from sqlalchemy import Engine, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

log = logging.getLogger(__name__)

_NOTED = "assay_noted"
CHANNEL = "assay_notices"
_ECHO = "echo "
#: All keys in one statement. Postgres drops those that a transaction repeats.
_NOTIFY = text("SELECT pg_notify(:channel, key) FROM unnest(CAST(:keys AS text[])) AS key")


def note(session: Session, key: str) -> None:
    """Announce after the commit that what is stored under this id has changed."""
    session.info.setdefault(_NOTED, set()).add(key)


def noted(session: Session) -> Collection[str]:
    """Return what a transaction has noted, and forget it."""
    found: set[str] = session.info.pop(_NOTED, set())
    return found


class Notifier:
    """Calls whoever subscribed to a key when it is announced. May be used from any thread.

    This one serves a database of one process.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._subscribed: dict[str, list[Callable[[], None]]] = defaultdict(list)

    @property
    def is_live(self) -> bool:
        """Whether notices of all processes arrive."""
        return True

    @contextmanager
    def subscribe(self, key: str, callback: Callable[[], None]) -> Iterator[None]:
        """Have `callback` called, in any thread, each time that the key is announced.

        It must return at once and raise nothing.
        """
        with self._lock:
            self._subscribed[key].append(callback)
        try:
            yield
        finally:
            with self._lock:
                self._subscribed[key].remove(callback)
                if not self._subscribed[key]:
                    del self._subscribed[key]

    def announce(self, keys: Collection[str]) -> None:
        """Tell all subscribers. Called after the commit."""
        for key in keys:
            self._deliver(key)

    def _deliver(self, key: str | None) -> None:
        """Call the subscribers of a key, or all of them."""
        with self._lock:
            lists = self._subscribed.values() if key is None else [self._subscribed.get(key, [])]
            callbacks = [callback for each in lists for callback in each]
        for callback in callbacks:
            callback()


@dataclass(frozen=True)
class Patience:
    """Times of the listening side, in seconds.

    `test`: between two tests whether notices arrive, and how long the echo of one may take.
    `pause`: before it connects again.
    """

    test: float = 15.0
    pause: float = 1.0


class _Deaf(Exception):
    """The connection is there and its own notices do not arrive."""


class PostgresNotifier(Notifier):
    """Announces with NOTIFY, to the subscribers of every process that runs `run`.

    It announces in a transaction of its own after the commit. Within the transaction that changed
    the rows, NOTIFY would make commits wait for one another, with their writes to disk.
    """

    def __init__(self, engine: Engine, patience: Patience | None = None) -> None:
        super().__init__()
        self._engine = engine.execution_options(isolation_level="AUTOCOMMIT")
        self._patience = patience or Patience()
        self._stopping = threading.Event()
        self._live = threading.Event()
        self._has_complained = False

    @property
    def is_live(self) -> bool:
        """Whether notices of all processes arrive, as the last test showed."""
        return self._live.is_set()

    def announce(self, keys: Collection[str]) -> None:
        """Tell the subscribers of all processes. What was committed stays so if this fails."""
        if not keys:
            return
        try:
            self._send(keys)
        except SQLAlchemyError as error:
            log.warning("a change was not announced; streams show it within seconds: %s", error)

    def _send(self, keys: Collection[str]) -> None:
        with self._engine.connect() as connection:
            connection.execute(_NOTIFY, {"channel": CHANNEL, "keys": sorted(keys)})

    def run(self) -> None:
        """Deliver to the subscribers of this process until stopped, over a connection of its own.

        Whenever notices begin to arrive, all subscribers are called: some may have been missed.
        """
        while not self._stopping.is_set():
            try:
                self._listen()
            except (psycopg.Error, SQLAlchemyError, _Deaf) as error:
                level = logging.DEBUG if self._has_complained else logging.WARNING
                log.log(level, "no notices arrive; streams look on a clock: %s", error)
                self._has_complained = True
            finally:
                self._live.clear()
            self._stopping.wait(self._patience.pause)

    def stop(self) -> None:
        """End `run`, within a second."""
        self._stopping.set()

    def _listen(self) -> None:
        arguments, options = self._engine.dialect.create_connect_args(self._engine.url)
        with psycopg.connect(*arguments, **{**options, "autocommit": True}) as connection:
            connection.execute(f"LISTEN {CHANNEL}")
            self._attend(connection)

    def _attend(self, connection: psycopg.Connection[Any]) -> None:
        expected, test_at = "", time.monotonic()
        while not self._stopping.is_set():
            if time.monotonic() >= test_at:
                if expected:
                    raise _Deaf("a notice to itself did not arrive; a pooler may be in between")
                expected = f"{_ECHO}{secrets.token_hex(8)}"
                self._send([expected])
                test_at = time.monotonic() + self._patience.test
            for notice in connection.notifies(timeout=1.0):
                if notice.payload == expected:
                    expected = ""
                    self._begin()
                elif not notice.payload.startswith(_ECHO):
                    self._deliver(notice.payload)
                if self._stopping.is_set():
                    return

    def _begin(self) -> None:
        if not self._live.is_set():
            self._live.set()
            self._has_complained = False
            self._deliver(None)
