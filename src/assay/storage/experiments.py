"""Experiments and batches: their states, and the events that tell of them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import groupby
from typing import Any

from sqlalchemy import Row, bindparam, insert, select, update
from sqlalchemy.orm import Session, aliased

from assay.domain.failure_codes import Failure
from assay.domain.states import (
    TERMINAL_EXPERIMENT,
    TERMINAL_MEASUREMENT,
    BatchState,
    ExperimentState,
    MeasurementState,
)
from assay.storage import baselines, repairs, schema, webhooks
from assay.storage.database import Database
from assay.storage.notices import note
from assay.storage.rows import changed, get, run, table_of
from assay.storage.text import clean_json
from assay.storage.types import clock

_TERMINAL = [s.value for s in TERMINAL_EXPERIMENT]
_MEASURED = {s.value for s in TERMINAL_MEASUREMENT}
#: The values to be set are parameters with the names of their columns.
_MOVE = (
    update(table_of(schema.Experiment))
    .where(
        schema.Experiment.id == bindparam("experiment"),
        schema.Experiment.state.not_in(_TERMINAL),
    )
    .returning(schema.Experiment.batch_id)
)
_END = _MOVE.values(finished_at=clock())
_EVENT = insert(table_of(schema.Event)).values(
    batch_id=bindparam("batch"),
    experiment_id=bindparam("experiment"),
    type=bindparam("kind"),
    data=bindparam("content"),
    created_at=clock(),
)
_RAISE_VERSIONS = (
    update(table_of(schema.Batch))
    .where(schema.Batch.id.in_(bindparam("batches", expanding=True)))
    .values(version=schema.Batch.version + 1)
)
_ANY_OPEN = (
    select(schema.Experiment.id)
    .where(
        schema.Experiment.batch_id == bindparam("batch"),
        schema.Experiment.state.not_in(_TERMINAL),
    )
    .limit(1)
)
#: Unfinished experiments that a measurement decides, each with all of its measurements.
_MINE = aliased(schema.ExperimentMeasurement)
_DECIDED = (
    select(
        schema.Experiment.id,
        schema.Experiment.state,
        schema.Measurement.state.label("measured"),
        schema.Measurement.failure,
    )
    .join(_MINE, _MINE.experiment_id == schema.Experiment.id)
    .join(
        schema.ExperimentMeasurement,
        schema.ExperimentMeasurement.experiment_id == schema.Experiment.id,
    )
    .join(schema.Measurement, schema.Measurement.id == schema.ExperimentMeasurement.measurement_id)
    .where(
        _MINE.measurement_id == bindparam("measurement"),
        _MINE.role == repairs.SCORE,
        schema.ExperimentMeasurement.role == repairs.SCORE,
        schema.Experiment.state.not_in(_TERMINAL),
    )
    .order_by(schema.Experiment.id, schema.Measurement.seed, schema.Measurement.id)
)
_DECIDING = (
    select(schema.Measurement.state, schema.Measurement.failure)
    .join(
        schema.ExperimentMeasurement,
        schema.ExperimentMeasurement.measurement_id == schema.Measurement.id,
    )
    .where(
        schema.ExperimentMeasurement.experiment_id == bindparam("experiment"),
        schema.ExperimentMeasurement.role == repairs.SCORE,
    )
    .order_by(schema.Measurement.seed, schema.Measurement.id)
)
#: Those that measurements decide which have just started.
_START = (
    update(table_of(schema.Experiment))
    .where(
        schema.Experiment.id.in_(
            select(schema.ExperimentMeasurement.experiment_id).where(
                schema.ExperimentMeasurement.measurement_id.in_(
                    bindparam("measurements", expanding=True)
                ),
                schema.ExperimentMeasurement.role == repairs.SCORE,
            )
        ),
        schema.Experiment.state.not_in([*_TERMINAL, ExperimentState.RUNNING.value]),
    )
    .values(state=ExperimentState.RUNNING.value)
    .returning(schema.Experiment.id, schema.Experiment.batch_id)
)


def move(
    session: Session,
    experiment_id: str,
    state: ExperimentState,
    failure: Failure | None = None,
    codebase_id: str | None = None,
) -> bool:
    """Change an experiment's state unless it is terminal; tell whoever waits. False if it was."""
    values: dict[str, Any] = {"state": state.value}
    if codebase_id is not None:
        values["codebase_id"] = codebase_id
    if failure is not None:
        values["failure"] = clean_json(failure.as_dict())
    statement = _END if state.is_terminal else _MOVE
    batch_id = run(session, statement, experiment=experiment_id, **values).scalar_one_or_none()
    if batch_id is None:
        return False
    data: dict[str, Any] = {"state": state.value}
    if failure is not None:
        data["failure"] = values["failure"]
    tell(session, batch_id, "experiment.changed", experiment_id, data)
    if state.is_terminal:
        _finish_batch(session, batch_id)
    return True


