"""Measurements: asked for once per identity, queued, decided."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Select, bindparam, select, update
from sqlalchemy.orm import Session

from assay.contracts.environment import Profile
from assay.domain.conditions import Conditions
from assay.domain.failure_codes import Failure, FailureCode, rules_of_stored
from assay.domain.ids import new_id
from assay.domain.states import (
    TERMINAL_EXPERIMENT,
    TERMINAL_MEASUREMENT,
    AttemptState,
    FailureStage,
    MeasurementKind,
    MeasurementState,
)
from assay.storage import baselines, conditions, disclosure, experiments, schema, shapes, software
from assay.storage.database import Database
from assay.storage.outbox import Topic, post, post_all
from assay.storage.rows import among, changed, insert_missing, run, table_of
from assay.storage.text import clean_json
from assay.storage.types import clock

#: Infrastructure failures after which a measurement fails instead of being tried again.
MAX_INFRASTRUCTURE_FAILURES = 3
#: A measurement that took so many workers with it is not given to another.
MAX_WORKERS_LOST = 2
#: Pause before a measurement whose start failed is tried again; it doubles, up to the longest.
RETRY_AFTER = timedelta(seconds=10)
LONGEST_RETRY_AFTER = timedelta(minutes=5)
_MOST_DOUBLINGS = 10
_TERMINAL = [s.value for s in TERMINAL_MEASUREMENT]
_SETTLE = (
    update(table_of(schema.Measurement))
    .where(
        schema.Measurement.id == bindparam("measurement"),
        schema.Measurement.state.not_in(_TERMINAL),
    )
    .values(state=bindparam("as_"), failure=bindparam("because"), finished_at=clock())
)
_LOCK_MEASUREMENTS = (
    select(schema.Measurement.id)
    .where(schema.Measurement.id.in_(bindparam("ids", expanding=True)))
    .order_by(schema.Measurement.id)
    .with_for_update(key_share=True)
)
_LINKED = select(schema.ExperimentMeasurement.experiment_id).where(
    schema.ExperimentMeasurement.measurement_id.in_(bindparam("ids", expanding=True))
)
_EXPERIMENTS = (
    select(schema.Experiment.batch_id)
    .order_by(schema.Experiment.id)
    .with_for_update(key_share=True)
)
_LOCK_EXPERIMENTS = _EXPERIMENTS.where(schema.Experiment.id.in_(_LINKED))
_GIVEN = select(schema.Experiment.id).where(
    schema.Experiment.id.in_(bindparam("given", expanding=True))
)
#: A union and no OR, for which Postgres would read the whole table.
_LOCK_ALSO = _EXPERIMENTS.where(schema.Experiment.id.in_(_LINKED.union_all(_GIVEN)))
_LOCK_BATCHES = (
    select(schema.Batch.id)
    .where(schema.Batch.id.in_(bindparam("batches", expanding=True)))
    .order_by(schema.Batch.id)
    .with_for_update(key_share=True)
)


@dataclass(frozen=True)
class Identity:
    """What makes a measurement the same measurement, but for the replicate."""

    codebase: str
    environment: str
    profile: str
    seed: int
    on: Conditions
    kind: MeasurementKind = MeasurementKind.SCORE

    @property
    def setting(self) -> shapes.Setting:
        """Where it is compared with others."""
        return shapes.Setting(self.environment, self.profile, self.on)


@dataclass(frozen=True)
class Terms:
    """On which terms a measurement is asked for.

    `again`: failures of before `batch_at` do not count. Later ones do, so that what was asked for
    together is measured again once. `fresh`: nothing that was measured or asked for counts.
    """

    owner: str
    batch_at: datetime
    priority: int = 0
    needs_isolation: bool = True
    again: bool = False
    fresh: bool = False


def hold(session: Session, ids: Sequence[str], experiment_ids: Sequence[str] = ()) -> None:
    """Lock measurements, the experiments they decide and those given, and their batches.

    Whoever changes several of them locks them first, and in this order: on Postgres, finishing,
    assigning and cancelling at once would otherwise wait for one another in a circle. SQLite has
    one writer at a time.
    """
    if session.get_bind().dialect.name == "sqlite":
        return
    run(session, _LOCK_MEASUREMENTS, ids=list(ids))
    if experiment_ids:
        found = run(session, _LOCK_ALSO, ids=list(ids), given=list(experiment_ids))
    else:
        found = run(session, _LOCK_EXPERIMENTS, ids=list(ids))
    batches = set(found.scalars())
    if len(batches) > 1:  # one alone is locked as late as it can be: when it changes
        run(session, _LOCK_BATCHES, batches=list(batches))


def request(
    db: Database,
    session: Session,
    identity: Identity,
    profile: Profile,
    terms: Terms,
) -> str:
    """The id of the measurement of that identity; it is created and queued if there is none.

    The next replicate is created in place of one that does not count: see `counts`. One that waits
    is queued as its most urgent request asks.

    Its row stays locked until the commit, so that it is not finished or cancelled before whoever
    asked is linked to it.
    """
    locked = (
        _latest(identity).with_for_update(key_share=True).execution_options(populate_existing=True)
    )
    while True:
        latest = session.scalars(locked).one_or_none()
        if latest is not None and counts(session, latest, terms):
            if terms.needs_isolation and not latest.needs_isolation:
                latest.needs_isolation = True
                latest.shape_id = shapes.of(session, latest, profile)
            if terms.priority > latest.priority and latest.state == MeasurementState.QUEUED.value:
                latest.priority, latest.batch_at = terms.priority, terms.batch_at
            return latest.id
        replicate = 0 if latest is None else latest.replicate + 1
        row = _queued(session, identity, profile, terms, replicate, db.now(session))
        inserted = insert_missing(session, schema.Measurement, [row])
        post(session, Topic.SCHEDULE, "queue")
        if inserted:
            return str(row["id"])
        # On Postgres a concurrent request may have been first. It is committed by now, so what is
        # asked for fresh gets the replicate after it.
        if not terms.fresh:
            break
    return session.scalars(
        select(schema.Measurement.id)
        .where(*_same(identity), schema.Measurement.replicate == replicate)
        .with_for_update(key_share=True)
    ).one()


def exists(session: Session, identity: Identity, terms: Terms) -> bool:
    """Whether a request on these terms would be answered with a measurement that is there."""
    latest = session.scalars(_latest(identity)).one_or_none()
    return latest is not None and counts(session, latest, terms)


def counts(session: Session, row: schema.Measurement, terms: Terms) -> bool:
    """Whether a measurement answers a request on these terms.

    One that was cancelled says nothing about the codebase, and neither does one without isolation
    to a request that needs it. A failure counts unless it may be the host's, the workers have
    changed since, or the request asks for it `again`. A reproduction never answers the scheduler,
    which asks for controls of hosts, and nothing answers a request for something `fresh`.
    """
    if terms.fresh or _is_anothers_control(row, terms):
        return False
    if _is_void(row) or _is_doubtful(session, row, terms):
        return False
    if row.state != MeasurementState.FAILED.value:
        return True
    if terms.again and row.finished_at is not None and row.finished_at <= terms.batch_at:
        return False
    shared = row.failure is not None and rules_of_stored(row.failure).shared
    return shared and not software.have_changed(session, row)


def _latest(identity: Identity) -> Select[schema.Measurement]:
    table = schema.Measurement
    return select(table).where(*_same(identity)).order_by(table.replicate.desc()).limit(1)


def _queued(
    session: Session,
    identity: Identity,
    profile: Profile,
    terms: Terms,
    replicate: int,
    now: datetime,
) -> dict[str, Any]:
    return {
        "shape_id": shapes.find(
            session, identity.setting, profile, needs_isolation=terms.needs_isolation
        ),
        "batch_at": terms.batch_at,
        "id": new_id("mea"),
        "kind": identity.kind.value,
        "codebase_id": identity.codebase,
        "environment_id": identity.environment,
        "profile": identity.profile,
        "seed": identity.seed,
        "hardware_class": identity.on.hardware_class,
        "conditions_id": identity.on.id,
        "replicate": replicate,
        "owner": terms.owner,
        "state": MeasurementState.QUEUED.value,
        "priority": terms.priority,
        "needs_isolation": terms.needs_isolation,
        "cpus": profile.cpus,
        "gpus": profile.gpus,
        "memory_bytes": profile.memory_bytes,
        "budget_seconds": profile.budget.training_seconds,
        "infrastructure_failures": 0,
        "cancel_requested": False,
        "created_at": now,
        "queued_at": now,
    }


def _same(identity: Identity) -> tuple[ColumnElement[bool], ...]:
    table = schema.Measurement
    return (
        table.codebase_id == identity.codebase,
        table.environment_id == identity.environment,
        table.profile == identity.profile,
        table.seed == identity.seed,
        *conditions.selected(table, identity.on),
        table.kind == identity.kind.value,
    )


def _is_doubtful(session: Session, row: schema.Measurement, terms: Terms) -> bool:
    """Whether it was measured where code could have changed its result, and that matters here.

    A smoke has no number that code could have changed.
    """
    if not terms.needs_isolation or row.state not in _TERMINAL:
        return False
    if not MeasurementKind(row.kind).is_scored:
        return False
    result = session.get(schema.Result, row.id)
    return result is not None and result.provenance.get("isolated") is False


def _is_anothers_control(row: schema.Measurement, terms: Terms) -> bool:
    return row.kind == MeasurementKind.CONTROL.value and row.owner != terms.owner


def _is_void(row: schema.Measurement) -> bool:
    if row.state == MeasurementState.CANCELLED.value:
        return True
    # One that ended before its worker was told to stop counts.
    return row.cancel_requested and row.state not in _TERMINAL


def baseline_values(
    session: Session,
    environment: schema.Environment,
    profile: str,
    on: Conditions,
    kind: MeasurementKind = MeasurementKind.SCORE,
) -> dict[int, float]:
    """Metric of the unmodified codebase by seed, exact."""
    query = _baseline_results([schema.Result.metric], environment, profile, on, kind)
    return dict(session.execute(query).all())


@dataclass(frozen=True)
class Scored:
    """The result of one seed: exact, as it is shown, and the hash of what training left.

    `held_out`, `sealed` and `train` are hashes of the splits `search`, `sealed` and of the data
    that it was trained on, `torch` is the worker's version.
    """

    metric: float
    shown: float
    artifact: str | None
    at: datetime
    held_out: str | None = None
    torch: str | None = None
    train: str | None = None
    sealed: str | None = None
    measurement: str = ""


#: What a row needs for `Scored`, in its order.
SCORED = (
    schema.Result.metric,
    disclosure.SHOWN_METRIC,
    schema.Result.provenance["artifact"].as_string(),
    schema.Result.created_at,
    schema.Result.provenance["held_out"].as_string(),
    schema.Result.provenance["torch"].as_string(),
    schema.Result.provenance["train"].as_string(),
    schema.Result.provenance["sealed"].as_string(),
    schema.Result.measurement_id,
)


def baseline_scores(
    session: Session, environment: schema.Environment, profile: str, on: Conditions
) -> dict[int, Scored]:
    """Results of the unmodified codebase by seed."""
    query = _baseline_results(SCORED, environment, profile, on, MeasurementKind.SCORE)
    return {seed: Scored(*scored) for seed, *scored in session.execute(query)}


def _baseline_results(
    columns: Sequence[Any],
    environment: schema.Environment,
    profile: str,
    on: Conditions,
    kind: MeasurementKind,
) -> Select[Any]:
    return (
        select(schema.Measurement.seed, *columns)
        .join(schema.Result, schema.Result.measurement_id == schema.Measurement.id)
        .where(*baselines.is_baseline(environment, profile, on, kind))
        .order_by(schema.Measurement.seed, schema.Measurement.replicate)
    )


@dataclass(frozen=True)
class Base:
    """What ideas are compared with: the results of a codebase by seed, and how many of the seeds
    are still to come, and failed."""

    scores: Mapping[int, Scored]
    pending: int
    failed: int


_OF_BASES = (
    select(schema.Measurement.codebase_id, schema.Measurement.seed, schema.Measurement.state)
    .add_columns(*SCORED)
    .outerjoin(schema.Result, schema.Result.measurement_id == schema.Measurement.id)
    .where(
        among(schema.Measurement.codebase_id, "codebases"),
        schema.Measurement.environment_id == bindparam("environment"),
        schema.Measurement.profile == bindparam("profile"),
        schema.Measurement.hardware_class == bindparam("hardware_class"),
        among(schema.Measurement.conditions_id, "conditions"),
        schema.Measurement.kind == bindparam("kind"),
    )
    .order_by(schema.Measurement.seed, schema.Measurement.replicate)
)


def of_bases(
    session: Session,
    environment_id: str,
    profile: str,
    on: Conditions,
    codebases: Collection[str],
    seeds: Collection[int],
    kind: MeasurementKind,
) -> dict[str, Base]:
    """How far each of these codebases is, the unmodified one or a base, on these seeds.

    The newest measurement of a seed says whether it is still to come or failed, and the newest
    result of it counts. A seed that has a result is neither.
    """
    rows = run(
        session,
        _OF_BASES,
        codebases=list(codebases),
        environment=environment_id,
        profile=profile,
        hardware_class=on.hardware_class,
        conditions=list(on.ids),
        kind=kind.value,
    )
    scores: dict[str, dict[int, Scored]] = {codebase: {} for codebase in codebases}
    states: dict[str, dict[int, str]] = {codebase: {} for codebase in codebases}
    for codebase, seed, state, metric, *scored in rows:
        if seed in seeds:
            states[codebase][seed] = state
            if scored[-1] is not None:
                scores[codebase][seed] = Scored(metric, *scored)
    found = {}
    for codebase in codebases:
        left = [s for seed, s in states[codebase].items() if seed not in scores[codebase]]
        failed = left.count(MeasurementState.FAILED.value)
        pending = sum(state not in _TERMINAL for state in left)
        found[codebase] = Base(scores[codebase], pending, failed)
    return found


def settle(
    session: Session,
    measurement_id: str,
    state: MeasurementState,
    failure: Failure | None = None,
) -> None:
    """Put a measurement into a terminal state, if it is not in one, and tell its experiments."""
    run(
        session,
        _SETTLE,
        measurement=measurement_id,
        as_=state.value,
        because=clean_json(failure.as_dict()) if failure else None,
    )
    experiments.refresh_for_measurement(session, measurement_id)


def retry(
    db: Database,
    session: Session,
    measurement_id: str,
    failure: Failure,
    after: timedelta = RETRY_AFTER,
) -> None:
    """Queue a measurement again after an infrastructure failure, or fail it after too many."""
    row = _locked(session, measurement_id)
    if row.state in _TERMINAL:
        return
    if failure.rules.counts_as_try:
        row.infrastructure_failures += 1
    session.flush()
    if row.cancel_requested:
        settle(session, measurement_id, MeasurementState.CANCELLED)
        return
    final = _final(session, row, failure)
    if final is not None:
        settle(session, measurement_id, MeasurementState.FAILED, final)
        return
    _queue_again(session, row, _not_before(db, session, row, failure, after))


def try_once_more(db: Database, session: Session, measurement_id: str, after: timedelta) -> None:
    """Queue a measurement again, after a pause, that its codebase or its host may have failed."""
    row = _locked(session, measurement_id)
    if row.state in _TERMINAL:
        return
    if row.cancel_requested:
        settle(session, measurement_id, MeasurementState.CANCELLED)
        return
    _queue_again(session, row, db.now(session) + after)


def _locked(session: Session, measurement_id: str) -> schema.Measurement:
    """A measurement as it is now, held until the end of the transaction."""
    return session.scalars(
        select(schema.Measurement)
        .where(schema.Measurement.id == measurement_id)
        .with_for_update(key_share=True)
        .execution_options(populate_existing=True)
    ).one()


def _queue_again(
    session: Session, row: schema.Measurement, not_before: datetime | None = None
) -> None:
    row.state, row.not_before = MeasurementState.QUEUED.value, not_before
    session.flush()
    post(session, Topic.SCHEDULE, "queue")
    experiments.refresh_for_measurement(session, row.id)


def _final(session: Session, row: schema.Measurement, failure: Failure) -> Failure | None:
    """Why a measurement is not tried again, if it is not."""
    is_gone = failure.rules.worker_is_gone
    if is_gone and _workers_lost(session, row.id) >= MAX_WORKERS_LOST:
        message = f"{MAX_WORKERS_LOST} workers were lost while they ran it; last: "
        return Failure(FailureStage.START, FailureCode.QUARANTINED, message + failure.message)
    if row.infrastructure_failures > MAX_INFRASTRUCTURE_FAILURES:
        message = f"given up after {row.infrastructure_failures} attempts; last: {failure.message}"
        return Failure(FailureStage.START, FailureCode.INFRASTRUCTURE, message)
    return None


def _workers_lost(session: Session, measurement_id: str) -> int:
    """On how many workers attempts were lost while the codebase ran."""
    rows = session.execute(
        select(schema.Attempt.worker_id, schema.Attempt.failure).where(
            schema.Attempt.measurement_id == measurement_id,
            schema.Attempt.state == AttemptState.LOST.value,
            schema.Attempt.started_at.is_not(None),
        )
    ).all()
    return len({row.worker_id for row in rows if rules_of_stored(row.failure).worker_is_gone})


def _not_before(
    db: Database, session: Session, row: schema.Measurement, failure: Failure, after: timedelta
) -> datetime | None:
    """Return when it may be tried again; None if that is at once."""
    if not failure.rules.waits:
        return None
    doubled = 1 << min(row.infrastructure_failures - 1, _MOST_DOUBLINGS)
    return db.now(session) + min(after * doubled, LONGEST_RETRY_AFTER)


def cancel_unwanted(db: Database, session: Session, ids: Collection[str]) -> None:
    """Cancel those measurements that no unfinished experiment needs, and no baseline or base.

    Queued ones are cancelled at once; of those that run, the workers are told to stop.
    """
    link, table = schema.ExperimentMeasurement, schema.Measurement
    wanted = (
        select(link.experiment_id)
        .join(schema.Experiment, schema.Experiment.id == link.experiment_id)
        .where(
            link.measurement_id == table.id,
            schema.Experiment.state.not_in([s.value for s in TERMINAL_EXPERIMENT]),
        )
        .correlate(table)
        .exists()
    )
    rows = session.execute(
        select(table, schema.Environment.codebase)
        .outerjoin(schema.Environment, schema.Environment.id == table.environment_id)
        .where(table.id.in_(ids), table.state.not_in(_TERMINAL), ~wanted)
        .execution_options(populate_existing=True)
    ).all()
    based = _bases_among(session, {row.codebase_id for row, _ in rows})
    unwanted = [
        row
        for row, own in rows
        # A control of the environment's own code belongs to the reproduction that ended.
        if (row.codebase_id != own or row.kind == MeasurementKind.CONTROL.value)
        and not (row.codebase_id in based and baselines.is_of_base(session, row))
    ]
    queued = [row.id for row in unwanted if row.state == MeasurementState.QUEUED.value]
    running = [row.id for row in unwanted if row.state != MeasurementState.QUEUED.value]
    # No unfinished experiment is to be told: none needs them.
    changed(
        session,
        update(table)
        .where(table.id.in_(queued), table.state == MeasurementState.QUEUED.value)
        .values(state=MeasurementState.CANCELLED.value, finished_at=clock()),
    )
    changed(session, update(table).where(table.id.in_(running)).values(cancel_requested=True))
    workers = session.scalars(
        select(schema.Attempt.worker_id)
        .where(schema.Attempt.measurement_id.in_(running), schema.Attempt.released_at.is_(None))
        .distinct()
    ).all()
    post_all(db, session, Topic.WORKER, workers)


def _bases_among(session: Session, codebases: Collection[str]) -> set[str]:
    """Return the codebases that an idea changes and is compared with."""
    base = schema.Idea.base_id
    return set(session.scalars(select(base).where(base.in_(codebases)).distinct()))
