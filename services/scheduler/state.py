"""What placement decides on, read from the database."""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime, timedelta

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from assay.domain.placement import Demand, Supply
from assay.domain.states import AttemptState, MeasurementState, WorkerState
from assay.storage import schema


def demands(session: Session, limit: int) -> list[Demand]:
    """Queued measurements, the oldest of the highest priority first."""
    rows = session.scalars(
        select(schema.Measurement)
        .where(schema.Measurement.state == MeasurementState.QUEUED.value)
        .order_by(
            schema.Measurement.priority.desc(),
            schema.Measurement.queued_at,
            schema.Measurement.id,
        )
        .limit(limit)
    ).all()
    lost = _lost_by(session, [row.id for row in rows if row.infrastructure_failures])
    return [
        Demand(
            measurement=row.id,
            cpus=row.cpus,
            gpus=row.gpus,
            memory_bytes=row.memory_bytes,
            hardware_class=row.hardware_class,
            priority=row.priority,
            budget_seconds=row.budget_seconds,
            queued_at=row.queued_at.timestamp(),
            needs_isolation=row.needs_isolation,
            avoid_workers=frozenset(lost[row.id]),
        )
        for row in rows
    ]


def _lost_by(session: Session, measurements: list[str]) -> dict[str, set[str]]:
    """Which workers lost an attempt of these measurements."""
    lost: dict[str, set[str]] = defaultdict(set)
    if not measurements:
        return lost
    for measurement, worker in session.execute(
        select(schema.Attempt.measurement_id, schema.Attempt.worker_id).where(
            schema.Attempt.measurement_id.in_(measurements),
            schema.Attempt.state == AttemptState.LOST.value,
        )
    ):
        lost[measurement].add(worker)
    return lost


def supplies(session: Session, now: datetime, lease: timedelta) -> list[Supply]:
    """What is free on workers that were heard of within a lease.

    Resources of an attempt are taken until its host says that it is gone, lost or not.
    """
    table = schema.Attempt
    held = {
        worker: (cpus, gpus, memory)
        for worker, cpus, gpus, memory in session.execute(
            select(
                table.worker_id,
                func.sum(table.cpus),
                func.sum(table.gpus),
                func.sum(table.memory_bytes),
            )
            .where(table.released_at.is_(None))
            .group_by(table.worker_id)
        )
    }
    workers = session.scalars(
        select(schema.Worker)
        .where(
            schema.Worker.state == WorkerState.ACTIVE.value,
            schema.Worker.draining.is_(False),
            schema.Worker.last_seen_at >= now - lease,
        )
        .order_by(schema.Worker.id)
    ).all()
    free = []
    for worker in workers:
        cpus, gpus, memory = held.get(worker.id, (0, 0, 0))
        free.append(
            Supply(
                worker=worker.id,
                cpus=worker.cpus - int(cpus),
                gpus=worker.gpus - int(gpus),
                memory_bytes=worker.memory_bytes - int(memory),
                hardware_class=worker.hardware_class,
                isolated=worker.isolated,
            )
        )
    return free
