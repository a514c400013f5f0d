"""How far ideas came, per environment, profile, ideator and executor: a fixed number of queries.

Everything is counted per batch first (`BatchTally`). The tally of a finished batch does not change
again, so a caller keeps it, and a report reads only the batches whose tallies it lacks.
Cancelled experiments are counted as such and belong to nothing else here.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Row,
    Subquery,
    and_,
    case,
    func,
    or_,
    select,
    text,
    true,
    union,
)
from sqlalchemy.orm import Session

from assay.domain.conditions import Conditions
from assay.domain.failure_codes import FailureCode
from assay.domain.metrics import Sample
from assay.domain.states import (
    TERMINAL_EXPERIMENT,
    AttemptState,
    ExperimentState,
    MeasurementKind,
)
from assay.storage import disclosure, repairs, schema
from assay.storage.types import epoch

_TERMINAL = [s.value for s in TERMINAL_EXPERIMENT]
_CANCELLED = ExperimentState.CANCELLED.value
_SCORED = ExperimentState.SUCCEEDED.value
#: Up to so many batches are named in a query; for more of them, the whole scope is read.
_MOST_NAMED = 500
#: Examples of a failure that a tally has.
_EXAMPLES = 3
#: The largest seed there can be.
_LAST_SEED = 2**31 - 1
_NO_SUCCESS = [
    s.value
    for s in (
        AttemptState.FAILED,
        AttemptState.CANCELLED,
        AttemptState.LOST,
        AttemptState.FENCED,
    )
]


@dataclass(frozen=True)
class Scope:
    """Whose experiments, and which of them."""

    owner: str
    environment: str | None = None
    batches: Sequence[str] = ()
    search: str | None = None
    since: datetime | None = None


class Key(NamedTuple):
    """What a line is about. `environment` is an id."""

    environment: str
    profile: str
    ideator: str | None
    executor: str


class Stages(NamedTuple):
    """Experiments, by how far they came. All but the last two leave cancelled ones out."""

    batches: int
    submitted: int
    applied: int
    patched: int
    started: int
    scored: int
    unfinished: int
    repaired: int
    repaired_scored: int
    cancelled: int
    near_duplicates: int


class Ended(NamedTuple):
    """Number of experiments that failed in this way, and the ids of the latest of them."""

    stage: str
    code: str
    number: int
    latest: tuple[str, ...] = ()


class Spent(NamedTuple):
    """What model calls used. `cost` leaves out the `unpriced` calls."""

    calls: int = 0
    under_way: int = 0
    input_tokens: int = 0
    cached_input_tokens: int = 0
    cache_write_tokens: int = 0
    output_tokens: int = 0
    cost: Decimal = Decimal(0)
    estimated: Decimal = Decimal(0)
    unpriced: int = 0


class Metrics(NamedTuple):
    """Over experiments, each the mean over its seeds of what is shown; None where none is
    scored."""

    average: float | None = None
    lowest: float | None = None
    highest: float | None = None
    scored: int = 0


@dataclass(frozen=True)
class BatchTally:
    """The counts of one batch. `wasted` has the seconds without success by measurement.

    `metrics` is the average over its `scored` experiments. `is_open`: a measurement of it may
    still be tried, although its experiments have ended.
    """

    stages: Stages
    failures: Sequence[Ended] = ()
    spent: Spent = field(default_factory=Spent)
    metrics: Metrics = field(default_factory=Metrics)
    wasted: Mapping[str, float] = field(default_factory=dict)
    is_open: bool = False

    @property
    def is_final(self) -> bool:
        """Whether nothing of this can change, if the batch is finished."""
        return not self.is_open and not self.spent.under_way


class _BatchRow(NamedTuple):
    """What a batch says of all of its ideas."""

    id: str
    is_finished: bool
    key: Key
    on: Conditions
    last_baseline_seed: int


ReadTallies = Callable[[Collection[str]], Mapping[str, BatchTally]]
#: Returns the tallies of finished batches and of others, by id; calls the function for those that
#: it does not keep.
KeptTallies = Callable[[Collection[str], ReadTallies, Collection[str]], Mapping[str, BatchTally]]


@dataclass
class Line:
    """Everything about one key. `baseline` and `metrics` are None where conditions
    differ."""

    key: Key
    stages: Stages
    failures: list[Ended] = field(default_factory=list)
    spent: Spent = field(default_factory=Spent)
    metrics: Metrics = field(default_factory=Metrics)
    wasted_seconds: float = 0.0
    hardware_classes: list[str] = field(default_factory=list)
    baseline: Sample | None = None


def lines(session: Session, scope: Scope, kept: KeptTallies) -> list[Line]:
    """One line per key, in order of environment, profile, executor and ideator."""
    batches = _batches(session, scope)

    def read(wanted: Collection[str]) -> Mapping[str, BatchTally]:
        return _tallies(session, scope, wanted)

    finished = [batch.id for batch in batches if batch.is_finished]
    others = [batch.id for batch in batches if not batch.is_finished]
    tallies = kept(finished, read, others)
    grouped: dict[Key, list[BatchTally]] = defaultdict(list)
    wanted: dict[Key, dict[Conditions, int]] = defaultdict(dict)
    for batch in batches:
        if batch.id in tallies:
            grouped[batch.key].append(tallies[batch.id])
            seeds = wanted[batch.key]
            seeds[batch.on] = max(seeds.get(batch.on, 0), batch.last_baseline_seed)
    baselines = _baselines(session, scope, wanted)
    found = [_line(key, of, baselines[key]) for key, of in grouped.items()]
    return sorted(found, key=lambda line: _order(line.key))


def _line(
    key: Key, tallies: Sequence[BatchTally], baselines: Mapping[Conditions, Mapping[int, float]]
) -> Line:
    """The line of these batches, whose baselines are given by conditions and seed."""
    wasted: dict[str, float] = {}  # what several batches share counts once
    for tally in tallies:
        wasted |= tally.wasted
    line = Line(
        key,
        Stages(*map(sum, zip(*(tally.stages for tally in tallies), strict=True))),
        failures=_together(ended for tally in tallies for ended in tally.failures),
        spent=_sum_spent(tallies),
        wasted_seconds=math.fsum(wasted.values()),
        hardware_classes=sorted({on.hardware_class for on in baselines}),
    )
    if len(baselines) == 1:  # a mean over several says nothing
        (values,) = baselines.values()
        line.baseline = Sample.of(list(values.values()))
        line.metrics = _over_batches(tallies)
    return line


def _sum_spent(tallies: Sequence[BatchTally]) -> Spent:
    columns: list[Any] = [sum(column) for column in zip(*(t.spent for t in tallies), strict=True)]
    return Spent(*columns)


def _together(failures: Iterable[Ended]) -> list[Ended]:
    """Failures of several batches: most frequent first, with the latest of them all."""
    grouped: dict[tuple[str, str], list[Ended]] = defaultdict(list)
    for ended in failures:
        grouped[ended.stage, ended.code].append(ended)
    found = [
        Ended(
            *cause,
            sum(ended.number for ended in of),
            latest_of(id_ for ended in of for id_ in ended.latest),
        )
        for cause, of in grouped.items()
    ]
    return sorted(found, key=lambda ended: (-ended.number, ended.stage, ended.code))


def latest_of(ids: Iterable[str]) -> tuple[str, ...]:
    """The latest of these experiments, as many as are shown as examples."""
    return tuple(heapq.nlargest(_EXAMPLES, ids))


def _over_batches(tallies: Sequence[BatchTally]) -> Metrics:
    """The metrics of all experiments, from those of each batch."""
    scored = [tally for tally in tallies if tally.metrics.average is not None]
    number = sum(tally.metrics.scored for tally in scored)
    if not number:
        return Metrics()
    averages = (tally.metrics.average or 0.0 for tally in scored)
    shares = (tally.metrics.scored / number for tally in scored)
    return Metrics(
        math.fsum(average * share for average, share in zip(averages, shares, strict=True)),
        min(tally.metrics.lowest for tally in scored if tally.metrics.lowest is not None),
        max(tally.metrics.highest for tally in scored if tally.metrics.highest is not None),
        number,
    )


def _order(key: Key) -> tuple[str, str, str, str]:
    return key.environment, key.profile, key.executor, key.ideator or ""


def _batches(session: Session, scope: Scope) -> list[_BatchRow]:
    """The batches of the scope.

    Reproductions are left out: they repeat what was counted, and say nothing of ideas or models.
    """
    batch = schema.Batch
    rows = session.execute(
        select(
            batch.id,
            batch.finished_at.is_not(None),
            batch.environment_id,
            batch.profile,
            batch.ideator,
            batch.executor,
            batch.hardware_class,
            batch.conditions_id,
            # Without a number every measured seed counts.
            func.coalesce(batch.options["baseline_seeds"].as_integer() - 1, _LAST_SEED),
        ).where(*_within(scope))
    )
    return [
        _BatchRow(
            id_, is_finished, Key(*key), Conditions(hardware_class, (conditions,)), last_seed
        )
        for id_, is_finished, *key, hardware_class, conditions, last_seed in rows
    ]


def _tallies(session: Session, scope: Scope, wanted: Collection[str]) -> dict[str, BatchTally]:
    """The tallies of at least these batches of the scope; a batch without experiments has none."""
    ideas = _ideas(scope, wanted)
    failures, spent = _failures(session, ideas), _spent(session, ideas)
    metrics, wasted = _metrics(session, ideas), _wasted(session, ideas)
    still_open = _open(session, ideas)
    return {
        id_: BatchTally(
            stages,
            failures.get(id_, []),
            spent.get(id_, Spent()),
            metrics.get(id_, Metrics()),
            wasted.get(id_, {}),
            id_ in still_open,
        )
        for id_, stages in _stages(session, ideas)
    }


def _ideas(scope: Scope, batch_ids: Collection[str]) -> Subquery:
    """The experiments of these batches, with how far each came."""
    table, batch, implementation = schema.Experiment, schema.Batch, schema.Implementation
    fitted = (
        select(schema.Sample.sample)
        .where(schema.Sample.implementation_id == implementation.id, schema.Sample.fitted)
        .exists()
    )
    repaired = select(schema.Repair.number).where(schema.Repair.experiment_id == table.id).exists()
    query = select(
        table.id,
        table.batch_id,
        table.state,
        implementation.id.label("implementation_id"),
        table.codebase_id.is_not(None).label("patched"),
        # In this order, so that samples are looked up for few.
        case((table.codebase_id.is_not(None), true()), else_=fitted).label("applied"),
        # One that shares a finished measurement was not started itself.
        or_(table.was_started, table.state == _SCORED).label("started"),
        repaired.label("repaired"),
        func.coalesce(table.failure["stage"].as_string(), "").label("stage"),
        func.coalesce(table.failure["code"].as_string(), "").label("code"),
    ).join(implementation, implementation.experiment_id == table.id)
    if len(batch_ids) <= _MOST_NAMED:
        query = query.where(table.batch_id.in_(batch_ids))
    else:
        query = query.join(batch, batch.id == table.batch_id).where(*_within(scope))
    return query.subquery()


def _within(scope: Scope) -> list[ColumnElement[bool]]:
    batch, environment = schema.Batch, schema.Environment
    # What measures a result again is no other idea.
    where = [batch.owner == scope.owner, batch.kind == MeasurementKind.SCORE.value]
    if scope.environment is not None:
        named = select(environment.id).where(
            (environment.name == scope.environment) | (environment.id == scope.environment)
        )
        where.append(batch.environment_id.in_(named))
    if scope.batches:
        where.append(batch.id.in_(scope.batches))
    if scope.search is not None:
        where.append(batch.search_id == scope.search)
    if scope.since is not None:
        where.append(batch.created_at >= scope.since)
    return where


def _count(*conditions: ColumnElement[bool]) -> ColumnElement[int]:
    return func.sum(case((and_(*conditions), 1), else_=0))


def _stages(session: Session, ideas: Subquery) -> list[tuple[str, Stages]]:
    of = ideas.c
    counts = of.state != _CANCELLED
    rows = session.execute(
        select(
            of.batch_id,
            _count(counts),
            _count(counts, of.applied),
            _count(counts, of.patched),
            _count(counts, of.started),
            _count(of.state == _SCORED),
            _count(of.state.not_in(_TERMINAL)),
            _count(counts, of.repaired),
            _count(of.state == _SCORED, of.repaired),
            _count(of.state == _CANCELLED),
            _count(of.state == _CANCELLED, of.code == FailureCode.NEAR_DUPLICATE.value),
        ).group_by(of.batch_id)
    )
    return [(id_, Stages(1, *counted)) for id_, *counted in rows]


def _failures(session: Session, ideas: Subquery) -> dict[str, list[Ended]]:
    of = ideas.c
    cause = (of.batch_id, of.stage, of.code)
    placed = (
        select(
            *cause,
            of.id,
            func.count().over(partition_by=cause).label("number"),
            func.row_number().over(partition_by=cause, order_by=of.id.desc()).label("place"),
        )
        .where(of.state == ExperimentState.FAILED.value)
        .subquery()
    )
    latest: dict[tuple[str, str, str, int], list[str]] = defaultdict(list)
    for *where, id_, number in session.execute(
        select(
            placed.c.batch_id, placed.c.stage, placed.c.code, placed.c.id, placed.c.number
        ).where(placed.c.place <= _EXAMPLES)
    ):
        batch_id, stage, code = where
        latest[batch_id, stage, code, number].append(id_)
    found: dict[str, list[Ended]] = defaultdict(list)
    for (batch_id, stage, code, number), ids in latest.items():
        found[batch_id].append(Ended(stage, code, number, tuple(ids)))
    return found


def _spent(session: Session, ideas: Subquery) -> dict[str, Spent]:
    call = schema.ModelCall
    ended = call.finished_at.is_not(None)
    rows = session.execute(
        select(
            ideas.c.batch_id,
            func.count(),
            _count(call.finished_at.is_(None)),
            func.sum(call.input_tokens),
            func.sum(call.cached_input_tokens),
            func.sum(call.cache_write_tokens),
            func.sum(call.output_tokens),
            func.sum(call.cost_usd),
            func.sum(case((call.is_estimate, call.cost_usd))),
            _count(call.cost_usd.is_(None), ended),
        )
        .join(call, call.implementation_id == ideas.c.implementation_id)
        .where(ideas.c.state != _CANCELLED)
        .group_by(ideas.c.batch_id)
    )
    return {row[0]: _as_spent(row) for row in rows}


def _as_spent(row: Row[Any]) -> Spent:
    spent = Spent(*row[1:])
    nothing = Decimal(0)
    return spent._replace(cost=spent.cost or nothing, estimated=spent.estimated or nothing)


def _metrics(session: Session, ideas: Subquery) -> dict[str, Metrics]:
    link, result = schema.ExperimentMeasurement, schema.Result
    each = (
        select(ideas.c.batch_id, ideas.c.id, func.avg(disclosure.SHOWN_METRIC).label("metric"))
        .join(link, link.experiment_id == ideas.c.id)
        .join(result, result.measurement_id == link.measurement_id)
        .where(ideas.c.state == _SCORED, link.role == repairs.SCORE)
        .group_by(ideas.c.batch_id, ideas.c.id)
        .subquery()
    )
    metric = each.c.metric
    rows = session.execute(
        select(
            each.c.batch_id,
            func.avg(metric),
            func.min(metric),
            func.max(metric),
            func.count(metric),
        ).group_by(each.c.batch_id)
    )
    return {id_: Metrics(*rest) for id_, *rest in rows}


def _measured(ideas: Subquery) -> Subquery:
    """The measurements that the ideas of a batch had, however many of them share one."""
    link, table = schema.ExperimentMeasurement, schema.Measurement
    return (
        select(ideas.c.batch_id, link.measurement_id)
        .join(link, link.experiment_id == ideas.c.id)
        .join(table, table.id == link.measurement_id)
        .where(ideas.c.state != _CANCELLED, table.kind == MeasurementKind.SCORE.value)
        .distinct()
        .subquery()
    )


def _wasted(session: Session, ideas: Subquery) -> dict[str, dict[str, float]]:
    """Seconds of attempts without success, by batch and measurement."""
    measured, attempt = _measured(ideas), schema.Attempt
    seconds = func.sum(epoch(attempt.finished_at) - epoch(attempt.started_at))
    rows = session.execute(
        select(measured.c.batch_id, measured.c.measurement_id, seconds)
        .join(attempt, attempt.measurement_id == measured.c.measurement_id)
        .where(
            attempt.state.in_(_NO_SUCCESS),
            attempt.started_at.is_not(None),
            attempt.finished_at.is_not(None),
        )
        .group_by(measured.c.batch_id, measured.c.measurement_id)
    )
    found: dict[str, dict[str, float]] = defaultdict(dict)
    for batch_id, measurement_id, wasted in rows:
        found[batch_id][measurement_id] = float(wasted)
    return found


def _open(session: Session, ideas: Subquery) -> set[str]:
    """Batches with a measurement that has not ended, or an attempt that has not."""
    link = schema.ExperimentMeasurement
    going_on = union(
        select(schema.Measurement.id).where(text(schema.LIVE_MEASUREMENT_SQL)),
        select(schema.Attempt.measurement_id).where(text(schema.LIVE_ATTEMPT_SQL)),
    )
    rows = session.scalars(
        select(ideas.c.batch_id)
        .join(link, link.experiment_id == ideas.c.id)
        .where(link.measurement_id.in_(going_on))
        .distinct()
    )
    return set(rows)


def _baselines(
    session: Session, scope: Scope, wanted: Mapping[Key, Mapping[Conditions, int]]
) -> dict[Key, dict[Conditions, dict[int, float]]]:
    """Metrics of the unmodified codebase by conditions and seed, on the seeds asked for.

    `wanted`: the last of the seeds that were asked for.
    """
    batch = schema.Batch
    asked = (
        select(batch.environment_id, batch.profile, batch.hardware_class, batch.conditions_id)
        .where(*_within(scope))
        .distinct()
        .subquery()
    )
    table, environment, result = schema.Measurement, schema.Environment, schema.Result
    of = asked.c
    rows: Iterable[Any] = session.execute(
        select(*of, table.seed, result.metric)
        .join(environment, environment.id == of.environment_id)
        .join(
            table,
            and_(
                table.codebase_id == environment.codebase,
                table.environment_id == environment.id,
                table.profile == of.profile,
                table.hardware_class == of.hardware_class,
                table.conditions_id == of.conditions_id,
                table.kind == MeasurementKind.SCORE.value,
            ),
        )
        .join(result, result.measurement_id == table.id)
        .where(result.metric.is_not(None))
        .order_by(table.seed, table.replicate)
    )
    measured: dict[tuple[str, str, Conditions], dict[int, float]] = defaultdict(dict)
    for environment_id, profile, hardware_class, conditions, seed, metric in rows:
        on = Conditions(hardware_class, (conditions,))
        measured[environment_id, profile, on][seed] = metric
    return {
        key: {
            on: {
                seed: metric
                for seed, metric in measured[key.environment, key.profile, on].items()
                if seed <= last_seed
            }
            for on, last_seed in by_conditions.items()
        }
        for key, by_conditions in wanted.items()
    }
