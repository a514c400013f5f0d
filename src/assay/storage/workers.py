"""Workers: registration, and the sync that renews leases and hands out work."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from sqlalchemy import BigInteger, ColumnElement, Integer, bindparam, func, or_, select, update
from sqlalchemy.orm import Session

from assay.contracts.worker import HeldAttempt, SyncRequest, SyncResponse, WorkerRegistration
from assay.domain.errors import Conflict, NotFound
from assay.domain.ids import new_id
from assay.domain.states import LIVE_ATTEMPT, AttemptState, WorkerState
from assay.storage import attempts, conditions, measurements, schema
from assay.storage.database import Database
from assay.storage.outbox import Topic, post
from assay.storage.rows import changed, run, table_of
from assay.storage.specs import specs
from assay.storage.types import clock

_LIVE = [s.value for s in LIVE_ATTEMPT]
_BY_TOKEN = select(schema.Worker.id).where(schema.Worker.token_hash == bindparam("token_hash"))
_HEARD = (
    update(table_of(schema.Worker))
    .where(
        schema.Worker.id == bindparam("worker"),
        schema.Worker.incarnation == bindparam("named"),
        or_(
            schema.Worker.last_sync < bindparam("number"),
            bindparam("number", type_=BigInteger()) == 0,
        ),
    )
    .values(
        last_seen_at=clock(),
        last_sync=bindparam("number"),
        draining=bindparam("drains"),
        usable_gpus=func.coalesce(bindparam("usable", type_=Integer()), schema.Worker.gpus),
        usable_cpus=bindparam("usable_cpus", type_=Integer()),
        state=WorkerState.ACTIVE.value,
    )
    .returning(schema.Worker.last_seen_at, schema.Worker.troubles)
)
_HOLDING = (
    select(
        schema.Attempt.id,
        schema.Attempt.lease_token,
        schema.Attempt.state,
        schema.Measurement.cancel_requested,
    )
    .join(schema.Measurement, schema.Measurement.id == schema.Attempt.measurement_id)
    .where(schema.Attempt.worker_id == bindparam("worker"), schema.Attempt.released_at.is_(None))
    .order_by(schema.Attempt.id)
    .with_for_update(key_share=True, of=table_of(schema.Attempt))
)
_RENEW = (
    update(table_of(schema.Attempt))
    .where(schema.Attempt.id.in_(bindparam("ids", expanding=True)))
    .values(lease_expires_at=bindparam("until"))
)
#: How long a worker may be silent before what it runs is lost.
LEASE = timedelta(seconds=180)


def new_token() -> str:
    """A worker token. Only its hash is stored."""
    return f"asw_{secrets.token_urlsafe(32)}"


def token_hash(token: str) -> str:
    """What is stored of a token."""
    return hashlib.sha256(token.encode()).hexdigest()


def admit(db: Database, name: str, token: str) -> str:
    """Let a worker of that name in with that token, in place of any it had. Return its id.

    With another token than before, the process that used the old one is stopped: it gets no work
    and its syncs are refused. What it runs is lost when its leases end, unless the process that
    registers with the new token has adopted it. With the same token nothing changes.
    """
    hashed = token_hash(token)
    with db.write() as session:
        row = session.scalars(
            select(schema.Worker)
            .where(schema.Worker.name == name)
            .with_for_update(key_share=True)  # no sync may make it active meanwhile
        ).one_or_none()
        if row is None:
            row = schema.Worker(
                id=new_id("wrk"),
                name=name,
                token_hash=hashed,
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
        elif row.token_hash != hashed:
            row.token_hash = hashed
            row.state = WorkerState.STOPPED.value
            if row.incarnation:  # nobody's: a process that is still known by the old token is out
                row.incarnation = new_id("inc")
        return row.id


def classes_at_work(db: Database, session: Session) -> set[str]:
    """Return the hardware classes of workers that can take work: those that are heard of, not
    cordoned and not draining."""
    where = _is_at_work(db, session)
    return set(session.scalars(select(schema.Worker.hardware_class).where(*where).distinct()))


def at_work(db: Database, session: Session, hardware_class: str) -> Sequence[schema.Worker]:
    """Return the workers of a hardware class that can take work."""
    table = schema.Worker
    where = (table.hardware_class == hardware_class, *_is_at_work(db, session))
    return session.scalars(select(table).where(*where)).all()


def _is_at_work(db: Database, session: Session) -> tuple[ColumnElement[bool], ...]:
    table, now = schema.Worker, db.now(session)
    return (
        table.state == WorkerState.ACTIVE.value,
        table.draining.is_(False),
        or_(table.cordoned_until.is_(None), table.cordoned_until <= now),
        table.last_seen_at >= now - LEASE,
    )


def by_token(session: Session, token: str) -> str | None:
    """The id of the worker that holds the token."""
    return run(session, _BY_TOKEN, token_hash=token_hash(token)).scalar_one_or_none()


def register(
    db: Database,
    session: Session,
    worker_id: str,
    request: WorkerRegistration,
    ttl: timedelta = LEASE,
) -> schema.Worker:
    """Record that a worker has started.

    A new incarnation says which processes of the old one it has adopted; their attempts go on.
    Nothing else of the old one lives: it is lost at once, and its resources are free.
    """
    worker = locked(session, worker_id)
    if worker.name != request.name:
        raise NotFound(f"this token belongs to a worker named {worker.name!r}")
    if worker.incarnation != request.incarnation:
        _replace_incarnation(db, session, worker_id, request, ttl)
        worker.last_sync = 0
    worker.incarnation = request.incarnation
    worker.state = WorkerState.ACTIVE.value
    worker.draining = False
    worker.cpus, worker.gpus = request.cpus, request.gpus
    worker.usable_gpus = request.gpus
    worker.usable_cpus = None
    worker.devices = [device.model_dump() for device in request.devices]
    worker.troubles = []
    worker.version = request.version
    worker.memory_bytes = request.memory_bytes
    worker.hardware_class = request.hardware_class
    worker.sandbox, worker.isolated = request.sandbox, request.isolated
    worker.guarantees, worker.info = dict(request.guarantees), request.info
    worker.last_seen_at = db.now(session)
    conditions.store(session, worker.last_seen_at, [conditions.facts_of(worker)])
    post(session, Topic.SCHEDULE, "slots")
    session.flush()
    return worker


def _replace_incarnation(
    db: Database,
    session: Session,
    worker_id: str,
    request: WorkerRegistration,
    ttl: timedelta,
) -> None:
    adopted = {held.attempt: held.lease_token for held in request.adopted}
    gone = []
    for attempt in unreleased(session, worker_id):
        if adopted.get(attempt.id) != attempt.lease_token:
            gone.append(attempt)
        elif attempt.state in _LIVE:
            attempt.lease_expires_at = db.now(session) + ttl
    attempts.lose(db, session, gone, attempts.RESTARTED)


def remove(db: Database, session: Session, worker_id: str) -> schema.Worker:
    """The operator says that a worker's host is gone: nothing it held runs any more.

    Should its process live all the same, it is told to stop when it next syncs. A worker that
    registers under this name again is welcome.
    """
    worker = locked(session, worker_id)
    attempts.lose(db, session, unreleased(session, worker_id), attempts.REMOVED)
    worker.state, worker.incarnation = WorkerState.STOPPED.value, ""
    post(session, Topic.SCHEDULE, "slots")
    session.flush()
    return worker


def sync(
    db: Database,
    session: Session,
    worker_id: str,
    request: SyncRequest,
    ttl: timedelta = LEASE,
) -> SyncResponse:
    """Compare what a worker holds with what it should hold; renew the leases of both.

    Level-triggered: whatever message was lost before, this answer says everything again. A sync
    that comes after a later one of the same process is old news, and nothing follows from it.

    Raises:
        Conflict: a newer incarnation of this worker has registered (`stale_incarnation`).
    """
    response = SyncResponse(assign=[], stop=[], fenced=[])
    now = _heard(session, worker_id, request)
    if now is None:
        return response
    reported = {h.attempt: h for h in request.held}
    found = _Found()
    for row in run(session, _HOLDING, worker=worker_id).all():  # locked
        held = reported.pop(row.id, None)
        if held is not None and held.lease_token != row.lease_token:
            response.fenced.append(row.id)
        elif row.state not in _LIVE:
            (response.fenced if held is not None else found.dead).append(row.id)
        elif held is not None:
            found.kept.append(row.id)
            if row.cancel_requested:
                response.stop.append(row.id)
        elif row.state == AttemptState.ASSIGNED.value and row.cancel_requested:
            found.unwanted.append(row.id)
        elif row.state == AttemptState.ASSIGNED.value and request.draining:
            found.returned.append(row.id)
        elif row.state == AttemptState.ASSIGNED.value:
            found.assigned.append(row.id)
        else:
            found.gone.append(row.id)
    _settle(db, session, found, now + ttl)
    response.assign = specs(session, found.assigned)
    response.fenced.extend(_unknown(session, list(reported.values()), worker_id))
    return response


@dataclass
class _Found:
    """Attempts by what a sync makes of them."""

    kept: list[str] = field(default_factory=list)
    assigned: list[str] = field(default_factory=list)
    unwanted: list[str] = field(default_factory=list)
    returned: list[str] = field(default_factory=list)
    dead: list[str] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)


def _heard(session: Session, worker_id: str, request: SyncRequest) -> datetime | None:
    """Note that a worker was heard of, and lock its row: it registers and syncs one request after
    the other. Returns when that was; None if it has said something later already."""
    row = run(
        session,
        _HEARD,
        worker=worker_id,
        named=request.incarnation,
        number=request.number,
        drains=request.draining,
        usable=request.usable_gpus,
        usable_cpus=request.usable_cpus,
    ).one_or_none()
    if row is not None:
        heard: datetime = row.last_seen_at
        troubles = [trouble.model_dump() for trouble in request.troubles]
        if troubles != row.troubles:  # syncs are many, and this rarely changes
            table = schema.Worker
            changed(session, update(table).where(table.id == worker_id).values(troubles=troubles))
        return heard
    worker = session.get(schema.Worker, worker_id)
    if worker is None:
        raise NotFound(f"worker {worker_id!r} was not found")
    if worker.incarnation == request.incarnation:
        return None
    raise Conflict(
        "a newer process registered under this worker's name; stop this one",
        code="stale_incarnation",
    )


def _settle(db: Database, session: Session, found: _Found, until: datetime) -> None:
    """Renew leases, free what the worker says is gone, and lose what it should still have."""
    table = schema.Attempt
    if live := found.kept + found.assigned:
        run(session, _RENEW, ids=live, until=until)
    if found.dead:
        changed(session, update(table).where(table.id.in_(found.dead)).values(released_at=clock()))
        post(session, Topic.SCHEDULE, "slots")
    losses = {
        **dict.fromkeys(found.gone, attempts.VANISHED),
        **dict.fromkeys(found.unwanted, attempts.WITHDRAWN),
        **dict.fromkeys(found.returned, attempts.STOPPING),
    }
    if not losses:
        return
    rows = session.scalars(select(table).where(table.id.in_(losses)).order_by(table.id)).all()
    measurements.hold(session, [row.measurement_id for row in rows])  # all, before any changes
    for loss in dict.fromkeys(losses.values()):
        attempts.lose(db, session, [row for row in rows if losses[row.id] is loss], loss)


def _unknown(session: Session, held: list[HeldAttempt], worker_id: str) -> list[str]:
    """Held attempts that were never this worker's; finished ones are simply forgotten soon."""
    if not held:
        return []
    table = schema.Attempt
    rows = session.execute(
        select(table.id, table.worker_id, table.lease_token).where(
            table.id.in_([item.attempt for item in held])
        )
    ).all()
    known = {row.id: (row.worker_id, row.lease_token) for row in rows}
    return [
        item.attempt for item in held if known.get(item.attempt) != (worker_id, item.lease_token)
    ]


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


def locked(session: Session, worker_id: str) -> schema.Worker:
    """A worker's row, locked: it registers and syncs one request after the other."""
    row = session.get(schema.Worker, worker_id, with_for_update={"key_share": True})
    if row is None:
        raise NotFound(f"worker {worker_id!r} was not found")
    return row


def unreleased(session: Session, worker_id: str) -> list[schema.Attempt]:
    """The attempts that hold resources of a worker, locked."""
    return list(
        session.scalars(
            select(schema.Attempt)
            .where(schema.Attempt.worker_id == worker_id, schema.Attempt.released_at.is_(None))
            .order_by(schema.Attempt.id)
            .with_for_update(key_share=True)
        ).all()
    )
