"""What the queued measurements of a batch wait for, apart from their turn."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from sqlalchemy import ColumnElement, func, or_, select
from sqlalchemy.orm import Session

from assay.domain.conditions import UNRECORDED, differences
from assay.domain.states import MeasurementState
from assay.storage import conditions, environments, equivalences, schema, workers
from assay.storage.database import Database


class Pause(NamedTuple):
    """Measurements that failed for their host and are tried again, the first `at` a time."""

    number: int
    code: str
    at: datetime


class Want(NamedTuple):
    """Measurements for a hardware class of which no worker can take work."""

    number: int
    hardware_class: str


class Unmet(NamedTuple):
    """Measurements under conditions that no worker of their hardware class has: in which facts
    those differ. None if some have yet to show, by controls, that they measure alike."""

    number: int
    conditions: str
    differences: list[str] | None


def of_batch(db: Database, session: Session, batch: str) -> list[Pause | Want | Unmet]:
    """Return why queued measurements of a batch's ideas are not started; nothing where they only
    wait for others to end."""
    table = schema.Measurement
    code = (
        select(schema.Attempt.failure["code"].as_string())
        .where(schema.Attempt.measurement_id == table.id)
        .order_by(schema.Attempt.number.desc())
        .limit(1)
        .correlate(table)
        .scalar_subquery()
    )
    paused = session.execute(
        select(func.count(), code.label("code"), func.min(table.not_before))
        .where(_queued(batch), table.not_before > db.now(session))
        .group_by("code")
        .order_by("code")
    )
    wanted = session.execute(
        select(func.count(), table.hardware_class)
        .where(
            _queued(batch),
            or_(table.not_before.is_(None), table.not_before <= db.now(session)),
            table.hardware_class.not_in(workers.classes_at_work(db, session)),
        )
        .group_by(table.hardware_class)
        .order_by(table.hardware_class)
    )
    return [
        *(Pause(count, code or "", at) for count, code, at in paused),
        *(Want(count, name) for count, name in wanted),
        *_unmet(db, session, batch),
    ]


def _unmet(db: Database, session: Session, batch_id: str) -> list[Unmet]:
    batch = session.get_one(schema.Batch, batch_id)
    if batch.conditions_id == UNRECORDED:
        return []
    table = schema.Measurement
    number = session.scalar(
        select(func.count()).where(_queued(batch_id), table.conditions_id == batch.conditions_id)
    )
    if not number:
        return []
    of = (batch.environment_id, batch.profile, batch.hardware_class, batch.conditions_id)
    return unmet(db, session, number, *of)


def unmet(
    db: Database,
    session: Session,
    number: int,
    environment: str,
    profile: str,
    hardware_class: str,
    wanted_id: str,
) -> list[Unmet]:
    """Return why no worker measures under these conditions; nothing where one does, or where no
    worker of the hardware class can take work at all."""
    known = equivalences.of_setting(session, environment, profile)
    packages = environments.manifest(session, environment).packages
    hosts = [
        conditions.facts_of(worker, packages)
        for worker in workers.at_work(db, session, hardware_class)
    ]
    if not hosts or any(known.offers(host, wanted_id) for host in hosts):
        return []
    if any(known.effective(host) == wanted_id for host in hosts):
        return [Unmet(number, wanted_id, None)]
    wanted = conditions.facts_by_id(session, [wanted_id]).get(wanted_id, {})
    found = {
        said
        for host in hosts
        for said in differences(wanted, {n: t for n, t in host.all.items() if n in wanted})
    }
    return [Unmet(number, wanted_id, sorted(found))]


def _queued(batch: str) -> ColumnElement[bool]:
    """Whether a measurement is queued for an experiment of the batch."""
    of_batch = (
        select(schema.ExperimentMeasurement.measurement_id)
        .join(
            schema.Experiment, schema.Experiment.id == schema.ExperimentMeasurement.experiment_id
        )
        .where(schema.Experiment.batch_id == batch)
    )
    queued = schema.Measurement.state == MeasurementState.QUEUED.value
    return queued & schema.Measurement.id.in_(of_batch)
