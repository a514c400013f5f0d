"""What the pages of the dashboard show beside the bodies of the API: lists over many batches.

The number of queries does not depend on how many batches, experiments or workers there are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from decimal import Decimal
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, and_, case, func, literal, or_, select, tuple_, union
from sqlalchemy.orm import Session

from assay.contracts.batch import Counts, ExperimentBody, Funnel
from assay.contracts.environment import MetricSpec
from assay.contracts.search import DecisionRequest
from assay.domain.metrics import Direction, Judged, is_better
from assay.domain.rounding import shown
from assay.domain.states import (
    TERMINAL_EXPERIMENT,
    EpochState,
    ExperimentState,
    MeasurementKind,
    MeasurementState,
    WorkerState,
)
from assay.storage import disclosure, environments, repairs, schema
from assay.storage.annotations import read_annotations
from assay.storage.funnel import Line, latest_of
from services.implementer.views.calls import dollars
from services.implementer.views.confirmations import experiment_bodies

#: So many searches, and so many batches that belong to none, are shown.
LATEST = 12


@dataclass(frozen=True)
class WorkSummary:
    """A search or a batch in one line.

    `leader` is the experiment of the best result, `hours` is CPU time. `cost_usd` is None if the
    price of a call is unknown.
    """

    id: str
    environment: str
    profile: str
    state: str
    ideator: str | None
    executor: str
    kind: str
    counts: Counts
    metric_name: str
    direction: str
    best: float | None
    leader: ExperimentBody | None
    cost_usd: str | None
    gpu_hours: float
    hours: float
    created_at: datetime
    finished_at: datetime | None
    epochs: int | None = None
    epochs_finished: int | None = None
    tags: Sequence[str] = ()
    confirms: Confirmed | None = None


@dataclass(frozen=True)
class Capacity:
    """The live workers together, and what they hold."""

    workers: int
    cpus: int
    cpus_held: int
    gpus: int
    gpus_held: int


@dataclass(frozen=True)
class Confirmed:
    """What a batch confirms: so many results, and the first of them with its idea."""

    number: int
    experiment: str
    text: str


def confirmed_by(session: Session, batch_ids: Sequence[str]) -> dict[str, Confirmed]:
    """Return what these batches confirm, for those that confirm something."""
    table = schema.Idea
    confirming = (table.batch_id.in_(batch_ids), table.confirms.is_not(None))
    first = (
        select(table.batch_id, func.count().label("number"), func.min(table.id).label("idea"))
        .where(*confirming)
        .group_by(table.batch_id)
        .subquery()
    ).c
    rows = session.execute(
        select(first.batch_id, first.number, table.confirms, table.text).join(
            table, table.id == first.idea
        )
    )
    return {id_: Confirmed(number, of, text) for id_, number, of, text in rows if of is not None}


@dataclass(frozen=True)
class OverviewBody:
    """What the first page of the dashboard shows. `queue` counts measurements by state."""

    searches: list[WorkSummary]
    batches: list[WorkSummary]
    queue: Mapping[str, int]
    capacity: Capacity
    totals: Counts


def overview_body(session: Session, owner: str, limit: int = LATEST) -> OverviewBody:
    """Return the latest searches and single batches of an owner, and what the service does."""
    search, batch = schema.Search, schema.Batch
    searches = session.scalars(
        select(search).where(search.owner == owner).order_by(search.id.desc()).limit(limit)
    ).all()
    batches = session.scalars(
        select(batch)
        .where(batch.owner == owner, batch.search_id.is_(None))
        .order_by(batch.id.desc())
        .limit(limit)
    ).all()
    of_searches = _Sums.of(session, batch.search_id, [row.id for row in searches])
    of_batches = _Sums.of(session, batch.id, [row.id for row in batches])
    of_searches.bodies = _leaders(session, searches, of_searches)
    epochs = _epochs_finished(session, [row.id for row in searches])
    annotations = read_annotations(session, [row.id for row in searches])
    confirmed = confirmed_by(session, [row.id for row in batches])
    return OverviewBody(
        searches=[
            replace(
                _summary(session, row, of_searches, row.epochs, epochs.get(row.id, 0)),
                tags=annotations[row.id].tags if row.id in annotations else (),
            )
            for row in searches
        ],
        batches=[
            replace(_summary(session, row, of_batches), confirms=confirmed.get(row.id))
            for row in batches
        ],
        queue=queue_counts(session),
        capacity=capacity(session),
        totals=_totals(session, owner),
    )


@dataclass
class _Sums:
    """Per search or batch: experiments by state, the best of them, money, and hours."""

    counts: dict[str, Counts] = field(default_factory=dict)
    leaders: dict[str, list[Candidate]] = field(default_factory=dict)
    bodies: dict[str, ExperimentBody] = field(default_factory=dict)
    costs: dict[str, tuple[Decimal | None, int]] = field(default_factory=dict)
    hours: dict[str, tuple[float, float]] = field(default_factory=dict)

    @classmethod
    def of(cls, session: Session, key: Any, ids: Sequence[str]) -> _Sums:
        if not ids:
            return cls()
        return cls(
            _counts(session, key, ids),
            _candidates(session, key, ids),
            {},
            _costs(session, key, ids),
            _hours(session, key, ids),
        )


def _leaders(
    session: Session, searches: Sequence[schema.Search], sums: _Sums
) -> dict[str, ExperimentBody]:
    """The best experiment of each search, by the search: its confirmation says what it is."""
    ids = {}
    for row in searches:
        spec = environments.manifest(session, row.environment_id).metric
        leader = _leader(spec, sums.leaders.get(row.id, ()))
        if leader is not None:
            ids[row.id] = leader[0]
    if not ids:
        return {}
    table = schema.Experiment
    rows = session.scalars(select(table).where(table.id.in_(set(ids.values())))).all()
    bodies = {body.id: body for body in experiment_bodies(session, rows)}
    return {search: bodies[id_] for search, id_ in ids.items()}


def _counts(session: Session, key: Any, ids: Sequence[str]) -> dict[str, Counts]:
    batch, table = schema.Batch, schema.Experiment
    by_state: dict[str, dict[str, int]] = defaultdict(dict)
    for id_, state, number in session.execute(
        select(key, table.state, func.count())
        .join(batch, batch.id == table.batch_id)
        .where(key.in_(ids), batch.kind == _kind_of(key))
        .group_by(key, table.state)
    ):
        by_state[id_][state] = number
    return {id_: Counts(total=sum(found.values()), **found) for id_, found in by_state.items()}


def _kind_of(key: Any) -> Any:
    """Of a search, its confirmations are left out: they are no ideas of its own."""
    kind = schema.Batch.kind
    return MeasurementKind.SCORE.value if key is schema.Batch.search_id else kind


class Candidate(NamedTuple):
    """A result that is the best of its search or batch by one of four orders: the mean over its
    seeds or a single seed, low or high."""

    experiment: str
    mean: float
    low: float
    high: float


def _candidates(session: Session, key: Any, ids: Sequence[str]) -> dict[str, list[Candidate]]:
    """The experiments with the lowest and highest mean over seeds, and the lowest and highest
    single seed, in the order of their ids."""
    batch, table, link = schema.Batch, schema.Experiment, schema.ExperimentMeasurement
    metric = disclosure.SHOWN_METRIC
    each = (
        select(
            key.label("key"),
            table.id.label("experiment"),
            func.avg(metric).label("mean"),
            func.min(metric).label("low"),
            func.max(metric).label("high"),
        )
        .select_from(table)
        .join(batch, batch.id == table.batch_id)
        .join(link, link.experiment_id == table.id)
        .join(schema.Result, schema.Result.measurement_id == link.measurement_id)
        .where(
            key.in_(ids),
            batch.kind == _kind_of(key),
            table.state == ExperimentState.SUCCEEDED.value,
            link.role == repairs.SCORE,
        )
        .group_by(key, table.id)
        .subquery()
    ).c
    places = [
        func.row_number().over(partition_by=each.key, order_by=(order, each.experiment))
        for order in (each.mean.asc(), each.mean.desc(), each.low.asc(), each.high.desc())
    ]
    numbered = select(
        each.key, each.experiment, each.mean, each.low, each.high,
        *(place.label(f"place_{n}") for n, place in enumerate(places)),
    ).subquery()  # fmt: skip
    is_first = or_(*(numbered.c[f"place_{n}"] == 1 for n in range(len(places))))
    found: dict[str, list[Candidate]] = defaultdict(list)
    for id_, *rest in session.execute(
        select(*list(numbered.c)[:5]).where(is_first).order_by(numbered.c.experiment)
    ):
        found[id_].append(Candidate(*rest))
    return found


def _leader(spec: MetricSpec, candidates: Sequence[Candidate]) -> tuple[str, float] | None:
    """The best of the candidates and its metric as it is shown; the first of equals."""
    found: tuple[str, float] | None = None
    is_lower = spec.direction is Direction.MINIMIZE
    for each in candidates:
        single = each.low if is_lower else each.high
        value = shown(each.mean if spec.judged is Judged.METHOD else single)
        if found is None or is_better(spec.direction, value, found[1]):
            found = each.experiment, value
    return found


def _costs(
    session: Session, key: Any, ids: Sequence[str]
) -> dict[str, tuple[Decimal | None, int]]:
    call = schema.ModelCall
    whose = call.search_id if key is schema.Batch.search_id else call.batch_id
    unpriced = and_(call.cost_usd.is_(None), call.finished_at.is_not(None))
    rows = session.execute(
        select(whose, func.sum(call.cost_usd), func.sum(case((unpriced, 1), else_=0)))
        .where(whose.in_(ids))
        .group_by(whose)
    )
    return {id_: (cost, unknown) for id_, cost, unknown in rows}


def _hours(session: Session, key: Any, ids: Sequence[str]) -> dict[str, tuple[float, float]]:
    """CPU-hours and GPU-hours that results took; what experiments share counts once."""
    batch, table, link = schema.Batch, schema.Experiment, schema.ExperimentMeasurement
    measured = (
        select(key.label("key"), link.measurement_id)
        .select_from(table)
        .join(batch, batch.id == table.batch_id)
        .join(link, link.experiment_id == table.id)
        .where(key.in_(ids), batch.kind == _kind_of(key))
        .distinct()
        .subquery()
    ).c
    seconds = schema.Result.seconds
    rows = session.execute(
        select(
            measured.key,
            func.sum(seconds * schema.Measurement.cpus),
            func.sum(seconds * schema.Measurement.gpus),
        )
        .select_from(schema.Result)
        .join(schema.Measurement, schema.Measurement.id == schema.Result.measurement_id)
        .join(measured.key.table, measured.measurement_id == schema.Result.measurement_id)
        .group_by(measured.key)
    )
    return {id_: (float(cpu) / 3600, float(gpu) / 3600) for id_, cpu, gpu in rows}


@dataclass(frozen=True)
class TimeSpent:
    """Seconds of CPUs, or of GPUs where the profile holds some, that the results of a search took.

    Those of the baseline are under the conditions of the search; searches share them.
    """

    experiments: float
    confirmations: float
    baseline: float
    is_gpu: bool


def time_spent(session: Session, search_id: str, environment_id: str, profile: str) -> TimeSpent:
    """Return what the measurements of a search took; what experiments share counts once."""
    batch, table, link = schema.Batch, schema.Experiment, schema.ExperimentMeasurement
    measurement, environment = schema.Measurement, environments.registered(session, environment_id)
    idea = schema.Idea
    epochs = select(batch.id).where(batch.search_id == search_id, batch.epoch.is_not(None))
    own = (
        select(literal(MeasurementKind.SCORE.value).label("what"), link.measurement_id)
        .join(table, table.id == link.experiment_id)
        .where(table.batch_id.in_(epochs))
    )
    # Also those that somebody asked for apart from the search.
    confirming = (
        select(literal(MeasurementKind.CONFIRM.value).label("what"), link.measurement_id)
        .join(table, table.id == link.experiment_id)
        .join(idea, idea.id == table.idea_id)
        .where(idea.confirms.in_(select(table.id).where(table.batch_id.in_(epochs))))
    )
    like = select(batch.hardware_class, batch.conditions_id, batch.kind)
    unmodified = select(literal("baseline").label("what"), measurement.id).where(
        measurement.codebase_id == environment.codebase,
        measurement.environment_id == environment_id,
        measurement.profile == profile,
        tuple_(measurement.hardware_class, measurement.conditions_id, measurement.kind).in_(
            like.where(batch.search_id == search_id)
        ),
    )
    every = union(own, confirming, unmodified).subquery().c
    result = schema.Result
    rows = session.execute(
        select(
            every.what,
            func.sum(result.seconds * measurement.cpus),
            func.sum(result.seconds * measurement.gpus),
        )
        .select_from(result)
        .join(measurement, measurement.id == result.measurement_id)
        .join(every.what.table, every.measurement_id == result.measurement_id)
        .group_by(every.what)
    ).all()
    is_gpu = environment.manifest.profiles[profile].gpus > 0
    found = {what: float(gpu if is_gpu else cpu) for what, cpu, gpu in rows}
    return TimeSpent(
        experiments=found.get(MeasurementKind.SCORE.value, 0.0),
        confirmations=found.get(MeasurementKind.CONFIRM.value, 0.0),
        baseline=found.get("baseline", 0.0),
        is_gpu=is_gpu,
    )


def _epochs_finished(session: Session, ids: Sequence[str]) -> dict[str, int]:
    rows = session.execute(
        select(schema.Epoch.search_id, func.count())
        .join(schema.Batch, schema.Batch.id == schema.Epoch.batch_id)
        .where(schema.Epoch.search_id.in_(ids), schema.Batch.finished_at.is_not(None))
        .group_by(schema.Epoch.search_id)
    )
    return dict(rows.all())


def _summary(
    session: Session,
    row: schema.Search | schema.Batch,
    sums: _Sums,
    epochs: int | None = None,
    epochs_finished: int | None = None,
) -> WorkSummary:
    kind = MeasurementKind(row.kind if isinstance(row, schema.Batch) else MeasurementKind.SCORE)
    spec = environments.manifest(session, row.environment_id).metric
    top = _leader(spec, sums.leaders.get(row.id, ()))
    cost, unknown = sums.costs.get(row.id, (None, 0))
    hours, gpu_hours = sums.hours.get(row.id, (0.0, 0.0))
    return WorkSummary(
        id=row.id,
        environment=row.environment_id,
        profile=row.profile,
        state=row.state,
        ideator=row.ideator,
        executor=row.executor,
        kind=kind.value,
        counts=sums.counts.get(row.id, Counts()),
        metric_name=spec.deciding(kind),
        direction=spec.direction.value,
        best=None if top is None else top[1],
        leader=sums.bodies.get(row.id),
        cost_usd=None if unknown else dollars(cost or Decimal(0)),
        gpu_hours=gpu_hours,
        hours=hours,
        created_at=row.created_at,
        finished_at=row.finished_at,
        epochs=epochs,
        epochs_finished=epochs_finished,
    )


def queue_counts(session: Session) -> dict[str, int]:
    """Return how many measurements are queued and running, of all owners."""
    table = schema.Measurement
    live = [MeasurementState.QUEUED.value, MeasurementState.RUNNING.value]
    rows = session.execute(
        select(table.state, func.count()).where(table.state.in_(live)).group_by(table.state)
    )
    return dict.fromkeys(live, 0) | dict(rows.all())


def capacity(session: Session) -> Capacity:
    """Return what the live workers have together, and how much of it attempts hold."""
    table, attempt = schema.Worker, schema.Attempt
    is_live = (table.state == WorkerState.ACTIVE.value) & (table.incarnation != "")
    workers, cpus, gpus = session.execute(
        select(func.count(), func.sum(table.cpus), func.sum(table.gpus)).where(is_live)
    ).one()
    cpus_held, gpus_held = session.execute(
        select(func.sum(attempt.cpus), func.sum(attempt.gpus))
        .join(table, table.id == attempt.worker_id)
        .where(is_live, attempt.released_at.is_(None))
    ).one()
    return Capacity(workers, cpus or 0, cpus_held or 0, gpus or 0, gpus_held or 0)


def _totals(session: Session, owner: str) -> Counts:
    table = schema.Experiment
    rows = session.execute(
        select(table.state, func.count())
        .join(schema.Batch, schema.Batch.id == table.batch_id)
        .where(schema.Batch.owner == owner)
        .group_by(table.state)
    )
    found = dict(rows.all())
    return Counts(total=sum(found.values()), **found)


def search_experiments(
    session: Session, search_id: str, limit: int
) -> Sequence[schema.Experiment]:
    """Return up to `limit` experiments of a search's epochs, in order."""
    table, batch = schema.Experiment, schema.Batch
    return session.scalars(
        select(table)
        .join(batch, batch.id == table.batch_id)
        .where(batch.search_id == search_id, batch.epoch.is_not(None))
        .order_by(batch.epoch, table.position)
        .limit(limit)
    ).all()


