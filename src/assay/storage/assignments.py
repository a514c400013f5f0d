"""Assigning: queued measurements become attempts of workers, many in one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy import Row, bindparam, func, insert, select, update
from sqlalchemy.orm import Session

from assay.domain.ids import new_id
from assay.domain.placement import Placement
from assay.domain.states import AttemptState, MeasurementState
from assay.storage import experiments, measurements, schema, software
from assay.storage.database import Database
from assay.storage.outbox import Topic, post_all
from assay.storage.rows import run, table_of

_TAKE = (
    update(table_of(schema.Measurement))
    .where(
        schema.Measurement.id.in_(bindparam("ids", expanding=True)),
        schema.Measurement.state == MeasurementState.QUEUED.value,
    )
    .values(state=MeasurementState.RUNNING.value, not_before=None)
    .returning(
        schema.Measurement.id,
        schema.Measurement.cpus,
        schema.Measurement.gpus,
        schema.Measurement.memory_bytes,
        func.coalesce(
            select(schema.Shape.bound_seconds)
            .where(schema.Shape.id == schema.Measurement.shape_id)
            .scalar_subquery(),
            0.0,
        ).label("bound_seconds"),
    )
)
_NUMBERS = (
    select(schema.Attempt.measurement_id, func.count().label("number"))
    .where(schema.Attempt.measurement_id.in_(bindparam("ids", expanding=True)))
    .group_by(schema.Attempt.measurement_id)
)
_WORKERS = select(schema.Worker).where(schema.Worker.id.in_(bindparam("workers", expanding=True)))
_LEASES = insert(schema.Lease).returning(schema.Lease.attempt_id, schema.Lease.token)
_ATTEMPTS = insert(schema.Attempt)


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
        _ATTEMPTS,
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


def _take(session: Session, ids: list[str]) -> Sequence[Row[*tuple[Any, ...]]]:
    """Compare-and-swap from queued to running."""
    return run(session, _TAKE, ids=ids).all()


def _numbers(session: Session, ids: list[str]) -> dict[str, int]:
    """How many attempts measurements had."""
    rows = run(session, _NUMBERS, ids=ids).mappings()
    return {row["measurement_id"]: row["number"] for row in rows}


def _software(session: Session, workers: set[str]) -> dict[str, dict[str, Any]]:
    """With what these workers measure now."""
    rows = session.scalars(_WORKERS, {"workers": list(workers)})
    return {row.id: software.of_worker(row) for row in rows}


def _tokens(session: Session, attempts: list[str]) -> dict[str, int]:
    """A new lease token for each attempt."""
    rows = [{"attempt_id": attempt} for attempt in attempts]
    return dict(session.execute(_LEASES, rows).all())
