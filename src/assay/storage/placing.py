"""What the scheduler decides on, read from the database: workers, what they hold, and the heads of
the queue. Never the queue: of each shape and batch only what could start now."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Float,
    Integer,
    ScalarSelect,
    Select,
    and_,
    bindparam,
    case,
    func,
    literal_column,
    or_,
    select,
    tuple_,
)
from sqlalchemy.orm import Session, aliased

from assay.domain.conditions import UNRECORDED
from assay.domain.placement import Batch, Demand, Line, Occupancy, Policy, Supply, look_ahead
from assay.domain.states import LIVE_ATTEMPT, AttemptState, MeasurementState, WorkerState
from assay.storage import schema
from assay.storage.database import Database
from assay.storage.types import epoch

#: Batches of a shape that are looked at: those beyond wait until one of these has ended.
BATCHES = 128
_LIVE = frozenset(s.value for s in LIVE_ATTEMPT)
_STARTING = frozenset({AttemptState.ASSIGNED.value, AttemptState.STARTING.value})


class Held(NamedTuple):
    """An attempt that holds resources. Times are seconds since 1970."""

    attempt: str
    worker: str
    state: str
    cpus: int
    gpus: int
    memory_bytes: int
    rings: int
    bound_seconds: float
    created: float
    lease: float
    deadline: float | None
    owner: str
    batch_at: float | None

    @property
    def is_live(self) -> bool:
        return self.state in _LIVE

    @property
    def until(self) -> float:
        """When it has ended at the latest; a lost one ends when its host says so."""
        if self.state not in _LIVE:
            return math.inf
        if self.deadline is not None:
            return self.deadline
        return self.created + self.bound_seconds if self.bound_seconds > 0 else math.inf


class Host(NamedTuple):
    """A worker, with the failures it is to blame for since its last cordon ended."""

    worker: str
    incarnation: str
    state: str
    draining: bool
    cpus: int
    gpus: int
    usable_gpus: int
    usable_cpus: int | None
    memory_bytes: int
    hardware_class: str
    isolated: bool
    seen: float
    cordons: int
    cordoned_until: float | None
    failures: int

    def is_cordoned(self, now: float) -> bool:
        return self.cordoned_until is not None and self.cordoned_until > now

    def on_probation(self, now: float, window: float) -> bool:
        """Whether a cordon for failures has ended lately."""
        until = self.cordoned_until
        return self.cordons > 0 and until is not None and now - window < until <= now


class Waiting(NamedTuple):
    """A shape that at least the measurement `head` waits for."""

    id: str
    hardware_class: str
    cpus: int
    gpus: int
    memory_bytes: int
    needs_isolation: bool
    budget_seconds: float
    bound_seconds: float
    environment_id: str
    profile: str
    conditions_id: str
    head: str | None

    @property
    def setting(self) -> str:
        """What workers offer; empty where no conditions were recorded."""
        return self.id if self.conditions_id != UNRECORDED else ""


@dataclass(frozen=True)
class View:
    """All workers and what they hold, at one moment."""

    now: datetime
    hosts: Sequence[Host]
    held: Sequence[Held]


def view(db: Database, session: Session, window: float) -> View:
    """Read workers and what they hold. `window`: for how many seconds failures count."""
    now = db.now(session)
    since = {"since": now.timestamp() - window}
    hosts = list(map(Host._make, session.execute(_HOSTS, since)))
    held = list(map(Held._make, session.execute(_HELD)))
    return View(now, hosts, held)


_attempt = schema.Attempt
_HELD = select(
    _attempt.id,
    _attempt.worker_id,
    _attempt.state,
    _attempt.cpus,
    _attempt.gpus,
    _attempt.memory_bytes,
    _attempt.rings,
    _attempt.bound_seconds,
    epoch(_attempt.created_at),
    epoch(_attempt.lease_expires_at),
    epoch(_attempt.deadline_at),
    schema.Measurement.owner,
    epoch(schema.Measurement.batch_at),
).where(
    _attempt.released_at.is_(None),
    schema.Measurement.id == _attempt.measurement_id,
)


def _hosts() -> Select[*tuple[Any, ...]]:
    """Workers with the failures that count `since` a moment, in seconds since 1970."""
    table, since = schema.Worker, bindparam("since", type_=Float)
    ended = func.coalesce(epoch(table.cordoned_until), 0.0)
    failures = (
        # Attempts that were lost at the same moment are one failure.
        select(func.count(func.distinct(_attempt.finished_at)))
        .where(
            _attempt.worker_id == table.id,
            _attempt.infrastructure,
            epoch(_attempt.finished_at) > case((ended > since, ended), else_=since),
        )
        .correlate(table)
        .scalar_subquery()
    )
    return select(
        table.id,
        table.incarnation,
        table.state,
        table.draining,
        table.cpus,
        table.gpus,
        table.usable_gpus,
        table.usable_cpus,
        table.memory_bytes,
        table.hardware_class,
        table.isolated,
        epoch(table.last_seen_at),
        table.cordons,
        epoch(table.cordoned_until),
        failures,
    ).where(table.incarnation != "")


_HOSTS = _hosts()


@dataclass(frozen=True)
class Rules:
    """What a scheduler decides by. `silence`: seconds after which a worker that is not heard of
    gets no new work. `window`: for how many seconds its failures count."""

    policy: Policy
    silence: float
    window: float

    def stored(self) -> dict[str, Any]:
        """Return them as a document."""
        policy = self.policy
        return {
            "starting_per_worker": policy.starting_per_worker,
            "placements": policy.placements,
            "shares": dict(policy.shares),
            "silence": self.silence,
            "window": self.window,
        }

    @classmethod
    def read(cls, stored: Mapping[str, Any]) -> Rules:
        """Return the rules that a document holds."""
        policy = {name: stored[name] for name in ("starting_per_worker", "placements", "shares")}
        return cls(Policy(**policy), stored["silence"], stored["window"])


def supplies(view: View, rules: Rules) -> list[Supply]:
    """Return what is free on workers that get new work.

    Resources of an attempt are taken until its host says that it is gone, lost or not. A worker
    on probation starts one attempt at a time.
    """
    now, most = view.now.timestamp(), rules.policy.starting_per_worker
    held = defaultdict(list)
    for each in view.held:
        held[each.worker].append(each)
    free = []
    for host in view.hosts:
        if not _gets_work(host, now, rules.silence):
            continue
        starting = sum(each.state in _STARTING for each in held[host.worker])
        if host.on_probation(now, rules.window):
            starting = most if starting else most - 1
        free.append(_supply(host, held[host.worker], starting))
    return free


def with_settings(free: Sequence[Supply], offers: Mapping[str, frozenset[str]]) -> list[Supply]:
    """Return the workers with the settings that each may measure; see `Offers.find`."""
    return [replace(each, settings=offers.get(each.worker, frozenset())) for each in free]


def can_replace(other: Host, host: Host, now: float, silence: float) -> bool:
    """Whether `other` gets work, and could get what `host` gets."""
    return (
        other.worker != host.worker
        and _gets_work(other, now, silence)
        and other.hardware_class == host.hardware_class
        and other.isolated >= host.isolated
    )


def _gets_work(host: Host, now: float, silence: float) -> bool:
    return (
        host.state == WorkerState.ACTIVE.value
        and not host.draining
        and not host.is_cordoned(now)
        and host.seen >= now - silence
    )


def _supply(host: Host, held: Sequence[Held], starting: int) -> Supply:
    cpus = host.cpus if host.usable_cpus is None else min(host.cpus, host.usable_cpus)
    return Supply(
        worker=host.worker,
        cpus=max(0, cpus - sum(each.cpus for each in held)),
        gpus=max(0, min(host.gpus, host.usable_gpus) - sum(each.gpus for each in held)),
        memory_bytes=max(0, host.memory_bytes - sum(each.memory_bytes for each in held)),
        hardware_class=host.hardware_class,
        isolated=host.isolated,
        starting=starting,
        running=tuple(
            Occupancy(
                *(each.cpus, each.gpus, each.memory_bytes, each.until),
                owner=each.owner,
                batch_at=each.batch_at or 0.0,
            )
            for each in held
        ),
    )


def can_start(supply: Supply, policy: Policy) -> bool:
    """Whether anything at all could be started there now."""
    return supply.starting < policy.starting_per_worker and supply.cpus > 0


def waiting(session: Session, now: datetime) -> list[Waiting]:
    """Every shape that a measurement waits for."""
    rows = session.execute(WAITING_SHAPES, {"now": now})
    return [row for row in map(Waiting._make, rows) if row.head is not None]


def demands(
    session: Session,
    shapes: Sequence[Waiting],
    now: datetime,
    free: Sequence[Supply],
    policy: Policy,
) -> list[Demand]:
    """Of each shape that waits and has workers, the measurements that come next: for each owner as
    many as could start now, and a few that may hold back resources. Empty if none could start."""
    room = {shape.id: room_of(shape, free, policy) for shape in shapes}
    if not any(room.values()):
        return []
    suited = [s for s in shapes if any(_suits(s, supply) for supply in free)]
    return heads(
        session,
        suited,
        now,
        free,
        {s.id: min(room[s.id] + policy.reservations, policy.placements) for s in suited},
    )


def heads(
    session: Session,
    shapes: Sequence[Waiting],
    now: datetime,
    free: Sequence[Supply],
    limits: Mapping[str, int],
) -> list[Demand]:
    """Return the measurements of each shape that come next: for each owner as many as the limit
    of the shape."""
    found: list[Demand] = []
    for shape in shapes:
        running = _running(shape, free)
        found.extend(first_in_queue(session, shape, now, limits[shape.id], running))
    failed = _failed_on(session, [demand.measurement for demand in found])
    return [
        replace(demand, avoid_workers=frozenset(failed[demand.measurement]))
        if demand.measurement in failed
        else demand
        for demand in found
    ]


_measurement = schema.Measurement
_ONE = literal_column("1", Integer)
_ORDER = (
    _measurement.shape_id,
    _measurement.priority.desc(),
    _measurement.batch_at,
    _measurement.queued_at,
    _measurement.id,
)


_QUEUED: tuple[ColumnElement[bool], ...] = (
    # As it stands in the index's condition, so that a prepared statement uses it too.
    _measurement.state == literal_column(f"'{MeasurementState.QUEUED.value}'"),
    or_(_measurement.not_before.is_(None), _measurement.not_before <= bindparam("now")),
)
_shape = schema.Shape
#: Every shape with the first measurement that waits for it: one look each into an index.
WAITING_SHAPES = select(
    _shape.id,
    _shape.hardware_class,
    _shape.cpus,
    _shape.gpus,
    _shape.memory_bytes,
    _shape.needs_isolation,
    _shape.budget_seconds,
    _shape.bound_seconds,
    _shape.environment_id,
    _shape.profile,
    _shape.conditions_id,
    select(_measurement.id)
    .where(*_QUEUED, _measurement.shape_id == _shape.id)
    .order_by(*_ORDER)
    .limit(1)
    .correlate(_shape)
    .scalar_subquery()
    .label("head"),
)


def _suits(shape: Waiting, supply: Supply) -> bool:
    return (
        shape.hardware_class == supply.hardware_class
        and (supply.isolated or not shape.needs_isolation)
        and (not shape.setting or shape.setting in supply.settings)
    )


def room_of(shape: Waiting, free: Iterable[Supply], policy: Policy) -> int:
    """Return how many of a shape could start now, were there nothing else."""
    return sum(
        min(
            supply.cpus // shape.cpus,
            supply.gpus // shape.gpus if shape.gpus else supply.cpus,
            supply.memory_bytes // max(1, shape.memory_bytes),
        )
        for supply in free
        if can_start(supply, policy) and _suits(shape, supply)
    )


def _running(shape: Waiting, free: Iterable[Supply]) -> dict[Batch, int]:
    """How much runs of each batch on the shape's hardware class, in CPUs or GPUs."""
    running: dict[Batch, int] = defaultdict(int)
    for supply in free:
        if supply.hardware_class == shape.hardware_class:
            for batch, amount in supply.held_by.items():
                running[batch] += amount
    return running


