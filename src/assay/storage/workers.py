"""Workers: registration, and the sync that renews leases and hands out work."""

from __future__ import annotations

import hashlib
import secrets
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, select, update
from sqlalchemy.orm import Session

from assay.contracts.worker import (
    AttemptSpec,
    HeldAttempt,
    RescoreRule,
    SyncRequest,
    SyncResponse,
    WorkerRegistration,
)
from assay.domain.errors import Conflict, NotFound
from assay.domain.ids import new_id
from assay.domain.metrics import Sample
from assay.domain.rescore import rescore_rule
from assay.domain.states import LIVE_ATTEMPT, AttemptState, WorkerState
from assay.storage import attempts, environments, measurements, schema
from assay.storage.database import Database
from assay.storage.outbox import Topic, post
from assay.storage.rows import changed, get

_LIVE = [s.value for s in LIVE_ATTEMPT]


def new_token() -> str:
    """A worker token. Only its hash is stored."""
    return f"asw_{secrets.token_urlsafe(32)}"


def token_hash(token: str) -> str:
    """What is stored of a token."""
    return hashlib.sha256(token.encode()).hexdigest()


def admit(db: Database, name: str, token: str) -> str:
    """Let a worker of that name in with that token, in place of any it had. Returns its id."""
    with db.write() as session:
        row = session.scalars(
            select(schema.Worker).where(schema.Worker.name == name)
        ).one_or_none()
        if row is None:
            row = schema.Worker(
                id=new_id("wrk"),
                name=name,
                token_hash=token_hash(token),
                incarnation="",
                state=WorkerState.STOPPED.value,
                cpus=0,
                gpus=0,
                memory_bytes=0,
                hardware_class="",
                sandbox="",
                isolated=False,
                guarantees={},
                info={},
                last_seen_at=db.now(session),
            )
            session.add(row)
        row.token_hash = token_hash(token)
        return row.id


def by_token(session: Session, token: str) -> str | None:
    """The id of the worker that holds the token."""
    return session.scalars(
        select(schema.Worker.id).where(schema.Worker.token_hash == token_hash(token))
    ).one_or_none()


def register(
    db: Database, session: Session, worker_id: str, request: WorkerRegistration
) -> schema.Worker:
    """Record that a worker has started.

    A new incarnation says that no process of the old one lives: what it held is lost at once,
    and its resources are free.
    """
    worker = _locked(session, worker_id)
    if worker.name != request.name:
        raise NotFound(f"this token belongs to a worker named {worker.name!r}")
    if worker.incarnation != request.incarnation:
        held = _unreleased(session, worker_id)
        measurements.hold(session, [attempt.measurement_id for attempt in held])
        for attempt in held:
            attempts.lose(db, session, attempt, "its worker was restarted", released=True)
    worker.incarnation = request.incarnation
    worker.state = WorkerState.ACTIVE.value
    worker.draining = False
    worker.cpus, worker.gpus = request.cpus, request.gpus
    worker.memory_bytes = request.memory_bytes
    worker.hardware_class = request.hardware_class
    worker.sandbox, worker.isolated = request.sandbox, request.isolated
    worker.guarantees, worker.info = dict(request.guarantees), request.info
    worker.last_seen_at = db.now(session)
    post(db, session, Topic.SCHEDULE, "slots")
    session.flush()
    return worker


def sync(
    db: Database, session: Session, worker_id: str, request: SyncRequest, ttl: timedelta
) -> SyncResponse:
    """Compare what a worker holds with what it should hold; renew the leases of both.

    Level-triggered: whatever message was lost before, this answer says everything again.

    Raises:
        Conflict: a newer incarnation of this worker has registered (`stale_incarnation`).
    """
    worker = _locked(session, worker_id)
    if worker.incarnation != request.incarnation:
        raise Conflict(
            "a newer process registered under this worker's name; stop this one",
            code="stale_incarnation",
        )
    now = db.now(session)
    worker.last_seen_at, worker.draining = now, request.draining
    worker.state = WorkerState.ACTIVE.value
    reported = {h.attempt: h for h in request.held}
    response = SyncResponse(assign=[], stop=[], fenced=[])
    gone: list[schema.Attempt] = []
    for attempt in _unreleased(session, worker_id):
        held = reported.pop(attempt.id, None)
        if attempt.state not in _LIVE:
            _settle_dead(db, session, attempt, held, response)
        elif held is not None:
            attempt.lease_expires_at = now + ttl
            if _cancel_requested(session, attempt):
                response.stop.append(attempt.id)
        elif attempt.state == AttemptState.ASSIGNED.value:
            attempt.lease_expires_at = now + ttl
            response.assign.append(spec(session, attempt))
        else:
            gone.append(attempt)
    measurements.hold(session, [attempt.measurement_id for attempt in gone])
    for attempt in gone:
        attempts.lose(db, session, attempt, "its worker no longer runs it", released=True)
    response.fenced.extend(_unknown(session, list(reported.values()), worker_id))
    return response


