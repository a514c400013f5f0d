"""Cordons: workers that fail repeatedly get no new work for a while.

What runs there goes on. When a cordon ends, the worker is on probation: it starts one attempt at
a time, and the next failure that it is to blame for cordons it again, for twice as long.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from sqlalchemy.orm import Session

from assay.storage import schema, workers
from assay.storage.database import Database
from assay.storage.outbox import Topic, post

#: A cordon that only an operator ends.
FOREVER = datetime(9999, 12, 31, tzinfo=UTC)


def cordon(
    db: Database,
    session: Session,
    worker_id: str,
    reason: str,
    seconds: float | None = None,
    *,
    again: int = 0,
) -> schema.Worker:
    """Give a worker no new work for so long, or until it is uncordoned.

    `again`: how many times in a row it has been cordoned for failures.
    """
    worker = workers.locked(session, worker_id)
    now = db.now(session)
    worker.cordoned_until = FOREVER if seconds is None else now + timedelta(seconds=seconds)
    worker.cordon_reason, worker.cordons = reason, again
    session.flush()
    return worker


def uncordon(db: Database, session: Session, worker_id: str) -> schema.Worker:
    """Give a worker work again; what it failed at before is forgotten."""
    worker = workers.locked(session, worker_id)
    # When the last cordon ended: failures before that count no more.
    worker.cordoned_until, worker.cordon_reason = db.now(session), None
    worker.cordons = 0
    session.flush()
    post(session, Topic.SCHEDULE, "slots")
    return worker
