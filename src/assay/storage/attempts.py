"""Attempts: leases of measurements. Claim and commit are compare-and-swap on the lease token.

Zero rows changed means that somebody else owns the attempt: `Fenced` is raised and the sender
discards its work.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from assay.domain.errors import Fenced, NotFound
from assay.domain.ids import new_id
from assay.domain.placement import Placement
from assay.domain.states import (
    LIVE_ATTEMPT,
    AttemptState,
    Failure,
    FailureStage,
    MeasurementState,
)
from assay.storage import experiments, measurements, schema
from assay.storage.database import Database
from assay.storage.outbox import Topic, post
from assay.storage.rows import changed, get, insert_missing
from assay.storage.text import clean_json

_LIVE = [s.value for s in LIVE_ATTEMPT]


def assign(
    db: Database, session: Session, placement: Placement, ttl: timedelta
) -> schema.Attempt | None:
    """Give a queued measurement to a worker under a new lease; None if it is not queued."""
    taken = changed(
        session,
        update(schema.Measurement)
        .where(
            schema.Measurement.id == placement.measurement,
            schema.Measurement.state == MeasurementState.QUEUED.value,
        )
        .values(state=MeasurementState.RUNNING.value),
    )
    if not taken:
        return None
    measurement = get(session, schema.Measurement, placement.measurement, "measurement")
    attempt_id, now = new_id("att"), db.now(session)
    lease = schema.Lease(attempt_id=attempt_id)
    session.add(lease)
    session.flush()
    number = session.scalars(
        select(func.count()).where(schema.Attempt.measurement_id == measurement.id)
    ).one()
    attempt = schema.Attempt(
        id=attempt_id,
        measurement_id=measurement.id,
        number=number,
        worker_id=placement.worker,
        lease_token=lease.token,
        lease_expires_at=now + ttl,
        state=AttemptState.ASSIGNED.value,
        cpus=measurement.cpus,
        gpus=measurement.gpus,
        memory_bytes=measurement.memory_bytes,
        created_at=now,
    )
    session.add(attempt)
    session.flush()
    experiments.refresh_for_measurement(db, session, measurement.id)
    post(db, session, Topic.WORKER, placement.worker)
    return attempt


def subject(session: Session, attempt_id: str, worker_id: str, token: int) -> tuple[str, str]:
    """Which measurement an attempt is of, and of which environment.

    Raises:
        NotFound: there is no such attempt.
        Fenced: it is not this worker's, or was assigned with another token.
    """
    found = session.execute(
        select(
            schema.Measurement.id,
            schema.Measurement.environment_id,
            schema.Attempt.worker_id,
            schema.Attempt.lease_token,
        )
        .join(schema.Attempt, schema.Attempt.measurement_id == schema.Measurement.id)
        .where(schema.Attempt.id == attempt_id)
    ).one_or_none()
    if found is None:
        raise NotFound(f"attempt {attempt_id!r} was not found")
    if (found.worker_id, found.lease_token) != (worker_id, token):
        raise Fenced(f"attempt {attempt_id} is not held by this worker with token {token}")
    return found.id, found.environment_id


def claim(
    db: Database, session: Session, attempt_id: str, worker_id: str, token: int, ttl: timedelta
) -> None:
    """The worker takes an assigned attempt. Repeating it is harmless.

    Raises:
        Fenced: the attempt is not, or no longer, this worker's.
    """
    now = db.now(session)
    claimed = changed(
        session,
        update(schema.Attempt)
        .where(
            schema.Attempt.id == attempt_id,
            schema.Attempt.worker_id == worker_id,
            schema.Attempt.lease_token == token,
            schema.Attempt.state.in_([AttemptState.ASSIGNED.value, AttemptState.STARTING.value]),
        )
        .values(state=AttemptState.STARTING.value, lease_expires_at=now + ttl),
    )
    if not claimed:
        raise Fenced(f"attempt {attempt_id} cannot be claimed with lease token {token}")


@dataclass(frozen=True)
class Piece:
    """Log bytes at an offset of a stream."""

    stream: str
    offset: int
    data: bytes


@dataclass(frozen=True)
class Telemetry:
    """Log bytes and curve points; storing them twice changes nothing."""

    logs: tuple[Piece, ...] = ()
    points: tuple[tuple[int, float | None, dict[str, float]], ...] = ()


def progress(
    db: Database,
    session: Session,
    attempt_id: str,
    worker_id: str,
    token: int,
    telemetry: Telemetry,
    state: AttemptState | None = None,
) -> None:
    """Store telemetry and move a live attempt forward. Raises Fenced."""
    attempt = _held(session, attempt_id, worker_id, token)
    if attempt.state not in _LIVE:
        raise Fenced(f"attempt {attempt_id} is {attempt.state}")
    if state is not None and _is_forward(attempt.state, state):
        attempt.state = state.value
        if attempt.started_at is None:
            attempt.started_at = db.now(session)
            _mark_started(session, attempt.measurement_id)
    _store_telemetry(session, attempt_id, telemetry)


def _is_forward(current: str, new: AttemptState) -> bool:
    order = [AttemptState.ASSIGNED, AttemptState.STARTING, AttemptState.RUNNING]
    order.append(AttemptState.FINALIZING)
    return order.index(new) > order.index(AttemptState(current))


@dataclass(frozen=True)
class Outcome:
    """How an attempt ended."""

    state: AttemptState
    failure: Failure | None = None
    infrastructure: bool = False
    metric: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    provenance: dict[str, Any] = field(default_factory=dict)
    prefix: str = ""
    artifacts: tuple[dict[str, Any], ...] = ()
    started: bool = False
    seconds: float = 0.0


def finish(
    db: Database,
    session: Session,
    attempt_id: str,
    worker_id: str,
    token: int,
    outcome: Outcome,
    telemetry: Telemetry,
) -> AttemptState:
    """Commit the end of an attempt, once: its result or failure, and what follows from it.

    A repetition (the first answer got lost) is answered with the state that was stored.

    Raises:
        Fenced: the lease passed to somebody else. Nothing is stored.
    """
    attempt = _held(session, attempt_id, worker_id, token)
    measurements.hold(session, [attempt.measurement_id])
    now = db.now(session)
    if attempt.state not in _LIVE:
        if attempt.state in (AttemptState.LOST.value, AttemptState.FENCED.value):
            attempt.released_at = attempt.released_at or now
            session.commit()  # the host says that it is gone: that holds even though it is fenced
            raise Fenced(f"attempt {attempt_id} is {attempt.state}; its result is discarded")
        return AttemptState(attempt.state)
    attempt.state, attempt.finished_at, attempt.released_at = outcome.state.value, now, now
    attempt.failure = clean_json(outcome.failure.as_dict()) if outcome.failure else None
    if outcome.started and attempt.started_at is None:
        attempt.started_at = now - timedelta(seconds=outcome.seconds)
    session.flush()
    if outcome.started:
        _mark_started(session, attempt.measurement_id)
    _store_telemetry(session, attempt_id, telemetry)
    if outcome.artifacts:
        session.add(
            schema.Artifacts(
                attempt_id=attempt_id, prefix=outcome.prefix, files=list(outcome.artifacts)
            )
        )
    _decide(db, session, attempt, outcome)
    post(db, session, Topic.SCHEDULE, "slots")
    return outcome.state


def _decide(db: Database, session: Session, attempt: schema.Attempt, outcome: Outcome) -> None:
    measurement_id = attempt.measurement_id
    if outcome.infrastructure and outcome.failure is not None:
        measurements.retry(db, session, measurement_id, outcome.failure)
    elif outcome.state is AttemptState.SUCCEEDED:
        assert outcome.metric is not None
        session.add(
            schema.Result(
                measurement_id=measurement_id,
                attempt_id=attempt.id,
                metric=outcome.metric,
                metrics=clean_json(outcome.metrics),
                provenance=clean_json(outcome.provenance),
                seconds=outcome.seconds,
                created_at=db.now(session),
            )
        )
        session.flush()
        measurements.settle(db, session, measurement_id, MeasurementState.SUCCEEDED)
    elif outcome.state is AttemptState.CANCELLED:
        measurements.settle(db, session, measurement_id, MeasurementState.CANCELLED)
    else:
        measurements.settle(db, session, measurement_id, MeasurementState.FAILED, outcome.failure)


def lose(
    db: Database, session: Session, attempt: schema.Attempt, why: str, *, released: bool
) -> None:
    """Declare a live attempt lost and let its measurement be tried again.

    `released`: the host itself says that nothing of the attempt runs any more. Otherwise its
    resources stay taken until it does.
    """
    now = db.now(session)
    if released:
        attempt.released_at = attempt.released_at or now
    if attempt.state not in _LIVE:
        session.flush()
        return
    failure = Failure(FailureStage.START, "lost", why, retryable=True)
    attempt.state, attempt.finished_at = AttemptState.LOST.value, now
    attempt.failure = clean_json(failure.as_dict())
    session.flush()
    measurements.retry(db, session, attempt.measurement_id, failure)
    post(db, session, Topic.WORKER, attempt.worker_id)


def any_expired(session: Session, now: datetime) -> bool:
    """Whether a live lease has run out."""
    found = session.scalars(
        select(schema.Attempt.id)
        .where(schema.Attempt.state.in_(_LIVE), schema.Attempt.lease_expires_at < now)
        .limit(1)
    ).first()
    return found is not None


def expire(db: Database, session: Session, now: datetime) -> int:
    """Declare attempts lost whose lease has run out. Returns how many."""
    rows = session.scalars(
        select(schema.Attempt)
        .where(schema.Attempt.state.in_(_LIVE), schema.Attempt.lease_expires_at < now)
        .order_by(schema.Attempt.id)
        .with_for_update(key_share=True)
    ).all()
    measurements.hold(session, [attempt.measurement_id for attempt in rows])
    for attempt in rows:
        lose(
            db,
            session,
            attempt,
            "its worker was not heard of until the lease ran out",
            released=False,
        )
    return len(rows)


def renew_all(session: Session, until: datetime) -> None:
    """Extend every live lease: after an outage nothing is lost for one full lease."""
    changed(
        session,
        update(schema.Attempt)
        .where(schema.Attempt.state.in_(_LIVE), schema.Attempt.lease_expires_at < until)
        .values(lease_expires_at=until),
    )


def _held(session: Session, attempt_id: str, worker_id: str, token: int) -> schema.Attempt:
    attempt = session.scalars(
        select(schema.Attempt)
        .where(schema.Attempt.id == attempt_id)
        .with_for_update(key_share=True)
    ).one_or_none()
    if attempt is None or attempt.worker_id != worker_id or attempt.lease_token != token:
        raise Fenced(f"attempt {attempt_id} is not held by this worker with token {token}")
    return attempt


def _mark_started(session: Session, measurement_id: str) -> None:
    linked = select(schema.ExperimentMeasurement.experiment_id).where(
        schema.ExperimentMeasurement.measurement_id == measurement_id
    )
    changed(
        session,
        update(schema.Experiment)
        .where(schema.Experiment.id.in_(linked), schema.Experiment.was_started.is_(False))
        .values(was_started=True),
    )


def _store_telemetry(session: Session, attempt_id: str, telemetry: Telemetry) -> None:
    insert_missing(
        session,
        schema.LogChunk,
        [
            {
                "attempt_id": attempt_id,
                "stream": piece.stream,
                "byte_offset": piece.offset,
                "data": piece.data,
            }
            for piece in telemetry.logs
        ],
    )
    rows = [
        {"attempt_id": attempt_id, "seq": seq, "step": step, "values": clean_json(values)}
        for seq, step, values in telemetry.points
    ]
    for start in range(0, len(rows), 500):  # SQLite bounds the variables of a statement
        insert_missing(session, schema.CurvePoint, rows[start : start + 500])