@dataclass(frozen=True)
class EpochSummary:
    """An epoch that was submitted: how far its ideas came, and the money they took.

    `ended` counts those that succeeded, failed or were cancelled.
    """

    number: int
    batch: str
    state: str
    funnel: Funnel
    failed: int
    ended: int
    cost_usd: str | None


def epoch_summaries(session: Session, search_id: str) -> list[EpochSummary]:
    """Return the submitted epochs of a search, in order."""
    table, batch = schema.Experiment, schema.Batch
    implementation, sample = schema.Implementation, schema.Sample
    fitted = (
        select(sample.sample)
        .where(sample.implementation_id == implementation.id, sample.fitted)
        .exists()
    )
    is_scored = table.state == ExperimentState.SUCCEEDED.value

    def number(condition: Any) -> Any:
        return func.sum(case((condition, 1), else_=0))

    rows = session.execute(
        select(
            batch.epoch,
            batch.id,
            batch.state,
            func.count(),
            number(or_(fitted, table.codebase_id.is_not(None))),
            number(table.codebase_id.is_not(None)),
            number(or_(table.was_started, is_scored)),
            number(is_scored),
            number(table.state == ExperimentState.FAILED.value),
            number(table.state.in_([state.value for state in TERMINAL_EXPERIMENT])),
        )
        .select_from(table)
        .join(batch, batch.id == table.batch_id)
        .join(implementation, implementation.experiment_id == table.id)
        .where(batch.search_id == search_id, batch.epoch.is_not(None))
        .group_by(batch.epoch, batch.id, batch.state)
        .order_by(batch.epoch)
    ).all()
    costs = _costs(session, batch.id, [row[1] for row in rows])
    found = []
    for epoch, id_, state, *stages, failed, ended in rows:
        cost, unknown = costs.get(id_, (None, 0))
        names = ("submitted", "applied", "patched", "started", "scored")
        found.append(
            EpochSummary(
                number=epoch,
                batch=id_,
                state=state,
                funnel=Funnel(**dict(zip(names, stages, strict=True))),
                failed=failed,
                ended=ended,
                cost_usd=None if unknown else dollars(cost or Decimal(0)),
            )
        )
    return found


