"""Attempts that do not go on as they should: silent, late, never taken. Only the leader looks.

Every function looks again at the rows it is about to change, under a lock: what it was told was
read before, and a worker may have reported meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import ColumnElement, and_, case, or_, select, update
from sqlalchemy.orm import Session

from assay.domain.failure_codes import FailureCode
from assay.domain.states import LIVE_ATTEMPT, AttemptState
from assay.storage import attempts, measurements, schema
from assay.storage.attempts import Loss
from assay.storage.database import Database
from assay.storage.outbox import Topic, post_all
from assay.storage.rows import changed
from assay.storage.types import clock

_LIVE = [s.value for s in LIVE_ATTEMPT]
_SILENT = Loss("its worker was not heard of until the lease ran out", FailureCode.LOST)
_LATE = Loss("its worker did not end it in time", FailureCode.DEADLINE)
_IGNORED = Loss("its worker was heard of and did not take it", FailureCode.IGNORED, released=True)
_UNREACHED = Loss("its worker did not take it", FailureCode.UNCLAIMED, released=True)


def expire(db: Database, session: Session, now: datetime) -> int:
    """Declare attempts lost whose lease has run out. Returns how many.

    Those that were never claimed run nowhere.
    """
    rows = _locked(session, schema.Attempt.lease_expires_at < now)
    untaken = [row for row in rows if row.state == AttemptState.ASSIGNED.value]
    taken = [row for row in rows if row not in untaken]
    _hold(session, rows)
    lost = attempts.lose(db, session, untaken, _UNREACHED)
    return len(lost + attempts.lose(db, session, taken, _SILENT))


def end_late(db: Database, session: Session, ids: Sequence[str], now: datetime) -> int:
    """Declare attempts lost that are past their deadline. Returns how many."""
    rows = _locked(session, schema.Attempt.id.in_(ids), schema.Attempt.deadline_at < now)
    return len(attempts.lose(db, session, rows, _LATE))


def take_back(db: Database, session: Session, ids: Sequence[str]) -> int:
    """Give attempts up that their workers never took: they run nowhere. Returns how many."""
    rows = _locked(
        session,
        schema.Attempt.id.in_(ids),
        schema.Attempt.state == AttemptState.ASSIGNED.value,
    )
    heard = dict(
        session.execute(
            select(schema.Worker.id, schema.Worker.last_seen_at).where(
                schema.Worker.id.in_({attempt.worker_id for attempt in rows})
            )
        ).all()
    )
    ignored = [a for a in rows if heard[a.worker_id] > (a.rung_at or a.created_at)]
    unreached = [a for a in rows if a not in ignored]
    _hold(session, rows)
    taken = attempts.lose(db, session, ignored, _IGNORED)
    taken += attempts.lose(db, session, unreached, _UNREACHED)
    return len(taken)


def ring_again(db: Database, session: Session, ids: Sequence[str]) -> int:
    """Tell workers once more of attempts that they have not taken. Returns how many."""
    table = schema.Attempt
    rung = session.execute(
        update(table)
        .where(table.id.in_(ids), table.state == AttemptState.ASSIGNED.value)
        .values(rings=table.rings + 1, rung_at=clock())
        .returning(table.worker_id),
        execution_options={"synchronize_session": False},
    ).all()
    post_all(db, session, Topic.WORKER, (row.worker_id for row in rung))
    return len(rung)


def renew_all(session: Session, until: datetime) -> None:
    """Give every live attempt time until then: after an outage nothing is lost for a full lease.

    Deadlines too: what ended during the outage could not be reported.
    """
    table = schema.Attempt
    late = and_(table.deadline_at.is_not(None), table.deadline_at < until)
    changed(
        session,
        update(table)
        .where(table.state.in_(_LIVE), or_(table.lease_expires_at < until, late))
        .values(
            lease_expires_at=case(
                (table.lease_expires_at < until, until), else_=table.lease_expires_at
            ),
            deadline_at=case((late, until), else_=table.deadline_at),
            # An attempt that nobody could take has its time once more.
            rung_at=case((table.state == AttemptState.ASSIGNED.value, until), else_=table.rung_at),
        ),
    )


def _hold(session: Session, rows: Sequence[schema.Attempt]) -> None:
    """Lock what all of them decide, before any of it is changed."""
    measurements.hold(session, [attempt.measurement_id for attempt in rows])


def _locked(session: Session, *conditions: ColumnElement[bool]) -> Sequence[schema.Attempt]:
    return session.scalars(
        select(schema.Attempt)
        .where(schema.Attempt.state.in_(_LIVE), *conditions)
        .order_by(schema.Attempt.id)
        .with_for_update(key_share=True)
        .execution_options(populate_existing=True)
    ).all()