def cancel(db: Database, session: Session, experiment_ids: Sequence[str]) -> list[str]:
    """Cancel the experiments among these that have not ended. Returns which those are."""
    table = schema.Experiment
    rows = session.execute(
        update(table)
        .where(table.id.in_(experiment_ids), table.state.not_in(_TERMINAL))
        .values(state=ExperimentState.CANCELLED.value, finished_at=clock())
        .returning(table.id, table.batch_id),
        execution_options={"synchronize_session": False},
    ).all()
    _tell_all(db, session, rows, ExperimentState.CANCELLED)
    for batch_id in sorted({row.batch_id for row in rows}):
        _finish_batch(session, batch_id)
    return [row.id for row in rows]


def tell(
    session: Session,
    batch_id: str,
    kind: str,
    experiment_id: str | None = None,
    data: dict[str, Any] | None = None,
) -> None:
    """Write an event.

    The batch's version is raised first: that locks its row until the commit, so ids of events
    increase in commit order within a batch, and a reader that resumes by id misses none.
    """
    _raise_versions(session, [batch_id])
    run(
        session,
        _EVENT,
        batch=batch_id,
        experiment=experiment_id,
        kind=kind,
        content=data or {},
    )
    note(session, batch_id)


def _finish_batch(session: Session, batch_id: str) -> None:
    if run(session, _ANY_OPEN, batch=batch_id).first() is not None:
        return
    finished = changed(
        session,
        update(schema.Batch)
        .where(schema.Batch.id == batch_id, schema.Batch.finished_at.is_(None))
        .values(finished_at=clock()),
    )
    if finished:
        ran = changed(
            session,
            update(schema.Batch)
            .where(schema.Batch.id == batch_id, schema.Batch.state == BatchState.RUNNING.value)
            .values(state=BatchState.FINISHED.value),
        )
        if ran:  # and was not cancelled
            baselines.hasten(session, get(session, schema.Batch, batch_id, "batch"))
        tell(session, batch_id, "batch.finished")
        webhooks.tell_of_batch(session, batch_id)


def _raise_versions(session: Session, batch_ids: Collection[str]) -> None:
    run(session, _RAISE_VERSIONS, batches=list(batch_ids))


def refresh_for_measurement(session: Session, measurement_id: str) -> None:
    """Bring every experiment that a measurement decides up to date with its measurements."""
    rows = run(session, _DECIDED, measurement=measurement_id).all()
    for experiment_id, group in groupby(rows, key=lambda row: row.id):
        found = list(group)
        measured = [(MeasurementState(row.measured), row.failure) for row in found]
        _decide(session, experiment_id, ExperimentState(found[0].state), measured)


def start(db: Database, session: Session, measurement_ids: Sequence[str]) -> None:
    """Bring experiments up to date whose measurements have just started to run."""
    started = run(session, _START, measurements=list(measurement_ids)).all()
    _tell_all(db, session, started, ExperimentState.RUNNING)


def _tell_all(
    db: Database, session: Session, moved: Sequence[Row[*tuple[Any, ...]]], state: ExperimentState
) -> None:
    """Write an event for each of these: the id of an experiment, and of its batch. See `tell`."""
    if not moved:
        return
    batch_ids = sorted({row.batch_id for row in moved})
    _raise_versions(session, batch_ids)
    for batch_id in batch_ids:
        note(session, batch_id)
    now = db.now(session)
    session.connection().execute(
        insert(schema.Event),
        [
            {
                "batch_id": row.batch_id,
                "experiment_id": row.id,
                "type": "experiment.changed",
                "data": {"state": state.value},
                "created_at": now,
            }
            for row in moved
        ],
    )


def refresh(session: Session, experiment_id: str, current: ExperimentState) -> None:
    """Derive an experiment's state from its measurements."""
    measured = run(session, _DECIDING, experiment=experiment_id)
    _decide(
        session,
        experiment_id,
        current,
        [(MeasurementState(row.state), row.failure) for row in measured],
    )


def _decide(
    session: Session,
    experiment_id: str,
    current: ExperimentState,
    measured: list[tuple[MeasurementState, dict[str, Any] | None]],
) -> None:
    state, failure = decide(measured)
    if failure is not None and repairs.begin(session, experiment_id, failure.as_dict()):
        state, failure = ExperimentState.IMPLEMENTING, None
    if state is not current:
        move(session, experiment_id, state, failure)


def decide(
    measured: list[tuple[MeasurementState, dict[str, Any] | None]],
) -> tuple[ExperimentState, Failure | None]:
    """An experiment's state, from the states and failures of its measurements."""
    states = {s for s, _ in measured}
    if not all(s.is_terminal for s in states):
        started = states - {MeasurementState.QUEUED}
        return (ExperimentState.RUNNING if started else ExperimentState.QUEUED), None
    if states == {MeasurementState.SUCCEEDED}:
        return ExperimentState.SUCCEEDED, None
    failures = [f for s, f in measured if s is MeasurementState.FAILED and f]
    if failures:
        return ExperimentState.FAILED, Failure.from_dict(failures[0])
    return ExperimentState.CANCELLED, None
