"""Migrated databases that cost a copy each: Alembic runs once per test process and back end.

Running every migration takes about 0.3 CPU seconds. SQLite's template is a file that is copied,
Postgres' is a database that `CREATE DATABASE … TEMPLATE` copies.
"""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Engine, create_engine, text
from sqlalchemy.exc import OperationalError

from assay.storage.database import Database
from tests.support.needs import missing

POSTGRES = os.environ.get(
    "ASSAY_TEST_POSTGRES", "postgresql+psycopg://postgres@127.0.0.1:5432/postgres"
)


def sqlite_database(path: Path) -> Database:
    """Return a migrated, empty SQLite database in a new file."""
    shutil.copy(_sqlite_template(), path)
    return Database(f"sqlite:///{path}")


@functools.cache
def _sqlite_template() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="assay-template-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = folder / "template.db"
    database = Database(f"sqlite:///{path}")
    database.migrate()
    database.dispose()  # the last connection merges the write-ahead log into the file
    return path


@contextmanager
def postgres_database(*, migrated: bool = True) -> Iterator[Database]:
    """Yield an empty Postgres database of the caller's own, dropped at the end."""
    admin = _admin()
    template = _postgres_template(admin) if migrated else "template1"
    name = _new_name()
    with admin.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name} TEMPLATE {template}"))
    database = Database(str(admin.url.set(database=name)))
    try:
        yield database
    finally:
        database.dispose()
        _drop(admin, name)


@functools.cache
def _admin() -> Engine:
    admin = create_engine(POSTGRES, isolation_level="AUTOCOMMIT")
    try:
        admin.connect().close()
    except OperationalError as error:
        missing(f"no Postgres at {POSTGRES} (set ASSAY_TEST_POSTGRES): {error.orig}")
    return admin


@functools.cache
def _postgres_template(admin: Engine) -> str:
    name = _new_name()
    with admin.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    atexit.register(_drop, admin, name)
    database = Database(str(admin.url.set(database=name)))
    database.migrate()
    database.dispose()  # a template that somebody is connected to cannot be copied
    return name


def _new_name() -> str:
    return f"assay_test_{uuid.uuid4().hex[:12]}"


def _drop(admin: Engine, name: str) -> None:
    with admin.connect() as connection:
        connection.execute(text(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)"))
