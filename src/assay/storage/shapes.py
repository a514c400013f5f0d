"""Shapes: what measurements need of a worker, each stored once."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session

from assay.contracts.environment import ARTIFACT_GB, Profile
from assay.domain.conditions import Conditions
from assay.domain.ids import new_id
from assay.domain.states import MeasurementState
from assay.domain.usage import REFERENCE_RUNS
from assay.storage import environments, schema
from assay.storage.rows import insert_missing, table_of

#: An attempt's start and its end, on top of what training and evaluation may take.
MARGIN_SECONDS = 60.0
#: What an artifact larger than usual may take to be stored, on top of that.
UPLOAD_BYTES_PER_SECOND = 10 << 20
_SAME = select(schema.Shape.id).where(
    *(
        column == bindparam(column.key)
        for column in table_of(schema.Shape).columns
        if not column.primary_key
    )
)


@dataclass(frozen=True)
class Setting:
    """Which workers a measurement's result may come from."""

    environment: str
    profile: str
    on: Conditions


def bound_seconds(profile: Profile) -> float:
    """The longest time from claim to end: a good result is evaluated twice.

    On a busy host everything may take longer. Where caps are multiples of the baseline's use, a
    host's first attempt runs that before, and others wait for it.
    """
    budget = profile.budget
    bound = budget.training_seconds + 2 * budget.evaluation_seconds
    if budget.is_relative:
        bound += REFERENCE_RUNS * (budget.seconds + budget.evaluation_seconds)
    more_bytes = max(0, profile.artifact_bytes - int(ARTIFACT_GB * (1 << 30)))
    upload = more_bytes / UPLOAD_BYTES_PER_SECOND
    return (1 + profile.patience) * bound + MARGIN_SECONDS + upload


def find(session: Session, setting: Setting, profile: Profile, *, needs_isolation: bool) -> str:
    """The id of a shape, which is stored if it is new."""
    values = {
        "hardware_class": setting.on.hardware_class,
        "cpus": profile.cpus,
        "gpus": profile.gpus,
        "memory_bytes": profile.memory_bytes,
        "needs_isolation": needs_isolation,
        "budget_seconds": profile.budget.training_seconds,
        "bound_seconds": bound_seconds(profile),
        "environment_id": setting.environment,
        "profile": setting.profile,
        "conditions_id": setting.on.id,
    }
    found: str | None = session.scalars(_SAME, values).one_or_none()
    if found is None:
        insert_missing(session, schema.Shape, [{"id": new_id("shp"), **values}])
        found = session.scalars(_SAME, values).one()
    return found


def of(session: Session, measurement: schema.Measurement, profile: Profile) -> str:
    """The shape of a measurement as it is now."""
    on = Conditions(measurement.hardware_class, (measurement.conditions_id,))
    setting = Setting(measurement.environment_id, measurement.profile, on)
    return find(session, setting, profile, needs_isolation=measurement.needs_isolation)


def fill(session: Session, limit: int = 500) -> int:
    """Give shapes to queued measurements that have none: an older version of the service, which
    knows none, may run beside this one while it is replaced. Returns how many there were."""
    rows = session.scalars(
        select(schema.Measurement)
        .where(
            schema.Measurement.state == MeasurementState.QUEUED.value,
            schema.Measurement.shape_id.is_(None),
        )
        .order_by(schema.Measurement.id)
        .limit(limit)
        .with_for_update(key_share=True, skip_locked=True)
    ).all()
    for row in rows:
        profile = environments.manifest(session, row.environment_id).profiles[row.profile]
        row.shape_id = of(session, row, profile)
        row.batch_at = row.batch_at or row.created_at
    session.flush()
    return len(rows)


def any_missing(session: Session) -> bool:
    """Whether a queued measurement has no shape."""
    found = session.scalars(
        select(schema.Measurement.id)
        .where(
            schema.Measurement.state == MeasurementState.QUEUED.value,
            schema.Measurement.shape_id.is_(None),
        )
        .limit(1)
    ).first()
    return found is not None
