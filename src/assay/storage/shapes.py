"""Shapes: what measurements need of a worker, each stored once."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from assay.contracts.environment import Profile
from assay.domain.ids import new_id
from assay.storage import schema
from assay.storage.rows import insert_missing

#: An attempt's start and its end, on top of what training and evaluation may take.
MARGIN_SECONDS = 60.0


def bound_seconds(profile: Profile) -> float:
    """The longest time from claim to end: a good result is evaluated twice."""
    budget = profile.budget
    return budget.seconds + 2 * budget.evaluation_seconds + MARGIN_SECONDS


def find(session: Session, hardware_class: str, profile: Profile, *, needs_isolation: bool) -> str:
    """The id of a shape, which is stored if it is new."""
    values = {
        "hardware_class": hardware_class,
        "cpus": profile.cpus,
        "gpus": profile.gpus,
        "memory_bytes": profile.memory_bytes,
        "needs_isolation": needs_isolation,
        "budget_seconds": profile.budget.seconds,
        "bound_seconds": bound_seconds(profile),
    }
    same = select(schema.Shape.id).where(
        *(getattr(schema.Shape, name) == value for name, value in values.items())
    )
    found = session.scalars(same).one_or_none()
    if found is None:
        insert_missing(session, schema.Shape, [{"id": new_id("shp"), **values}])
        found = session.scalars(same).one()
    return found


def of(session: Session, measurement: schema.Measurement, profile: Profile) -> str:
    """The shape of a measurement as it is now."""
    return find(
        session,
        measurement.hardware_class,
        profile,
        needs_isolation=measurement.needs_isolation,
    )
