"""Attempts: leases of measurements. Claim and commit are compare-and-swap on the lease token.

Zero rows changed means that somebody else owns the attempt: `Fenced` is raised and the sender
discards its work.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NamedTuple

from sqlalchemy import bindparam, select, update
from sqlalchemy.orm import Session

from assay.domain.errors import Fenced, Forbidden, NotFound
from assay.domain.failure_codes import Failure, FailureCode, rules_of_stored
from assay.domain.placement import Placement
from assay.domain.states import (
    LIVE_ATTEMPT,
    AttemptState,
    FailureStage,
    MeasurementKind,
    MeasurementState,
)
from assay.storage import assignments, disclosure, measurements, repairs, schema
from assay.storage import telemetry as reports
from assay.storage.database import Database
from assay.storage.notices import note
from assay.storage.outbox import Topic, post, post_all
from assay.storage.rows import run, table_of
from assay.storage.telemetry import Piece, Telemetry
from assay.storage.text import clean_json
from assay.telemetry.counts import DUPLICATES

__all__ = ["Outcome", "Piece", "Rescored", "Telemetry"]
_log = logging.getLogger(__name__)
_LIVE = [s.value for s in LIVE_ATTEMPT]
_SUBJECT = (
    select(
        schema.Measurement.id,
        schema.Measurement.environment_id,
        schema.Measurement.kind,
        schema.Attempt.worker_id,
        schema.Attempt.lease_token,
    )
    .join(schema.Attempt, schema.Attempt.measurement_id == schema.Measurement.id)
    .where(schema.Attempt.id == bindparam("attempt"))
)
_HELD = (
    select(schema.Attempt)
    .where(schema.Attempt.id == bindparam("attempt"))
    .with_for_update(key_share=True)
)
_MARK_STARTED = (
    update(table_of(schema.Experiment))
    .where(
        schema.Experiment.id.in_(
            select(schema.ExperimentMeasurement.experiment_id).where(
                schema.ExperimentMeasurement.measurement_id == bindparam("measurement"),
                schema.ExperimentMeasurement.role == repairs.SCORE,
            )
        ),
        schema.Experiment.was_started.is_(False),
    )
    .values(was_started=True)
)
_ORDER = [
    AttemptState.ASSIGNED,
    AttemptState.STARTING,
    AttemptState.RUNNING,
    AttemptState.FINALIZING,
]


def assign(
    db: Database, session: Session, placement: Placement, ttl: timedelta
) -> schema.Attempt | None:
    """Give a queued measurement to a worker under a new lease; None if it is not queued."""
    given = assignments.assign(db, session, [placement], ttl)
    return session.get_one(schema.Attempt, given[0]) if given else None


class Subject(NamedTuple):
    """What an attempt is of."""

    measurement: str
    environment: str
    kind: MeasurementKind


def subject(session: Session, attempt_id: str, worker_id: str, token: int) -> Subject:
    """Which measurement an attempt is of, of which environment and kind.

    Raises:
        NotFound: there is no such attempt.
        Forbidden: it is another worker's.
        Fenced: it was assigned with another token.
    """
    found = run(session, _SUBJECT, attempt=attempt_id).one_or_none()
    if found is None:
        raise NotFound(f"attempt {attempt_id!r} was not found")
    _compare(attempt_id, found.worker_id, found.lease_token, worker_id, token)
    return Subject(found.id, found.environment_id, MeasurementKind(found.kind))


def _compare(attempt_id: str, owner: str, live: int, worker_id: str, token: int) -> None:
    """Refuse a report that is not by the holder of an attempt."""
    if owner != worker_id:
        _log.warning(
            "worker %s reported about attempt %s, which is of worker %s: refused",
            worker_id,
            attempt_id,
            owner,
        )
        raise Forbidden(f"attempt {attempt_id} is another worker's")
    if live != token:
        raise Fenced(f"attempt {attempt_id} is not held with lease token {token}")


def _held(session: Session, attempt_id: str, worker_id: str, token: int) -> schema.Attempt:
    """An attempt, locked, if the sender holds it."""
    attempt = session.scalars(_HELD, {"attempt": attempt_id}).one_or_none()
    if attempt is None:
        raise Fenced(f"attempt {attempt_id} is not known here")
    _compare(attempt_id, attempt.worker_id, attempt.lease_token, worker_id, token)
    return attempt


def claim(
    db: Database,
    session: Session,
    attempt_id: str,
    worker_id: str,
    token: int,
    ttl: timedelta,
    devices: Sequence[str] = (),
) -> None:
    """The worker takes an assigned attempt, with these GPUs. Repeating it is harmless.

    From now on the attempt has a deadline. It begins anew, once, when the worker says that the
    codebase runs: what came before (fetching and preparing data) is no part of the budget.

    Raises:
        Forbidden: the attempt is another worker's.
        Fenced: it is not to be claimed, or no longer.
    """
    attempt = _held(session, attempt_id, worker_id, token)
    if attempt.state not in (AttemptState.ASSIGNED.value, AttemptState.STARTING.value):
        raise Fenced(f"attempt {attempt_id} is {attempt.state} and cannot be claimed")
    now = db.now(session)
    if attempt.deadline_at is None and attempt.bound_seconds > 0:
        attempt.deadline_at = now + timedelta(seconds=attempt.bound_seconds)
    attempt.state, attempt.lease_expires_at = AttemptState.STARTING.value, now + ttl
    if devices:
        attempt.devices = list(devices)


def progress(
    db: Database,
    session: Session,
    attempt_id: str,
    worker_id: str,
    token: int,
    telemetry: Telemetry,
    state: AttemptState | None = None,
) -> None:
    """Store telemetry and move a live attempt forward. Raises Forbidden, Fenced."""
    attempt = _held(session, attempt_id, worker_id, token)
    if attempt.state not in _LIVE:
        raise Fenced(f"attempt {attempt_id} is {attempt.state}")
    if state is not None and _is_forward(attempt.state, state):
        attempt.state = state.value
        if attempt.started_at is None:
            attempt.started_at = now = db.now(session)
            if attempt.bound_seconds > 0:
                attempt.deadline_at = now + timedelta(seconds=attempt.bound_seconds)
            run(session, _MARK_STARTED, measurement=attempt.measurement_id)
    reports.store(session, attempt_id, telemetry)
    if telemetry.logs:
        note(session, attempt.measurement_id)


def _is_forward(current: str, new: AttemptState) -> bool:
    return _ORDER.index(new) > _ORDER.index(AttemptState(current))


@dataclass(frozen=True)
class Rescored:
    """What the second evaluation of an artifact gave, exact; `seconds` is its wall clock."""

    metric: float
    metrics: dict[str, float]
    seconds: float


@dataclass(frozen=True)
class Outcome:
    """How an attempt ended. A smoke that succeeded has no metric, everything else that did has.

    `unclear`: the host may be to blame, or the codebase. `rescored`: of a success that was scored
    twice.
    """

    state: AttemptState
    failure: Failure | None = None
    unclear: bool = False
    metric: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    rescored: Rescored | None = None
    provenance: dict[str, Any] = field(default_factory=dict)
    prefix: str = ""
    artifacts: tuple[dict[str, Any], ...] = ()
    started: bool = False
    seconds: float = 0.0

    @property
    def is_retried(self) -> bool:
        """Whether the measurement is queued again."""
        failed = self.failure if self.state is AttemptState.FAILED else None
        return failed is not None and failed.rules.retried

    @property
    def counts_against_worker(self) -> bool:
        """Whether it counts among the failures for which a worker is cordoned."""
        failed = self.failure if self.state is AttemptState.FAILED else None
        return failed is not None and failed.rules.counts_against_worker


def finish(
    db: Database,
    session: Session,
    attempt_id: str,
    worker_id: str,
    token: int,
    outcome: Outcome,
    telemetry: Telemetry,
    retry_after: timedelta = measurements.RETRY_AFTER,
) -> AttemptState:
    """Commit the end of an attempt, once: its result or failure, and what follows from it.

    A repetition (the first answer got lost) is answered with the state that was stored.

    Raises:
        Forbidden: the attempt is another worker's.
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
        DUPLICATES.inc()
        return AttemptState(attempt.state)
    attempt.state, attempt.finished_at, attempt.released_at = outcome.state.value, now, now
    attempt.failure = clean_json(outcome.failure.as_dict()) if outcome.failure else None
    attempt.infrastructure = outcome.counts_against_worker
    if outcome.started and attempt.started_at is None:  # no report said so before
        attempt.started_at = now - timedelta(seconds=outcome.seconds)
    session.flush()
    if attempt.started_at is not None:  # also for who asked for the measurement since then
        run(session, _MARK_STARTED, measurement=attempt.measurement_id)
    reports.store(session, attempt_id, telemetry)
    note(session, attempt.measurement_id)
    if outcome.artifacts:
        session.add(
            schema.Artifacts(
                attempt_id=attempt_id, prefix=outcome.prefix, files=list(outcome.artifacts)
            )
        )
    post(session, Topic.SCHEDULE, "slots")
    # Last: from here on whoever else ends something of this batch waits for the commit.
    _decide(db, session, attempt, outcome, retry_after)
    return outcome.state


