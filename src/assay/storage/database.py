"""The database: an engine, read and write transactions, migrations.

SQLite (one process, one file) and Postgres run the same schema and the same code.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from psycopg import Error as PostgresError
from psycopg.errors import ReadOnlySqlTransaction, UndefinedColumn, UndefinedTable
from sqlalchemy import Engine, create_engine, event, func, select
from sqlalchemy.exc import (
    DatabaseError,
    DisconnectionError,
    InterfaceError,
    OperationalError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.orm import Session

from assay.domain.errors import Unavailable
from assay.storage.notices import Notifier, PostgresNotifier, noted
from assay.storage.types import clock_of_sqlite

#: A connection that was used so recently is taken to be alive.
TRUSTED_SECONDS = 0.1
MIGRATIONS = Path(__file__).parent / "migrations"


class Database:
    """Transactions on one database.

    `write()` begins immediately on SQLite: a transaction that reads and then writes would
    otherwise fail at once, timeout or not, when another writer came between.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.engine = _make_engine(url)
        self._for_writing = self.engine.execution_options(assay_write=True)
        # SQLite has one writer at a time, and those that wait sleep and look again. Writers of
        # this process queue here instead, where they are woken at once.
        self._writer = threading.Lock() if self.is_sqlite else nullcontext()
        self.notifier = Notifier() if self.is_sqlite else PostgresNotifier(self.engine)

    @property
    def is_sqlite(self) -> bool:
        return self.engine.dialect.name == "sqlite"

    @contextmanager
    def read(self) -> Iterator[Session]:
        """A transaction that only reads: one consistent view.

        Raises:
            Unavailable: the database cannot be reached.
        """
        with _faults(), Session(self.engine, expire_on_commit=False) as session:
            yield session

    @contextmanager
    def snapshot(self) -> Iterator[Session]:
        """A transaction whose queries all see the database as it was at the first of them.

        Raises:
            Unavailable: the database cannot be reached.
        """
        engine = self.engine
        if not self.is_sqlite:  # whose every transaction is one
            engine = engine.execution_options(isolation_level="REPEATABLE READ")
        with _faults(), Session(engine, expire_on_commit=False) as session:
            yield session

    @contextmanager
    def write(self) -> Iterator[Session]:
        """A transaction that writes; committed at the end, rolled back on any exception.

        What it noted (`notices.note`) is announced after the commit.

        Raises:
            Unavailable: the database cannot be reached, is read-only, or its disk is full.
        """
        session = Session(self._for_writing, expire_on_commit=False)
        with self._writer, _faults(), session:
            yield session
            session.commit()
        self.notifier.announce(noted(session))

    def now(self, session: Session) -> datetime:
        """The database's clock, which is the only one that leases know."""
        if self.is_sqlite:  # one process, one clock
            return datetime.now(UTC)
        moment: datetime = session.scalars(select(func.clock_timestamp())).one()
        return moment.astimezone(UTC)

    def migrate(self) -> None:
        """Bring the schema to the newest version."""
        with _faults():
            command.upgrade(alembic_config(self.url), "head")

    def dispose(self) -> None:
        """Close all connections."""
        self.engine.dispose()


def alembic_config(url: str) -> Config:
    """Alembic's settings, without an ini file."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.attributes["url"] = url
    return config


def _make_engine(url: str) -> Engine:
    if not url.startswith("sqlite"):
        engine = create_engine(url, pool_size=20, max_overflow=10)
        event.listen(engine, "connect", _configure_postgres)
        event.listen(engine, "checkin", _note_return)
        event.listen(engine, "checkout", _ping_if_idle)
        return engine
    engine = create_engine(
        url, connect_args={"timeout": 30, "check_same_thread": False}, pool_size=20
    )
    event.listen(engine, "connect", _configure_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


#: To read the 800 experiments of a search, Postgres would read whole tables with 100,000 rows:
#: its default is made for disks that turn. What an operator has set stays.
_PREFER_INDEXES = """
    SELECT set_config(name, '1.1', false) FROM pg_settings
    WHERE name = 'random_page_cost' AND source = 'default'
