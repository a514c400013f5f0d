"""Retries: what failed is measured again, and the failure stays on record.

Terminal states are final, so a retry never changes the row that failed. A measurement is followed
by its next replicate, an experiment by another one in a batch of its own, on the same codebase.
The API's routers call this.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from assay.contracts.batch import IdeaRequest
from assay.contracts.caps import Caps, OwnerSpending
from assay.domain.errors import Conflict
from assay.domain.states import ExperimentState, MeasurementKind, MeasurementState
from assay.storage import (
    batches,
    caps,
    environments,
    equivalences,
    measurements,
    repairs,
    schema,
)
from assay.storage.calls import Payer
from assay.storage.database import Database
from assay.storage.measurements import Identity, Terms
from assay.storage.rows import get

#: Codes of refusals.
NOTHING_FAILED, NOT_FINISHED = "nothing_failed", "not_finished"
WAS_CANCELLED, NOTHING_TO_MEASURE = "was_cancelled", "nothing_to_measure"


@dataclass(frozen=True)
class Retry:
    """The id of what measures again, and whether this request made it."""

    id: str
    is_new: bool


def measurement(
    db: Database, session: Session, measurement_id: str, owner: str, spending: OwnerSpending
) -> Retry:
    """Ask for the next replicate of a failed measurement, or find the one that was asked for.

    `spending`: the owner's caps.

    Raises:
        Conflict: it has not failed, or the owner's cap on GPU-hours is reached.
    """
    row = get(session, schema.Measurement, measurement_id, "measurement")
    kind = MeasurementKind(row.kind)
    if kind is not kind.baseline:
        raise Conflict(
            f"{measurement_id} is a {row.kind}, which decides nothing by itself; submit the idea "
            "again",
            code=NOTHING_TO_MEASURE,
        )
    _check_failed(measurement_id, row.state)
    identity = Identity(
        row.codebase_id,
        row.environment_id,
        row.profile,
        row.seed,
        equivalences.family(
            session, row.environment_id, row.profile, row.hardware_class, row.conditions_id
        ),
        kind,
    )
    now = db.now(session)
    terms = Terms(owner, now, needs_isolation=row.needs_isolation, again=True)
    if measurements.exists(session, identity, terms):
        return Retry(_request(db, session, identity, terms), is_new=False)
    _check_gpu_hours(db, session, row, owner, spending)
    return Retry(_request(db, session, identity, terms), is_new=True)


def _request(db: Database, session: Session, identity: Identity, terms: Terms) -> str:
    profile = environments.manifest(session, identity.environment).profiles[identity.profile]
    return measurements.request(db, session, identity, profile, terms)


def _check_gpu_hours(
    db: Database,
    session: Session,
    row: schema.Measurement,
    owner: str,
    spending: OwnerSpending,
) -> None:
    if not row.gpus:
        return
    reached = caps.reached(
        db,
        session,
        Payer(owner, batch="", search=None, implementation=""),
        Caps(owner=spending),
        more_gpu_hours=row.gpus * row.budget_seconds / 3600,
        kinds=["gpu_hours"],
    )
    if reached is not None:
        raise Conflict(f"with this measurement, {reached}; raise the cap", code=reached.code)


def experiment(db: Database, session: Session, experiment_id: str) -> Retry:
    """Submit the codebase of a failed experiment again, or find the retry that was asked for.

    Seeds that failed are measured anew, and results are shared. A retry that waits, runs or has
    succeeded is the answer to every later request; after one that failed, the next is made.

    Raises:
        Conflict: the experiment has not failed, or failed before there was something to measure.
    """
    row = get(session, schema.Experiment, experiment_id, "experiment")
    _check_failed(experiment_id, row.state)
    if not _has_failed_measurement(session, experiment_id):
        raise Conflict(
            f"{experiment_id} failed before its code was measured, so there is nothing to measure "
            "again; submit the idea again",
            code=NOTHING_TO_MEASURE,
        )
    # Requests for the same experiment wait for one another here. No other writer locks ideas, so
    # this lock cannot be part of a deadlock.
    idea = session.get_one(schema.Idea, row.idea_id, with_for_update={"key_share": True})
    latest = _latest_retry(session, experiment_id)
    ended_badly = (ExperimentState.FAILED.value, ExperimentState.CANCELLED.value)
    if latest is not None and latest.state not in ended_badly:
        return Retry(latest.id, is_new=False)
    batch = get(session, schema.Batch, row.batch_id, "batch")
    if batch.kind == MeasurementKind.CONTROL.value:
        raise Conflict(
            f"{experiment_id} measures {idea.reproduces} again; reproduce that once more instead",
            code=NOTHING_TO_MEASURE,
        )
    idea_again = IdeaRequest(text=idea.text, parents=[row.id], confirms=idea.confirms)
    changes = {"again": True, "novelty": "allow"}
    made = batches.repeat(db, session, batch, idea, idea_again, changes, retries=row.id)
    return Retry(made, is_new=True)


def _check_failed(what: str, state: str) -> None:
    """Raise Conflict unless this is the state of something that failed.

    Experiments and measurements have the same names for the states they end in.
    """
    if state == MeasurementState.FAILED.value:
        return
    if state == MeasurementState.SUCCEEDED.value:
        raise Conflict(f"{what} succeeded; only failures are retried", code=NOTHING_FAILED)
    if state == MeasurementState.CANCELLED.value:
        raise Conflict(f"{what} was cancelled; submit the idea again", code=WAS_CANCELLED)
    raise Conflict(f"{what} is {state}; wait until it has ended", code=NOT_FINISHED)


def _has_failed_measurement(session: Session, experiment_id: str) -> bool:
    link = schema.ExperimentMeasurement
    failed = (
        select(link.measurement_id)
        .join(schema.Measurement, schema.Measurement.id == link.measurement_id)
        .where(
            link.experiment_id == experiment_id,
            link.role == repairs.SCORE,
            schema.Measurement.state == MeasurementState.FAILED.value,
        )
        .limit(1)
    )
    return session.scalars(failed).first() is not None


def _latest_retry(session: Session, experiment_id: str) -> schema.Experiment | None:
    table = schema.Experiment
    return session.scalars(
        select(table)
        .join(schema.Idea, schema.Idea.id == table.idea_id)
        .where(schema.Idea.retries == experiment_id)
        .order_by(table.id.desc())
        .limit(1)
    ).first()