def first_in_queue(
    session: Session,
    shape: Waiting,
    now: datetime,
    limit: int,
    running: Mapping[Batch, int] | None = None,
) -> list[Demand]:
    """Return the measurements that wait for a shape and come next, for each owner `limit`.

    `running`: how much runs of each batch. Of an owner, the batch that runs least comes first.
    """
    waits: dict[tuple[Batch, int], list[Demand]] = defaultdict(list)
    wanted = {"shape": shape.id, "now": now, "places": limit}
    for row in session.execute(_FIRST_OF_BATCHES, wanted):
        demand = Demand(
            measurement=row.id,
            cpus=shape.cpus,
            gpus=shape.gpus,
            memory_bytes=shape.memory_bytes,
            hardware_class=shape.hardware_class,
            priority=row.priority,
            budget_seconds=shape.budget_seconds,
            bound_seconds=shape.bound_seconds,
            batch_at=row.batch_at,
            queued_at=row.queued_at,
            needs_isolation=shape.needs_isolation,
            setting=shape.setting,
            owner=row.owner,
        )
        waits[demand.batch, demand.priority].append(demand)
    lines = {Line(*key, len(found)): found for key, found in waits.items()}
    taken = look_ahead(lines, running or {}, shape.gpus or shape.cpus, limit)
    return [demand for line, number in taken.items() for demand in lines[line][:number]]


