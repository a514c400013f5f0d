"""What the database knows about the service as a whole, in a few queries that stay cheap.

What waits and runs is read as it is: each query walks a small index. What has ended only grows, so
it is added up once and afterwards only what is new.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, and_, case, func, or_, select
from sqlalchemy.orm import Session

from assay.domain.states import LIVE_ATTEMPT, AttemptState, MeasurementState, WorkerState
from assay.storage import equivalences, schema
from assay.storage.database import Database
from assay.storage.types import epoch

#: Upper bounds of the classes of waiting times.
WAITS = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 4 * 3600.0, 24 * 3600.0)
#: A worker that was not heard of for so long counts as silent.
SILENT = timedelta(seconds=60)
#: No transaction lasts so long: what ended before then is in the database, or never will be.
SETTLED = timedelta(seconds=120)
_NAME = re.compile(r"[\w.:/-]{1,64}")
OTHER = "other"

_LIVE = [s.value for s in LIVE_ATTEMPT]
Key = tuple[str | int | bool, ...]


class Tally(defaultdict[Key, float]):
    """Sums by key."""

    def __init__(self) -> None:
        super().__init__(float)

    def add(self, other: Tally) -> None:
        """Add the sums of another tally."""
        for key, value in other.items():
            self[key] += value


@dataclass(frozen=True)
class Size:
    """What measurements of a kind need."""

    hardware_class: str
    gpus: int
    cpus: int


@dataclass(frozen=True)
class Waiting:
    """The queue of one size."""

    size: Size
    measurements: int
    oldest_seconds: float


@dataclass(frozen=True)
class Hosts:
    """Live workers of a hardware class, added up."""

    gpus: int
    usable_gpus: int
    held_gpus: int
    cpus: int
    held_cpus: int


@dataclass(frozen=True)
class Present:
    """How things stand now."""

    queue: list[Waiting]
    attempts: dict[str, int]
    experiments: dict[str, int]
    workers: dict[str, int]
    hosts: dict[str, Hosts]
    outbox: int
    outbox_seconds: float
    leader_seconds: float


@dataclass
class Ended:
    """Sums over what has ended, by what it was.

    `attempts` by (state, cause, counted), where an attempt counts if it decided its measurement;
    `waits` by (GPUs, class of waiting time), from queued to first assigned; `calls` by (model,
    state).
    """

    attempts: Tally = field(default_factory=Tally)
    gpu_seconds: Tally = field(default_factory=Tally)
    cpu_seconds: Tally = field(default_factory=Tally)
    rings: int = 0
    waits: Tally = field(default_factory=Tally)
    wait_seconds: Tally = field(default_factory=Tally)
    failures: Tally = field(default_factory=Tally)
    calls: Tally = field(default_factory=Tally)
    dollars: Tally = field(default_factory=Tally)
    tokens: Tally = field(default_factory=Tally)

    def __add__(self, other: Ended) -> Ended:
        both = Ended(rings=self.rings + other.rings)
        for name, value in vars(both).items():
            if isinstance(value, Tally):
                value.add(getattr(self, name))
                value.add(getattr(other, name))
        return both


def present(db: Database, session: Session) -> Present:
    """How things stand now."""
    now = db.now(session)
    outbox, oldest = session.execute(
        select(func.count(), func.min(schema.Outbox.created_at))
    ).one()
    leader = session.scalars(select(func.max(schema.Leader.expires_at))).one()
    return Present(
        queue=_queue(session, now),
        attempts=_by_state(session, schema.Attempt.state, schema.Attempt.state.in_(_LIVE)),
        experiments=_by_state(session, schema.Experiment.state),
        workers=_workers(session, now),
        hosts=_hosts(session),
        outbox=outbox,
        outbox_seconds=_age(now, oldest),
        leader_seconds=(leader - now).total_seconds() if leader else 0.0,
    )


def _age(now: datetime, moment: datetime | None) -> float:
    return max((now - moment).total_seconds(), 0.0) if moment else 0.0


def _by_state(session: Session, state: Any, *where: ColumnElement[bool]) -> dict[str, int]:
    return dict(session.execute(select(state, func.count()).where(*where).group_by(state)).all())


def _queue(session: Session, now: datetime) -> list[Waiting]:
    """By shape alone, which the index of the queue answers; shapes are few.

    Controls that decide about a host are left out: if the host is gone, they wait until it comes
    back, and no batch waits with them.
    """
    table = schema.Measurement
    rows = session.execute(
        select(table.shape_id, func.count(), func.min(table.queued_at))
        .where(table.state == MeasurementState.QUEUED.value)
        .group_by(table.shape_id)
    ).all()
    shapes = session.scalars(
        select(schema.Shape).where(schema.Shape.id.in_([r[0] for r in rows if r[0]]))
    ).all()
    sizes = {row.id: Size(row.hardware_class, row.gpus, row.cpus) for row in shapes}
    pending = {
        (row.environment_id, row.profile, row.conditions_id)
        for row in equivalences.pending(session)
    }
    controls = {
        row.id for row in shapes if (row.environment_id, row.profile, row.conditions_id) in pending
    }
    found: dict[Size, tuple[int, datetime]] = {}
    for shape, count, oldest in rows:
        if shape in controls:
            continue
        size = sizes.get(shape or "", Size("unknown", 0, 0))
        before, since = found.get(size, (0, oldest))
        found[size] = before + count, min(since, oldest)
    return [Waiting(size, n, _age(now, since)) for size, (n, since) in found.items()]


def _workers(session: Session, now: datetime) -> dict[str, int]:
    """Workers by the first of these that holds."""
    table = schema.Worker
    name = case(
        (table.state != WorkerState.ACTIVE.value, table.state),
        (table.last_seen_at < now - SILENT, "silent"),
        (and_(table.cordoned_until.is_not(None), table.cordoned_until > now), "cordoned"),
        (table.draining, "draining"),
        else_=WorkerState.ACTIVE.value,
    ).label("state")
    rows = session.execute(
        select(name, func.count()).where(table.incarnation != "").group_by(name)
    ).all()
    return dict(rows)


def _hosts(session: Session) -> dict[str, Hosts]:
    """What attempts hold is held until the host says otherwise, whatever became of them."""
    worker, attempt = schema.Worker, schema.Attempt
    live = worker.state == WorkerState.ACTIVE.value
    there = session.execute(
        select(
            worker.hardware_class,
            func.sum(worker.gpus),
            func.sum(worker.usable_gpus),
            func.sum(worker.cpus),
        )
        .where(live)
        .group_by(worker.hardware_class)
    ).all()
    held = {
        name: (gpus, cpus)
        for name, gpus, cpus in session.execute(
            select(worker.hardware_class, func.sum(attempt.gpus), func.sum(attempt.cpus))
            .join(worker, worker.id == attempt.worker_id)
            .where(attempt.released_at.is_(None), live)
            .group_by(worker.hardware_class)
        )
    }
    return {
        name: Hosts(
            gpus=int(gpus),
            usable_gpus=int(usable),
            held_gpus=int(held.get(name, (0, 0))[0]),
            cpus=int(cpus),
            held_cpus=int(held.get(name, (0, 0))[1]),
        )
        for name, gpus, usable, cpus in there
    }


class Ledger:
    """What has ended, added up. The first reading goes through everything, later ones through
    the last minutes: those since `settled` ago."""

    def __init__(self, db: Database, settled: timedelta = SETTLED) -> None:
        self._db = db
        self.settled = settled
        self._settled = Ended()
        self._until: datetime | None = None

    def read(self, session: Session) -> Ended:
        """Everything that has ended so far. `session` must see one state of the database."""
        cut = self._db.now(session) - self.settled
        if self._until is None or cut > self._until:
            self._settled += _ended(session, self._until, cut)
            self._until = cut
        recent = _ended(session, self._until, None)
        live = schema.Attempt.state.in_(_LIVE)
        recent += _waits(session, live)
        recent.rings += int(
            session.scalars(
                select(func.coalesce(func.sum(schema.Attempt.rings), 0)).where(live)
            ).one()
        )
        return self._settled + recent


def _ended(session: Session, since: datetime | None, until: datetime | None) -> Ended:
    finished = schema.Attempt.finished_at
    found = _attempts(session, _within(finished, since, until))
    found += _waits(session, _within(finished, since, until))
    found += _failures(session, _within(schema.Measurement.finished_at, since, until))
    return found + _calls(session, _within(schema.ModelCall.finished_at, since, until))


def _within(column: Any, since: datetime | None, until: datetime | None) -> ColumnElement[bool]:
    bounds = [column.is_not(None)]
    bounds += [column >= since] if since is not None else []
    bounds += [column < until] if until is not None else []
    return and_(*bounds)


def _attempts(session: Session, which: ColumnElement[bool]) -> Ended:
    """From its assignment to its end an attempt keeps its resources from others."""
    table = schema.Attempt
    code = table.failure["code"].as_string()
    ruined = or_(
        table.infrastructure,
        table.state.not_in([AttemptState.SUCCEEDED.value, AttemptState.FAILED.value]),
    )
    seconds = epoch(table.finished_at) - epoch(table.created_at)
    rows = session.execute(
        select(
            table.state,
            code,
            ruined,
            func.count(),
            func.sum(seconds * table.gpus),
            func.sum(seconds * table.cpus),
            func.sum(table.rings),
        )
        .where(which)
        .group_by(table.state, code, ruined)
    ).all()
    found = Ended()
    for state, cause, wasted, count, gpus, cpus, rings in rows:
        key = (state, label_value(cause or state), not wasted)
        found.attempts[key] += count
        found.gpu_seconds[key] += float(gpus)
        found.cpu_seconds[key] += float(cpus)
        found.rings += int(rings)
    return found


def _waits(session: Session, which: ColumnElement[bool]) -> Ended:
    """How long measurements waited for their first worker."""
    table = schema.Attempt
    seconds = epoch(table.created_at) - epoch(schema.Measurement.queued_at)
    bound = case(*((seconds <= b, b) for b in WAITS), else_=0.0).label("bound")
    rows = session.execute(
        select(table.gpus, bound, func.count(), func.sum(seconds))
        .join(schema.Measurement, schema.Measurement.id == table.measurement_id)
        .where(which, table.number == 0)
        .group_by(table.gpus, bound)
    ).all()
    found = Ended()
    for gpus, upper, count, total in rows:
        found.waits[gpus, bisect_left(WAITS, upper) if upper else len(WAITS)] += count
        found.wait_seconds[gpus,] += float(total)
    return found


def _failures(session: Session, which: ColumnElement[bool]) -> Ended:
    code = schema.Measurement.failure["code"].as_string()
    rows = session.execute(
        select(code, func.count())
        .where(schema.Measurement.state == MeasurementState.FAILED.value, which)
        .group_by(code)
    ).all()
    found = Ended()
    for name, count in rows:
        found.failures[label_value(name),] += count
    return found


def _calls(session: Session, which: ColumnElement[bool]) -> Ended:
    """Calls of models, by provider and model; the address of a model is left out."""
    table = schema.ModelCall
    read = table.input_tokens + table.cached_input_tokens + table.cache_write_tokens
    query = (
        select(
            table.model,
            table.state,
            func.count(),
            func.sum(table.cost_usd),
            func.sum(read),
            func.sum(table.output_tokens),
        )
        .where(which)
        .group_by(table.model, table.state)
    )
    found = Ended()
    for executor, state, count, cost, tokens_in, tokens_out in session.execute(query):
        model = label_value(executor.partition("@")[0])
        found.calls[model, state] += count
        found.dollars[model,] += float(cost or 0)
        found.tokens[model, "input"] += int(tokens_in)
        found.tokens[model, "output"] += int(tokens_out)
    return found


def label_value(text: str | None) -> str:
    """Return a text that may be the value of a label: a plain name, or `other`."""
    return text if text and _NAME.fullmatch(text) else OTHER
