"""The software of workers: what of it may decide how a codebase ends.

`assignments.py` stores it with every attempt, because a worker's row changes when the worker is
upgraded. `measurements.py` compares it before an old failure is shared.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from assay.domain.states import WorkerState
from assay.storage import schema

#: What a worker tells about its software. Older workers do not tell all of it.
_SOFTWARE = ("python", "torch", "numpy", "driver")


def of_worker(worker: schema.Worker) -> dict[str, Any]:
    """Return the software with which a worker measures now."""
    software = {name: worker.info[name] for name in _SOFTWARE if worker.info.get(name)}
    return {
        "assay": worker.version,
        "sandbox": worker.sandbox,
        "isolated": worker.isolated,
        **{name: str(version) for name, version in software.items()},
    }


def have_changed(session: Session, measurement: schema.Measurement) -> bool:
    """Return whether no live worker that fits a measurement is like the one that measured it.

    Without a live worker there is nothing to compare with, so nothing has changed. An attempt
    without it was made by a version that did not store it.
    """
    table = schema.Worker
    fitting = session.scalars(
        select(table).where(
            table.state == WorkerState.ACTIVE.value,
            table.hardware_class == measurement.hardware_class,
            table.cpus >= measurement.cpus,
            table.gpus >= measurement.gpus,
            table.memory_bytes >= measurement.memory_bytes,
        )
    ).all()
    now = [
        of_worker(worker)
        for worker in fitting
        if worker.isolated or not measurement.needs_isolation
    ]
    return bool(now) and _of_last_attempt(session, measurement.id) not in now


def _of_last_attempt(session: Session, measurement_id: str) -> dict[str, Any] | None:
    table = schema.Attempt
    return session.scalars(
        select(table.software)
        .where(table.measurement_id == measurement_id)
        .order_by(table.number.desc())
        .limit(1)
    ).first()