@dataclass(frozen=True)
class OpenEpoch:
    """An epoch that is not submitted yet. `asked`: what was decided, in words."""

    number: int
    state: str
    asked: str


def open_epochs(session: Session, search_id: str) -> list[OpenEpoch]:
    """Return the epochs of a search that are not submitted, in order, without their ideas."""
    table = schema.Epoch
    rows = session.execute(
        select(table.number, table.decision)
        .where(table.search_id == search_id, table.batch_id.is_(None))
        .order_by(table.number)
    ).all()
    return [
        OpenEpoch(number, EpochState.PROPOSED, "")
        if decision is None
        else OpenEpoch(
            number, EpochState.DECIDED, DecisionRequest.model_validate(decision).in_words
        )
        for number, decision in rows
    ]


def implementation_costs(session: Session, batch_ids: Sequence[str]) -> dict[str, Decimal]:
    """Return the dollars of each implementation of some batches, as far as prices are known."""
    call = schema.ModelCall
    rows = session.execute(
        select(call.implementation_id, func.sum(call.cost_usd))
        .where(call.batch_id.in_(batch_ids), call.cost_usd.is_not(None))
        .group_by(call.implementation_id)
    )
    return {id_: cost for id_, cost in rows if id_ is not None and cost is not None}


@dataclass(frozen=True)
class RunningAttempt:
    """An attempt that holds resources of a worker, and whose it is.

    `experiment` is None where no experiment of the owner waits for it. Then it is the baseline's,
    as `is_baseline` says, or that of a base, and `base_of` is the owner's latest
    batch that builds on it. Else it was asked for by itself, by the owner (`yours`) or another.
    """

    attempt: str
    worker: str
    state: str
    measurement: str
    kind: str
    environment: str
    profile: str
    seed: int
    cpus: int
    gpus: int
    memory_bytes: int
    started_at: datetime | None
    is_baseline: bool
    yours: bool
    experiment: str | None
    title: str | None
    base_of: str | None