"""


def _configure_postgres(connection: Any, _record: Any) -> None:
    connection.execute(_PREFER_INDEXES)
    connection.commit()


def _note_return(_connection: Any, record: Any) -> None:
    record.info["returned"] = time.monotonic()


def _ping_if_idle(connection: Any, record: Any, _proxy: Any) -> None:
    """Replace a connection that was cut while nobody used it. One that was used a moment ago is
    not asked, which would cost as much as a statement."""
    if time.monotonic() - record.info.get("returned", float("inf")) < TRUSTED_SECONDS:
        return
    try:
        connection.execute("SELECT 1")
        connection.rollback()
    except PostgresError as error:
        raise DisconnectionError from error


def _configure_sqlite(connection: sqlite3.Connection, _record: Any) -> None:
    connection.isolation_level = None  # we say BEGIN ourselves
    for pragma in (
        "journal_mode=WAL",
        "synchronous=FULL",
        "foreign_keys=ON",
        "busy_timeout=30000",
    ):
        connection.execute(f"PRAGMA {pragma}")
    connection.create_function("assay_clock", 0, clock_of_sqlite)


def _begin_sqlite(connection: Any) -> None:
    write = connection.get_execution_options().get("assay_write", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")


@contextmanager
def _faults() -> Iterator[None]:
    """Turn faults of the database itself into `Unavailable` with a remedy."""
    try:
        yield
    except OperationalError as error:
        text = str(error.orig)
        for sign, code, remedy in FAULTS:
            if sign in text:
                raise Unavailable(remedy.format(text), code=code) from error
        if isinstance(error.orig, sqlite3.OperationalError):
            raise  # SQLite also calls a mistake in a statement operational
        raise Unavailable(
            f"the database cannot be used: {text}", code="database_unavailable"
        ) from error
    except DatabaseError as error:
        state = _state_of_database(error.orig)
        if state is None:
            raise
        raise state from error
    except InterfaceError as error:  # the connection was closed under us
        raise Unavailable(
            f"the database cannot be used: {error.orig}", code="database_unavailable"
        ) from error
    except PoolTimeout as error:
        raise Unavailable("the database is busy; try again", code="database_busy") from error


def _state_of_database(error: BaseException | None) -> Unavailable | None:
    """What a driver reports as an error of the statement, and is the state of the database."""
    if getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGE:
        return Unavailable(DAMAGED.format(error), code="database_damaged")
    if isinstance(error, UndefinedTable | UndefinedColumn):
        return Unavailable(
            f"the database is not migrated yet: {error.diag.message_primary}",
            code="schema_outdated",
        )
    if isinstance(error, ReadOnlySqlTransaction):
        return Unavailable(
            "the database takes no writes: it is a standby, or default_transaction_read_only is "
            "set; connect to the primary, or reset that",
            code="database_read_only",
        )
    return None


#: Of SQLite's codes, whose low byte is the kind: a wrong page, and no database at all.
_DAMAGE = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
DAMAGED = (
    "the database is damaged ({}): stop the service and restore a backup (docs/operations.md, "
    "Backup); `assay doctor --data-dir FOLDER` says what is damaged"
)
#: What a driver's message says, the code of the error, and what to do.
FAULTS = (
    ("disk is full", "disk_full", "the disk of the database is full; free space and try again"),
    ("No space left", "disk_full", "the disk of the database is full; free space and try again"),
    (
        "readonly database",
        "database_read_only",
        "the database is read-only; check the permissions of its folder",
    ),
    (
        "unable to open",
        "database_unavailable",
        "the database cannot be opened ({}); check its folder",
    ),
    ("disk I/O error", "database_unavailable", "the database's disk fails: {}"),
    ("database is locked", "database_busy", "the database is busy; try again"),
    ("Could not decode to UTF-8", "database_damaged", DAMAGED),
)
