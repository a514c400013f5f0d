"""Assigning: queued measurements become attempts of workers, many in one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy import Row, func, insert, select, update
from sqlalchemy.orm import Session

from assay.domain.ids import new_id
from assay.domain.placement import Placement
from assay.domain.states import AttemptState, MeasurementState
from assay.storage import experiments, measurements, schema, software
from assay.storage.database import Database
from assay.storage.outbox import Topic, post_all


def assign(
    db: Database, session: Session, placements: Sequence[Placement], ttl: timedelta
) -> list[str]:
    """Give queued measurements to workers, each under a new lease, and tell the workers.

    Those that are no longer queued are left out. Returns the ids of the new attempts.
    """
    wanted = {placement.measurement: placement.worker for placement in placements}
    measurements.hold(session, list(wanted))
    taken = _take(session, list(wanted))
    if not taken:
        return []
    ids = [row.id for row in taken]
    numbers = _numbers(session, ids)
    attempts = {row.id: new_id("att") for row in taken}
    tokens = _tokens(session, list(attempts.values()))
    found = _software(session, {wanted[id_] for id_ in ids})
    now = db.now(session)
    session.execute(
        insert(schema.Attempt),
        [
            {
                "id": attempts[row.id],
                "measurement_id": row.id,
                "number": numbers.get(row.id, 0),
                "worker_id": wanted[row.id],
                "lease_token": tokens[attempts[row.id]],
                "lease_expires_at": now + ttl,
                "state": AttemptState.ASSIGNED.value,
                "cpus": row.cpus,
                "gpus": row.gpus,
                "memory_bytes": row.memory_bytes,
                "bound_seconds": row.bound_seconds,
                "devices": [],
                "software": found[wanted[row.id]],
                "created_at": now,
            }
            for row in taken
        ],
    )
    experiments.start(db, session, ids)
    post_all(db, session, Topic.WORKER, (wanted[id_] for id_ in ids))
    return list(attempts.values())


def _take(session: Session, ids: list[str]) -> Sequence[Row[str, int, int, int, float]]:
    """Compare-and-swap from queued to running."""
    table = schema.Measurement
    bound = (
        select(schema.Shape.bound_seconds)
        .where(schema.Shape.id == table.shape_id)
        .scalar_subquery()
    )
    return session.execute(
        update(table)
        .where(table.id.in_(ids), table.state == MeasurementState.QUEUED.value)
        .values(state=MeasurementState.RUNNING.value, not_before=None)
        .returning(
            table.id,
            table.cpus,
            table.gpus,
            table.memory_bytes,
            func.coalesce(bound, 0.0).label("bound_seconds"),
        ),
        execution_options={"synchronize_session": False},
    ).all()


def _numbers(session: Session, ids: list[str]) -> dict[str, int]:
    """How many attempts measurements had."""
    table = schema.Attempt
    return dict(
        session.execute(
            select(table.measurement_id, func.count())
            .where(table.measurement_id.in_(ids))
            .group_by(table.measurement_id)
        ).all()
    )


def _software(session: Session, workers: set[str]) -> dict[str, dict[str, Any]]:
    """With what these workers measure now."""
    rows = session.scalars(select(schema.Worker).where(schema.Worker.id.in_(workers)))
    return {row.id: software.of_worker(row) for row in rows}


def _tokens(session: Session, attempts: list[str]) -> dict[str, int]:
    """A new lease token for each attempt."""
    table = schema.Lease
    return dict(
        session.execute(
            insert(table).returning(table.attempt_id, table.token),
            [{"attempt_id": attempt} for attempt in attempts],
        ).all()
    )
