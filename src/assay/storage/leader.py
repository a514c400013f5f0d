"""One leader: a lease with an epoch in the database. Every takeover raises the epoch."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from sqlalchemy import bindparam, select, update
from sqlalchemy.orm import Session

from assay.domain.errors import Fenced
from assay.storage import schema
from assay.storage.database import Database
from assay.storage.rows import insert_missing, run

SCHEDULER = "scheduler"
_LOCK = (
    select(schema.Leader.epoch, schema.Leader.expires_at)
    .where(schema.Leader.name == bindparam("leader"))
    .with_for_update()
)


def acquire(
    db: Database,
    holder: str,
    ttl: timedelta,
    epoch: int | None = None,
    name: str = SCHEDULER,
    *,
    rules: dict[str, Any] | None = None,
) -> int | None:
    """Become leader, or stay it with the `epoch` held.

    A holder that was restarted under its own name takes over at once, with a new epoch. So does
    one whose lease has run out, since nobody led meanwhile. Returns the epoch, or None while
    somebody else holds the lease. `rules`: what it decides by, for others to read (`rules_of`).
    """
    with db.write() as session:
        now = db.now(session)
        row = session.scalars(
            select(schema.Leader).where(schema.Leader.name == name).with_for_update()
        ).one_or_none()
        if row is None:
            first = {
                "name": name,
                "holder": holder,
                "epoch": 1,
                "expires_at": now + ttl,
                "rules": rules,
            }
            return 1 if insert_missing(session, schema.Leader, [first]) else None
        if row.holder != holder and row.expires_at > now:
            return None
        if row.holder != holder or row.epoch != epoch or row.expires_at <= now:
            row.holder, row.epoch = holder, row.epoch + 1
        row.expires_at = now + ttl
        row.rules = rules
        return row.epoch


def rules_of(db: Database, session: Session, name: str = SCHEDULER) -> dict[str, Any] | None:
    """Return what the leader decides by; None if nobody leads."""
    table = schema.Leader
    return session.scalars(
        select(table.rules).where(table.name == name, table.expires_at > db.now(session))
    ).one_or_none()


def release(db: Database, holder: str, name: str = SCHEDULER) -> None:
    """Give the lease up, so that a successor need not wait for it to expire."""
    with db.write() as session:
        session.execute(
            update(schema.Leader)
            .where(schema.Leader.name == name, schema.Leader.holder == holder)
            .values(expires_at=db.now(session))
        )


def check(db: Database, session: Session, epoch: int, name: str = SCHEDULER) -> None:
    """Raise `Fenced` unless `epoch` still leads; locks the row until the commit.

    A lease that has run out leads no longer, even if nobody else took it: the leader was paused
    (a laptop that slept) or without its database, and so was whoever renews other leases.
    """
    row = run(session, _LOCK, leader=name).one_or_none()
    if row is None or row.epoch != epoch:
        raise Fenced(f"leader epoch {epoch} has passed to {row.epoch if row else None}")
    if row.expires_at <= db.now(session):
        raise Fenced(f"the lease of leader epoch {epoch} ran out")
