"""How a server process opens what it shares with others: database, objects, broker."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import text

from assay.broker.dispatch import CeleryDispatcher
from assay.domain.errors import Unavailable
from assay.storage.database import Database
from assay.storage.health import check_schema
from assay.storage.objects import LocalStore, ObjectStore
from assay.storage.outbox import Dispatcher, Nowhere
from assay.storage.s3 import S3Store
from assay.storage.settings import ServerSettings

log = logging.getLogger(__name__)
#: Any number that no other program uses for its locks in this database.
_MIGRATION_LOCK = 0x6173736179


def open_store(settings: ServerSettings) -> ObjectStore:
    """The object store that `objects_url` names. Nothing is asked of it yet."""
    if not settings.objects_url.startswith("s3://"):
        return LocalStore(Path(settings.objects_url))
    return S3Store.from_url(
        settings.objects_url,
        endpoint_url=settings.s3_endpoint_url,
        public_endpoint_url=settings.s3_public_endpoint_url,
        region=settings.s3_region,
    )


def open_database(settings: ServerSettings) -> Database:
    """The database. It connects at the first transaction."""
    return Database(settings.database_url.get_secret_value())


def open_dispatcher(settings: ServerSettings) -> Dispatcher:
    """The sending side of the broker, or one that drops messages where there is no broker."""
    return CeleryDispatcher(settings.broker) if settings.broker is not None else Nowhere()


def migrate(db: Database) -> str:
    """Bring the schema to the version of this program, unless it is newer already.

    One process at a time does so, under a lock in the database. Returns the revision.

    Raises:
        Unavailable: the database cannot be used.
    """
    with _alone(db):
        try:
            return _revision(db)
        except Unavailable as outdated:
            if outdated.code != "schema_outdated":
                raise
        log.info("migrating the database")
        db.migrate()
        return _revision(db)


def _revision(db: Database) -> str:
    with db.read() as session:
        return check_schema(session)


@contextmanager
def _alone(db: Database) -> Iterator[None]:
    """One process at a time. The lock belongs to one connection, which is kept meanwhile and is in
    no transaction: none of ours may look at tables that are being changed."""
    with db.read() as session:
        if db.is_sqlite:
            yield
            return
        keeping = session.connection(execution_options={"isolation_level": "AUTOCOMMIT"})
        keeping.execute(text("SELECT pg_advisory_lock(:key)"), {"key": _MIGRATION_LOCK})
        try:
            yield
        finally:
            keeping.execute(text("SELECT pg_advisory_unlock(:key)"), {"key": _MIGRATION_LOCK})


def check_migrated(db: Database) -> None:
    """Raise `Unavailable` unless the database can be used and is new enough."""
    with db.read() as session:
        check_schema(session)