def _decide(
    db: Database,
    session: Session,
    attempt: schema.Attempt,
    outcome: Outcome,
    retry_after: timedelta,
) -> None:
    measurement_id = attempt.measurement_id
    if outcome.failure is not None:
        disclosure.count_failure(
            session, measurement_id, outcome.failure.stage, outcome.provenance
        )
    if outcome.failure is not None and outcome.is_retried:
        measurements.retry(db, session, measurement_id, outcome.failure, retry_after)
    elif outcome.unclear and outcome.failure is not None and not _failed_before(session, attempt):
        measurements.try_once_more(db, session, measurement_id, retry_after)
    elif outcome.state is AttemptState.SUCCEEDED:
        _store_result(session, attempt, outcome)
        measurements.settle(session, measurement_id, MeasurementState.SUCCEEDED)
    elif outcome.state is AttemptState.CANCELLED:
        measurements.settle(session, measurement_id, MeasurementState.CANCELLED)
    else:
        measurements.settle(session, measurement_id, MeasurementState.FAILED, outcome.failure)


def _failed_before(session: Session, attempt: schema.Attempt) -> bool:
    """Whether an earlier attempt of the measurement ended for a reason of its codebase, too."""
    earlier = session.scalars(
        select(schema.Attempt.failure).where(
            schema.Attempt.measurement_id == attempt.measurement_id,
            schema.Attempt.id != attempt.id,
            schema.Attempt.state == AttemptState.FAILED.value,
        )
    )
    return any(not rules_of_stored(failure).retried for failure in earlier if failure)