def running_attempts(session: Session, owner: str) -> list[RunningAttempt]:
    """Return what runs, by worker; ideas are told to their owner alone."""
    attempt, table, link = schema.Attempt, schema.Measurement, schema.ExperimentMeasurement
    experiment, batch = schema.Experiment, schema.Batch
    own = (
        select(link.measurement_id, func.min(link.experiment_id).label("experiment"))
        .join(experiment, experiment.id == link.experiment_id)
        .join(batch, batch.id == experiment.batch_id)
        .where(batch.owner == owner)
        .group_by(link.measurement_id)
        .subquery()
    )
    # A baseline or a base is measured for a batch: no experiment is linked to it.
    base_of = (
        select(func.max(batch.id))
        .join(schema.Idea, schema.Idea.batch_id == batch.id)
        .where(
            batch.owner == owner,
            batch.environment_id == table.environment_id,
            batch.profile == table.profile,
            schema.Idea.base_id == table.codebase_id,
        )
        .correlate(table)
        .scalar_subquery()
    )
    rows: Any = session.execute(
        select(
            attempt.id,
            attempt.worker_id,
            attempt.state,
            table.id,
            table.kind,
            table.environment_id,
            table.profile,
            table.seed,
            attempt.cpus,
            attempt.gpus,
            attempt.memory_bytes,
            attempt.started_at,
            schema.Environment.codebase == table.codebase_id,
            table.owner == owner,
            own.c.experiment,
            schema.Idea.text,
            base_of,
        )
        .join(table, table.id == attempt.measurement_id)
        .join(schema.Environment, schema.Environment.id == table.environment_id)
        .outerjoin(own, own.c.measurement_id == table.id)
        .outerjoin(experiment, experiment.id == own.c.experiment)
        .outerjoin(schema.Idea, schema.Idea.id == experiment.idea_id)
        .where(attempt.released_at.is_(None))
        .order_by(attempt.worker_id, attempt.id)
    )
    return [RunningAttempt(*row) for row in rows]