def _first_of_batches() -> Select[*tuple[Any, ...]]:
    """Select the first `places` measurements that wait for a `shape` of each batch, of `BATCHES`
    batches at most: the highest priority first, and of one priority the oldest.

    A walk from each measurement to the next: the next of the same batch, or else the first of the
    next batch. Each step looks into the index of the queue, so the rest of a batch is not read.
    """
    table = _measurement

    def first(*where: ColumnElement[bool]) -> ScalarSelect[str]:
        query = select(table.id).where(*_QUEUED, table.shape_id == bindparam("shape"), *where)
        return query.order_by(*_ORDER).limit(1).scalar_subquery()

    head = aliased(table)
    batch, place = _ONE.label("batch"), _ONE.label("place")
    columns = (head.id, head.priority, head.batch_at, head.queued_at, head.owner)
    walk = select(*columns, batch, place).where(head.id == first()).cte("walk", recursive=True)
    at = walk.c
    is_same = and_(head.priority == at.priority, head.batch_at == at.batch_at)
    next_of_batch = first(
        table.priority == at.priority,
        table.batch_at == at.batch_at,
        tuple_(table.queued_at, table.id) > tuple_(at.queued_at, at.id),
    )
    next_batch = func.coalesce(
        first(table.priority == at.priority, table.batch_at > at.batch_at),
        first(table.priority < at.priority),
    )
    following = func.coalesce(
        case((at.place < bindparam("places"), next_of_batch)),
        case((at.batch < BATCHES, next_batch)),
    )
    step = select(
        *columns,
        case((is_same, at.batch), else_=at.batch + 1),
        case((is_same, at.place + 1), else_=1),
    ).where(head.id == following)
    walk = walk.union_all(step)
    return select(
        walk.c.id,
        walk.c.priority,
        epoch(walk.c.batch_at).label("batch_at"),
        epoch(walk.c.queued_at).label("queued_at"),
        walk.c.owner,
    )


_FIRST_OF_BATCHES = _first_of_batches()


_FAILED_ON = select(_attempt.measurement_id, _attempt.worker_id).where(
    _attempt.measurement_id.in_(bindparam("measurements", expanding=True)),
    _attempt.state.in_([AttemptState.LOST.value, AttemptState.FAILED.value]),
)


def _failed_on(session: Session, measurements: list[str]) -> dict[str, set[str]]:
    """On which workers attempts of these measurements were lost or failed."""
    failed: dict[str, set[str]] = defaultdict(set)
    if not measurements:
        return failed
    for measurement, worker in session.execute(_FAILED_ON, {"measurements": measurements}):
        failed[measurement].add(worker)
    return failed
