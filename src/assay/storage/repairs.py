"""Repairs: a codebase that crashes early in training goes back to the model that wrote it.

The failed measurement stays as it is; the experiment lets go of it (role `replaced`), is
implemented again, and what comes of that is measured instead. The chain is kept here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import bindparam, select, update
from sqlalchemy.orm import Session

from assay.domain.failure_codes import FailureCode
from assay.domain.isolation import is_offline
from assay.domain.states import FailureStage
from assay.storage import samples, schema
from assay.storage.outbox import Topic, post
from assay.storage.rows import changed
from assay.storage.types import clock

#: A crash later than this is not sent back: it costs too much to try again.
EARLY = timedelta(minutes=5)
#: What a measurement is to an experiment.
SCORE, SMOKE, REPLACED = "score", "smoke", "replaced"
_PENDING = select(schema.Repair).where(
    schema.Repair.experiment_id == bindparam("experiment"), schema.Repair.state == "open"
)


@dataclass(frozen=True)
class Repair:
    """What is to be mended: the codebase, how it failed, and where the mending call is kept."""

    number: int
    codebase: str
    measurement: str
    failure: dict[str, Any]
    sample: int
    revision: int


def begin(session: Session, experiment_id: str, failure: dict[str, Any]) -> bool:
    """Take a failed experiment back to its model, if it may be. The caller changes its state."""
    if failure.get("stage") != FailureStage.TRAIN.value or not _is_crash(failure):
        return False
    work = session.execute(
        select(schema.Implementation, schema.Batch.options, schema.Experiment.codebase_id)
        .join(schema.Experiment, schema.Experiment.id == schema.Implementation.experiment_id)
        .join(schema.Batch, schema.Batch.id == schema.Experiment.batch_id)
        .where(schema.Experiment.id == experiment_id)
    ).one()
    implementation: schema.Implementation = work[0]
    # Of a batch that an older version stored, nothing was said: none.
    allowed = work.options.get("repairs", 0)
    if is_offline(implementation.executor) or implementation.repairs >= allowed:
        return False
    crashed = _early_crash(session, experiment_id)
    if crashed is None or implementation.winner is None:
        return False
    last = samples.last_revision(session, implementation.id, implementation.winner)
    session.add(
        schema.Repair(
            experiment_id=experiment_id,
            number=implementation.repairs,
            state="open",
            codebase_id=work.codebase_id,
            measurement_id=crashed,
            failure=failure,
            sample=implementation.winner,
            revision=last + 1,
            created_at=clock(),
        )
    )
    changed(
        session,
        update(schema.Implementation)
        .where(schema.Implementation.id == implementation.id)
        .values(
            state="implementing",
            repairs=schema.Implementation.repairs + 1,
            holder=None,
            lease_expires_at=None,
            finished_at=None,
        ),
    )
    link = schema.ExperimentMeasurement
    changed(
        session,
        update(link)
        .where(link.experiment_id == experiment_id, link.role == SCORE)
        .values(role=REPLACED),
    )
    post(session, Topic.IMPLEMENT, experiment_id)
    return True


def _is_crash(failure: dict[str, Any]) -> bool:
    return failure.get("code") == FailureCode.CRASHED


def _early_crash(session: Session, experiment_id: str) -> str | None:
    """The first of an experiment's measurements that crashed, if it did so early."""
    link, table, attempt = schema.ExperimentMeasurement, schema.Measurement, schema.Attempt
    rows = session.execute(
        select(table.id, table.failure, attempt.started_at, attempt.finished_at)
        .join(link, link.measurement_id == table.id)
        .join(attempt, attempt.measurement_id == table.id)
        .where(link.experiment_id == experiment_id, link.role == SCORE, table.state == "failed")
        .order_by(table.seed, table.id, attempt.number.desc())
    ).all()
    for measurement, failure, started, finished in rows:
        if failure and _is_crash(failure) and started and finished:
            return measurement if finished - started <= EARLY else None
    return None


def pending(session: Session, experiment_id: str) -> Repair | None:
    """The repair that is to be made now, if any."""
    row = session.scalars(_PENDING, {"experiment": experiment_id}).one_or_none()
    if row is None:
        return None
    return Repair(
        row.number, row.codebase_id, row.measurement_id, row.failure, row.sample, row.revision
    )


def close(session: Session, experiment_id: str, number: int, codebase: str | None = None) -> None:
    """End a repair: with the codebase it led to, or without one.

    Without one, what crashed is what decides the experiment.
    """
    table, link = schema.Repair, schema.ExperimentMeasurement
    changed(
        session,
        update(table)
        .where(table.experiment_id == experiment_id, table.number == number)
        .values(
            state="repaired" if codebase else "refused",
            repaired_id=codebase,
            finished_at=clock(),
        ),
    )
    if codebase is not None:
        return
    crashed = (
        select(schema.Measurement.id)
        .join(table, table.codebase_id == schema.Measurement.codebase_id)
        .where(table.experiment_id == experiment_id, table.number == number)
    )
    changed(
        session,
        update(link)
        .where(
            link.experiment_id == experiment_id,
            link.role == REPLACED,
            link.measurement_id.in_(crashed),
        )
        .values(role=SCORE),
    )


def abandon(session: Session, experiment_ids: Sequence[str]) -> None:
    """The experiments were cancelled: whatever repairs are open will not be made."""
    open_ = session.execute(
        select(schema.Repair.experiment_id, schema.Repair.number).where(
            schema.Repair.experiment_id.in_(experiment_ids), schema.Repair.state == "open"
        )
    ).all()
    for experiment_id, number in open_:
        close(session, experiment_id, number)


def of(session: Session, experiment_id: str) -> list[schema.Repair]:
    """All repairs of an experiment, in order."""
    return list(
        session.scalars(
            select(schema.Repair)
            .where(schema.Repair.experiment_id == experiment_id)
            .order_by(schema.Repair.number)
        )
    )
