"""What waits to be implemented and to be measured, and what comes next, for people to read.

The API asks this. What comes next is found by the code that decides: `implementations.unfinished`
for ideas, `placing` and `assay.domain.placement` for measurements. How many statements it takes
depends on how many kinds of measurement wait, and not on how many ideas, batches or owners.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple, TypeAlias

from sqlalchemy import and_, case, func, or_, select
from sqlalchemy.orm import Session

from assay.domain.placement import Outlook, Supply, outlook
from assay.domain.states import BatchState, ExperimentState, MeasurementState
from assay.storage import implementations, schema
from assay.storage.database import Database
from assay.storage.offers import Offers
from assay.storage.placing import (
    Rules,
    View,
    Waiting,
    heads,
    room_of,
    supplies,
    view,
    waiting,
    with_settings,
)
from assay.storage.types import epoch

#: What was done in so many seconds is the share that somebody had recently.
RECENT = timedelta(minutes=10)
#: No process that implements ideas has this name, so that to it all that is not held is free.
NOBODY = ""

#: An owner, and when a batch of that owner was submitted (seconds since 1970).
Of: TypeAlias = tuple[str, float]


class Ideas(NamedTuple):
    """Ideas of a batch that are not implemented: those that a process has under way, or, if
    `holder` is None, those that wait."""

    batch: str
    owner: str
    priority: int
    holder: str | None
    number: int


def ideas(db: Database, session: Session) -> list[Ideas]:
    """Return how many ideas of each batch wait, and how many each process has under way."""
    experiment, batch, table = schema.Experiment, schema.Batch, schema.Implementation
    is_held = and_(table.holder.is_not(None), table.lease_expires_at > db.now(session))
    holder = case((is_held, table.holder))
    priority = func.coalesce(batch.options["priority"].as_integer(), 0)
    rows = session.execute(
        select(batch.id, batch.owner, priority, holder, func.count())
        .select_from(experiment)
        .join(table, table.experiment_id == experiment.id)
        .join(batch, batch.id == experiment.batch_id)
        .where(
            experiment.state.in_(
                [ExperimentState.SUBMITTED.value, ExperimentState.IMPLEMENTING.value]
            ),
            batch.state == BatchState.RUNNING.value,
        )
        .group_by(batch.id, batch.owner, priority, holder)
        .order_by(batch.id)
    )
    return [Ideas(*row) for row in rows]


def next_ideas(
    db: Database, session: Session, limit: int, full: Sequence[str], far_ahead: Sequence[str]
) -> list[implementations.Waiting]:
    """Return the ideas that are begun next: first those that are not of the batches and owners
    that are `full` or `far_ahead`, then the others."""
    found = implementations.unfinished(
        db, session, NOBODY, limit=limit, full=full, far_ahead=far_ahead
    )
    if (full or far_ahead) and len(found) < limit:
        known = [each.id for each in found]
        more = limit - len(found)
        found += implementations.unfinished(db, session, NOBODY, limit=more, known=known)
    return found


def answers(db: Database, session: Session) -> dict[str, int]:
    """Return how many answers of models came for each batch, recently."""
    sample, implementation = schema.Sample, schema.Implementation
    rows = session.execute(
        select(schema.Experiment.batch_id, func.count())
        .select_from(sample)
        .join(implementation, implementation.id == sample.implementation_id)
        .join(schema.Experiment, schema.Experiment.id == implementation.experiment_id)
        .where(sample.finished_at > db.now(session) - RECENT)
        .group_by(schema.Experiment.batch_id)
    )
    return dict(rows.all())


@dataclass(frozen=True)
class Placing:
    """What a scheduler would decide now. `next` comes first first; `free` are the workers that get
    work, with what runs there."""

    seen: View
    free: Sequence[Supply]
    shapes: Mapping[str, Waiting]
    next: Sequence[Outlook]


def placing(db: Database, session: Session, rules: Rules, limit: int) -> Placing:
    """Return what would be placed now and what comes next, for each hardware class `limit`."""
    seen = view(db, session, rules.window)
    free = supplies(seen, rules)
    shapes = waiting(session, seen.now)
    at_work = {supply.worker for supply in free}
    hosts = [host for host in seen.hosts if host.worker in at_work]
    free = with_settings(free, Offers().find(session, shapes, hosts))
    policy = rules.policy
    limits = {
        shape.id: max(
            limit, min(room_of(shape, free, policy) + policy.reservations, policy.placements)
        )
        for shape in shapes
    }
    demands = heads(session, shapes, seen.now, free, limits)
    now, found = seen.now.timestamp(), list[Outlook]()
    for hardware_class in sorted({demand.hardware_class for demand in demands}):
        there = [demand for demand in demands if demand.hardware_class == hardware_class]
        found += outlook(there, free, now, policy, limit=limit)
    return Placing(seen, free, {shape.id: shape for shape in shapes}, found)


class Queued(NamedTuple):
    """Measurements of a batch that wait for a hardware class. `paused`: how many of them are tried
    again later, and `again_at` when the first of these is (seconds since 1970)."""

    hardware_class: str
    owner: str
    batch_at: float
    number: int
    paused: int
    again_at: float | None


def queued(db: Database, session: Session) -> list[Queued]:
    """Return how many measurements wait, by hardware class and batch."""
    table, shape = schema.Measurement, schema.Shape
    is_paused = table.not_before > db.now(session)
    rows = session.execute(
        select(
            shape.hardware_class,
            table.owner,
            epoch(table.batch_at),
            func.count(),
            func.sum(case((is_paused, 1), else_=0)),
            func.min(case((is_paused, epoch(table.not_before)))),
        )
        .join(shape, shape.id == table.shape_id)
        .where(table.state == MeasurementState.QUEUED.value)
        .group_by(shape.hardware_class, table.owner, table.batch_at)
    )
    return [Queued(*row) for row in rows]


def used(db: Database, session: Session) -> dict[str, dict[Of, float]]:
    """Return how many GPU-seconds attempts of each batch had recently, by hardware class; CPU-
    seconds where no GPU is needed."""
    attempt, measurement, worker = schema.Attempt, schema.Measurement, schema.Worker
    now = db.now(session)
    since, until = (now - RECENT).timestamp(), now.timestamp()
    began, ended = epoch(attempt.created_at), epoch(attempt.finished_at)
    end = func.coalesce(ended, until)
    seconds = end - case((began > since, began), else_=since)
    amount = case((attempt.gpus > 0, attempt.gpus), else_=attempt.cpus)
    rows = session.execute(
        select(
            worker.hardware_class,
            measurement.owner,
            epoch(measurement.batch_at),
            func.sum(seconds * amount),
        )
        .select_from(attempt)
        .join(measurement, measurement.id == attempt.measurement_id)
        .join(worker, worker.id == attempt.worker_id)
        .where(or_(attempt.finished_at > now - RECENT, attempt.released_at.is_(None)))
        .group_by(worker.hardware_class, measurement.owner, measurement.batch_at)
    )
    found: dict[str, dict[Of, float]] = {}
    for name, owner, batch_at, sum_ in rows:
        found.setdefault(name, {})[owner, batch_at or 0.0] = max(0.0, float(sum_))
    return found


class OwnBatch(NamedTuple):
    """A batch as its owner sees it in the queue."""

    id: str
    owner: str
    environment: str
    profile: str
    priority: int
    created_at: datetime


def unfinished_batches(session: Session, owner: str) -> dict[Of, OwnBatch]:
    """Return the batches of an owner that are not finished, the oldest first."""
    table = schema.Batch
    priority = func.coalesce(table.options["priority"].as_integer(), 0)
    rows = session.execute(
        select(
            *(table.id, table.owner, table.environment_id, table.profile),
            priority,
            table.created_at,
            epoch(table.created_at),
        )
        .where(table.owner == owner, table.finished_at.is_(None))
        .order_by(table.id)
    )
    return {(row[1], row[6]): OwnBatch(*row[:6]) for row in rows}