@dataclass(frozen=True)
class FailureExample:
    """A failed experiment, as an example of its code."""

    experiment: str
    text: str
    message: str


def failure_examples(
    session: Session, lines: Sequence[Line]
) -> dict[tuple[str, str], list[FailureExample]]:
    """Return the latest failed experiments of these lines by stage and code, a few of each."""
    ids: dict[tuple[str, str], list[str]] = defaultdict(list)
    for line in lines:
        for ended in line.failures:
            ids[ended.stage, ended.code] += ended.latest
    wanted = {cause: latest_of(of) for cause, of in ids.items()}
    table = schema.Experiment
    rows = session.execute(
        select(table.id, schema.Idea.text, table.failure["message"].as_string())
        .join(schema.Idea, schema.Idea.id == table.idea_id)
        .where(table.id.in_([id_ for of in wanted.values() for id_ in of]))
    )
    known = {id_: FailureExample(id_, text, message or "") for id_, text, message in rows}
    return {cause: [known[id_] for id_ in of] for cause, of in wanted.items()}


def leading_experiments(
    session: Session, owner: str, environment_id: str, profile: str, limit: int
) -> Sequence[schema.Experiment]:
    """Return the owner's best results of an environment and profile, and all that were confirmed,
    in no particular order."""
    table, batch, link = schema.Experiment, schema.Batch, schema.ExperimentMeasurement
    spec = environments.manifest(session, environment_id).metric
    metric = disclosure.SHOWN_METRIC
    is_lower = spec.direction is Direction.MINIMIZE
    found: ColumnElement[float] = func.avg(metric)
    if spec.judged is Judged.ARTIFACT:
        found = func.min(metric) if is_lower else func.max(metric)
    rank = found.asc() if is_lower else found.desc()
    own = (
        batch.owner == owner,
        batch.environment_id == environment_id,
        batch.profile == profile,
    )
    best_ids = session.scalars(
        select(table.id)
        .join(batch, batch.id == table.batch_id)
        .join(link, link.experiment_id == table.id)
        .join(schema.Result, schema.Result.measurement_id == link.measurement_id)
        .where(
            *own,
            batch.kind == MeasurementKind.SCORE.value,
            table.state == ExperimentState.SUCCEEDED.value,
            link.role == repairs.SCORE,
        )
        .group_by(table.id)
        .order_by(rank, table.id)
        .limit(limit)
    ).all()
    confirmed = session.scalars(
        select(schema.Idea.confirms)
        .join(batch, batch.id == schema.Idea.batch_id)
        .where(*own, schema.Idea.confirms.is_not(None))
        .order_by(schema.Idea.id.desc())
        .limit(limit)
    ).all()
    return session.scalars(
        select(table).where(table.id.in_({*best_ids, *filter(None, confirmed)}))
    ).all()


def unfinished_batches(session: Session, owner: str, limit: int) -> Sequence[schema.Batch]:
    """Return the owner's latest batches that are not finished."""
    batch = schema.Batch
    return session.scalars(
        select(batch)
        .where(batch.owner == owner, batch.finished_at.is_(None))
        .order_by(batch.id.desc())
        .limit(limit)
    ).all()
