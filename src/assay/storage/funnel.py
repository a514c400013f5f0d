"""How far ideas came, per environment, profile, ideator and executor: a fixed number of queries.

Cancelled experiments are counted as such and belong to nothing else here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Subquery, and_, case, func, or_, select
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
    """How many experiments failed so."""

    stage: str
    code: str
    number: int


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


def lines(session: Session, scope: Scope) -> list[Line]:
    """One line per key, in order of environment, profile, executor and ideator."""
    ideas = _ideas(scope)
    found = {key: Line(key, stages) for key, stages in _stages(session, ideas)}
    for key, ended in _failures(session, ideas):
        found[key].failures.append(ended)
    for key, spent in _spent(session, ideas):
        found[key].spent = spent
    for key, metrics in _metrics(session, ideas):
        found[key].metrics = metrics
    for key, seconds in _wasted(session, ideas):
        found[key].wasted_seconds = seconds
    for key, by_conditions in _baselines(session, ideas).items():
        line = found[key]
        line.hardware_classes = sorted({on.hardware_class for on in by_conditions})
        if len(by_conditions) > 1:  # a mean over them says nothing
            line.metrics = Metrics()
        else:
            (values,) = by_conditions.values()
            line.baseline = Sample.of(list(values.values()))
    return sorted(found.values(), key=lambda line: _order(line.key))


def _order(key: Key) -> tuple[str, str, str, str]:
    return key.environment, key.profile, key.executor, key.ideator or ""


def _ideas(scope: Scope) -> Subquery:
    """Every experiment of the scope, with what its batch says and how far it came.

    Reproductions are left out: they repeat what was counted, and say nothing of ideas or models.
    """
    table, batch, implementation = schema.Experiment, schema.Batch, schema.Implementation
    fitted = (
        select(schema.Sample.sample)
        .where(schema.Sample.implementation_id == implementation.id, schema.Sample.fitted)
        .exists()
    )
    repaired = select(schema.Repair.number).where(schema.Repair.experiment_id == table.id).exists()
    query = (
        select(
            table.id,
            table.batch_id,
            table.state,
            batch.environment_id,
            batch.profile,
            batch.ideator,
            batch.executor,
            batch.hardware_class,
            batch.conditions_id,
            # Without a number every measured seed counts.
            func.coalesce(batch.options["baseline_seeds"].as_integer() - 1, _LAST_SEED).label(
                "last_baseline_seed"
            ),
            implementation.id.label("implementation_id"),
            table.codebase_id.is_not(None).label("patched"),
            or_(fitted, table.codebase_id.is_not(None)).label("applied"),
            # One that shares a finished measurement was not started itself.
            or_(table.was_started, table.state == _SCORED).label("started"),
            repaired.label("repaired"),
            func.coalesce(table.failure["stage"].as_string(), "").label("stage"),
            func.coalesce(table.failure["code"].as_string(), "").label("code"),
        )
        .join(batch, batch.id == table.batch_id)
        .join(implementation, implementation.experiment_id == table.id)
        .where(*_within(scope))
    )
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


def _key(of: Subquery) -> list[Any]:
    return [of.c.environment_id, of.c.profile, of.c.ideator, of.c.executor]


def _split(row: Any) -> tuple[Key, tuple[Any, ...]]:
    """The key that a row begins with, and the rest."""
    environment, profile, ideator, executor, *rest = row
    return Key(environment, profile, ideator, executor), tuple(rest)


def _count(*conditions: ColumnElement[bool]) -> ColumnElement[int]:
    return func.sum(case((and_(*conditions), 1), else_=0))


def _stages(session: Session, ideas: Subquery) -> list[tuple[Key, Stages]]:
    of = ideas.c
    counts = of.state != _CANCELLED
    rows = session.execute(
        select(
            *_key(ideas),
            func.count(func.distinct(of.batch_id)),
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
        ).group_by(*_key(ideas))
    )
    return [(key, Stages(*rest)) for key, rest in map(_split, rows)]


def _failures(session: Session, ideas: Subquery) -> list[tuple[Key, Ended]]:
    """Most frequent first."""
    number = func.count()
    rows = session.execute(
        select(*_key(ideas), ideas.c.stage, ideas.c.code, number)
        .where(ideas.c.state == ExperimentState.FAILED.value)
        .group_by(*_key(ideas), ideas.c.stage, ideas.c.code)
        .order_by(number.desc(), ideas.c.stage, ideas.c.code)
    )
    return [(key, Ended(*rest)) for key, rest in map(_split, rows)]


def _spent(session: Session, ideas: Subquery) -> list[tuple[Key, Spent]]:
    call = schema.ModelCall
    ended = call.finished_at.is_not(None)
    rows = session.execute(
        select(
            *_key(ideas),
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
        .group_by(*_key(ideas))
    )
    return [(key, _as_spent(*rest)) for key, rest in map(_split, rows)]


def _as_spent(*sums: Any) -> Spent:
    spent = Spent(*sums)
    nothing = Decimal(0)
    return spent._replace(cost=spent.cost or nothing, estimated=spent.estimated or nothing)


def _metrics(session: Session, ideas: Subquery) -> list[tuple[Key, Metrics]]:
    link, result = schema.ExperimentMeasurement, schema.Result
    each = (
        select(*_key(ideas), ideas.c.id, func.avg(disclosure.SHOWN_METRIC).label("metric"))
        .join(link, link.experiment_id == ideas.c.id)
        .join(result, result.measurement_id == link.measurement_id)
        .where(ideas.c.state == _SCORED, link.role == repairs.SCORE)
        .group_by(*_key(ideas), ideas.c.id)
        .subquery()
    )
    metric = each.c.metric
    rows = session.execute(
        select(*_key(each), func.avg(metric), func.min(metric), func.max(metric)).group_by(
            *_key(each)
        )
    )
    return [(key, Metrics(*rest)) for key, rest in map(_split, rows)]


def _wasted(session: Session, ideas: Subquery) -> list[tuple[Key, float]]:
    """Seconds of attempts without success. What several ideas of a line share counts once."""
    link, table, attempt = schema.ExperimentMeasurement, schema.Measurement, schema.Attempt
    measured = (
        select(*_key(ideas), link.measurement_id)
        .join(link, link.experiment_id == ideas.c.id)
        .join(table, table.id == link.measurement_id)
        .where(ideas.c.state != _CANCELLED, table.kind == MeasurementKind.SCORE.value)
        .distinct()
        .subquery()
    )
    seconds = func.sum(epoch(attempt.finished_at) - epoch(attempt.started_at))
    rows = session.execute(
        select(*_key(measured), seconds)
        .join(attempt, attempt.measurement_id == measured.c.measurement_id)
        .where(
            attempt.state.in_(_NO_SUCCESS),
            attempt.started_at.is_not(None),
            attempt.finished_at.is_not(None),
        )
        .group_by(*_key(measured))
    )
    return [(key, float(rest[0])) for key, rest in map(_split, rows)]


def _baselines(session: Session, ideas: Subquery) -> dict[Key, dict[Conditions, dict[int, float]]]:
    """Metrics of the unmodified codebase by conditions and seed, on the seeds asked for."""
    wanted = (
        select(
            *_key(ideas),
            ideas.c.hardware_class,
            ideas.c.conditions_id,
            func.max(ideas.c.last_baseline_seed).label("last_seed"),
        )
        .group_by(*_key(ideas), ideas.c.hardware_class, ideas.c.conditions_id)
        .subquery()
    )
    table, environment, result = schema.Measurement, schema.Environment, schema.Result
    of = wanted.c
    same = and_(
        table.codebase_id == environment.codebase,
        table.environment_id == environment.id,
        table.profile == of.profile,
        table.hardware_class == of.hardware_class,
        table.conditions_id == of.conditions_id,
        table.kind == MeasurementKind.SCORE.value,
        table.seed <= of.last_seed,
    )
    rows = session.execute(
        select(*_key(wanted), of.hardware_class, of.conditions_id, table.seed, result.metric)
        .join(environment, environment.id == of.environment_id)
        .outerjoin(table, same)
        .outerjoin(result, result.measurement_id == table.id)
        .order_by(table.seed, table.replicate)
    )
    found: dict[Key, dict[Conditions, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    for key, (hardware_class, id_, seed, metric) in map(_split, rows):
        values = found[key][Conditions(hardware_class, (id_,))]
        if metric is not None:
            values[seed] = metric
    return found
