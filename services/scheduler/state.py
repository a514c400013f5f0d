"""What placement decides on, read from the database."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, and_, false, func, or_, select, true
from sqlalchemy.orm import Session

from assay.domain.placement import Demand, Supply
from assay.domain.states import AttemptState, MeasurementState, WorkerState
from assay.storage import schema


def demands(session: Session, limit: int, free: Sequence[Supply]) -> list[Demand]:
    """Queued measurements that could start now, the oldest of the highest priority first.

    What fits nowhere now is left out: else a long queue for a class without workers would fill
    the window, and nothing behind it would ever be looked at.
    """
    table = schema.Measurement
    rows = session.execute(
        select(
            table.id,
            table.cpus,
            table.gpus,
            table.memory_bytes,
            table.hardware_class,
            table.priority,
            table.budget_seconds,
            table.queued_at,
            table.needs_isolation,
            table.infrastructure_failures,
        )
        .where(schema.Measurement.state == MeasurementState.QUEUED.value, or_(*map(_fits, free)))
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


def _fits(supply: Supply) -> ColumnElement[bool]:
    table = schema.Measurement
    return and_(
        table.hardware_class == supply.hardware_class,
        table.cpus <= supply.cpus,
        table.gpus <= supply.gpus,
        table.memory_bytes <= supply.memory_bytes,
        or_(true() if supply.isolated else false(), table.needs_isolation.is_(False)),
    )


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