def _store_result(session: Session, attempt: schema.Attempt, outcome: Outcome) -> None:
    """Store what a success measured, and what a second evaluation of it gave."""
    measured = session.get_one(schema.Measurement, attempt.measurement_id)
    is_scored = MeasurementKind(measured.kind).is_scored
    assert is_scored == (outcome.metric is not None), "all but smokes have a metric"
    result = schema.Result(
        measurement_id=measured.id,
        attempt_id=attempt.id,
        metric=outcome.metric,
        metrics=clean_json(outcome.metrics) if is_scored else {},
        provenance=clean_json(outcome.provenance),
        seconds=outcome.seconds,
        created_at=attempt.finished_at,
    )
    if is_scored:
        disclosure.count_success(session, result)
    session.add(result)
    session.flush()
    if is_scored and outcome.rescored is not None:
        _store_rescore(session, result, outcome.rescored)


def _store_rescore(session: Session, result: schema.Result, found: Rescored) -> None:
    rescore = schema.Rescore(
        measurement_id=result.measurement_id,
        metric=found.metric,
        metrics=clean_json(found.metrics),
        seconds=found.seconds,
        created_at=result.created_at,
    )
    disclosure.count_rescore(session, result, rescore)
    session.add(rescore)
    session.flush()


@dataclass(frozen=True)
class Loss:
    """Why attempts are lost.

    `released`: nothing of them runs any more; otherwise their resources stay taken until the
    host says so.
    """

    why: str
    code: FailureCode
    released: bool = False
    state: AttemptState = AttemptState.LOST


VANISHED = Loss("its worker no longer runs it", FailureCode.LOST, released=True)
RESTARTED = Loss("its worker was restarted", FailureCode.WORKER_RESTARTED, released=True)
REMOVED = Loss("its worker was removed", FailureCode.WORKER_REMOVED, released=True)
STOPPING = Loss("its worker is stopping", FailureCode.UNCLAIMED, released=True)
WITHDRAWN = Loss(
    "nobody wanted it any more",
    FailureCode.UNCLAIMED,
    released=True,
    state=AttemptState.CANCELLED,
)


def lose(
    db: Database, session: Session, attempts: Iterable[schema.Attempt], loss: Loss
) -> list[str]:
    """Declare live attempts lost and let their measurements be tried again.

    The rows are locked. Those that have ended are only released. Returns the ids of the lost.
    """
    rows = list(attempts)
    measurements.hold(session, [attempt.measurement_id for attempt in rows])
    now, lost = db.now(session), []
    for attempt in rows:
        if loss.released:
            attempt.released_at = attempt.released_at or now
        if attempt.state not in _LIVE:
            continue
        failure = Failure(FailureStage.START, loss.code, loss.why)
        attempt.state, attempt.finished_at = loss.state.value, now
        attempt.failure = clean_json(failure.as_dict())
        attempt.infrastructure = failure.rules.counts_against_worker
        session.flush()
        measurements.retry(db, session, attempt.measurement_id, failure)
        lost.append(attempt)
    session.flush()
    post_all(db, session, Topic.WORKER, (attempt.worker_id for attempt in lost))
    return [attempt.id for attempt in lost]