def _settle_dead(
    db: Database,
    session: Session,
    attempt: schema.Attempt,
    held: HeldAttempt | None,
    response: SyncResponse,
) -> None:
    """A lost attempt: free its resources when the worker says it is gone, else have it stopped."""
    if held is None:
        attempt.released_at = db.now(session)
        post(db, session, Topic.SCHEDULE, "slots")
    else:
        response.fenced.append(attempt.id)


def _unknown(session: Session, held: list[HeldAttempt], worker_id: str) -> list[str]:
    """Held attempts that were never this worker's; finished ones are simply forgotten soon."""
    fenced = []
    for item in held:
        row = session.get(schema.Attempt, item.attempt)
        if row is None or row.worker_id != worker_id or row.lease_token != item.lease_token:
            fenced.append(item.attempt)
    return fenced


def spec(session: Session, attempt: schema.Attempt) -> AttemptSpec:
    """All a worker needs to know of an attempt."""
    measurement = get(session, schema.Measurement, attempt.measurement_id, "measurement")
    environment = get(session, schema.Environment, measurement.environment_id, "environment")
    return AttemptSpec(
        attempt=attempt.id,
        lease_token=attempt.lease_token,
        measurement=measurement.id,
        kind=measurement.kind,
        codebase=measurement.codebase_id,
        environment=environment.id,
        bundle=environment.bundle,
        profile=measurement.profile,
        seed=measurement.seed,
        hardware_class=measurement.hardware_class,
        cpus=measurement.cpus,
        gpus=measurement.gpus,
        memory_bytes=measurement.memory_bytes,
        needs_isolation=measurement.needs_isolation,
        rescore=_rescore(session, environment, measurement),
    )


def _rescore(
    session: Session, environment: schema.Environment, measurement: schema.Measurement
) -> RescoreRule | None:
    manifest = environments.manifest(session, environment.id)
    if measurement.codebase_id == environment.codebase or manifest.entry_points.predict is None:
        return None
    values = measurements.baseline_values(
        session, environment, measurement.profile, measurement.hardware_class
    )
    rule = rescore_rule(manifest.metric.direction, Sample.of(list(values.values())))
    return RescoreRule(beyond=rule.beyond)


def any_silent(session: Session, since: datetime) -> bool:
    """Whether a worker that counts as active has not been heard of since then."""
    return (
        session.scalars(select(schema.Worker.id).where(*_silent(since)).limit(1)).first()
        is not None
    )


def lose_silent(session: Session, since: datetime) -> None:
    """Count workers as lost that have not been heard of since then; their next sync undoes it."""
    changed(
        session,
        update(schema.Worker).where(*_silent(since)).values(state=WorkerState.LOST.value),
    )


def _silent(since: datetime) -> tuple[ColumnElement[bool], ...]:
    return (
        schema.Worker.state == WorkerState.ACTIVE.value,
        schema.Worker.last_seen_at < since,
    )


def _locked(session: Session, worker_id: str) -> schema.Worker:
    """A worker's row, locked: it registers and syncs one request after the other."""
    row = session.get(schema.Worker, worker_id, with_for_update={"key_share": True})
    if row is None:
        raise NotFound(f"worker {worker_id!r} was not found")
    return row


def _unreleased(session: Session, worker_id: str) -> list[schema.Attempt]:
    return list(
        session.scalars(
            select(schema.Attempt)
            .where(schema.Attempt.worker_id == worker_id, schema.Attempt.released_at.is_(None))
            .order_by(schema.Attempt.id)
            .with_for_update(key_share=True)
        ).all()
    )


def _cancel_requested(session: Session, attempt: schema.Attempt) -> bool:
    return bool(
        session.scalars(
            select(schema.Measurement.cancel_requested).where(
                schema.Measurement.id == attempt.measurement_id
            )
        ).one()
    )
