"""Whether the database can serve this version, and who schedules and works: for `/readyz`."""

from __future__ import annotations

from functools import cache

from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import select
from sqlalchemy.orm import Session

from assay.domain.errors import Unavailable
from assay.storage import schema, workers
from assay.storage.database import Database, alembic_config
from assay.storage.leader import SCHEDULER


def check_schema(session: Session) -> str:
    """The revision of the schema.

    A newer one than this version knows is fine: migrations only add, so that old and new processes
    can work side by side while a service is upgraded.

    Raises:
        Unavailable: the schema is older than this version needs (`schema_outdated`).
    """
    found = MigrationContext.configure(session.connection()).get_current_revision()
    head, known = _revisions()
    if found is None or (found in known and found != head):
        raise Unavailable(
            f"the database is at revision {found or 'none'} and this version needs {head}; "
            "migrate it: it happens when the API starts",
            code="schema_outdated",
        )
    return found


def check_leader(db: Database, session: Session) -> str:
    """Who schedules.

    Raises:
        Unavailable: nobody does (`no_scheduler`).
    """
    row = session.scalars(
        select(schema.Leader).where(schema.Leader.name == SCHEDULER)
    ).one_or_none()
    if row is None or row.expires_at <= db.now(session):
        raise Unavailable(
            "no scheduler leads: what is queued waits; start `assay scheduler`",
            code="no_scheduler",
        )
    return row.holder


def check_workers(db: Database, session: Session) -> None:
    """Raise `Unavailable` (`no_worker`) unless a worker can take work."""
    if not workers.classes_at_work(db, session):
        raise Unavailable(
            "no worker can take work: none has registered, or all are stopped, silent, cordoned "
            "or draining; `assay worker list` says which",
            code="no_worker",
        )


@cache
def _revisions() -> tuple[str | None, frozenset[str]]:
    """The newest revision and all there are; the address is not used."""
    scripts = ScriptDirectory.from_config(alembic_config("sqlite://"))
    return scripts.get_current_head(), frozenset(s.revision for s in scripts.walk_revisions())
