"""Batches and events as the API shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal

from sqlalchemy import ColumnElement, case, func, select
from sqlalchemy.orm import Session

from assay.contracts.batch import (
    BaseBody,
    BaselineSummary,
    BatchBody,
    BestSummary,
    Counts,
    EventBody,
    Funnel,
    Links,
    MeasuredBaseBody,
    MeasurementCounts,
)
from assay.contracts.caps import CapBody
from assay.contracts.environment import MetricSpec
from assay.domain.metrics import Direction, Judged, is_better
from assay.domain.rounding import shown, whole
from assay.domain.states import ExperimentState
from assay.storage import bases, caps, disclosure, repairs, schema, waiting
from assay.storage.bases import Base
from assay.storage.calls import Payer
from services.implementer.context import Context
from services.implementer.views.calls import usage
from services.implementer.views.verdicts import BaselineStats
from services.implementer.views.waits import waits_for


def batch_body(context: Context, session: Session, batch: schema.Batch) -> BatchBody:
    """A batch with its counts, funnel, usage, baseline and best result."""
    of_batch = bases.of_batch(session, batch.id)
    stats = BaselineStats.of_all(session, batch, [None, *(base.codebase for base in of_batch)])
    baseline, own = stats[None].exact, stats[None]
    counts, funnel = _counts(session, batch.id)
    path = f"/v1/batches/{batch.id}"
    return BatchBody(
        id=batch.id,
        owner=batch.owner,
        environment=batch.environment_id,
        profile=batch.profile,
        hardware_class=batch.hardware_class,
        conditions=batch.conditions_id or None,
        kind=batch.kind,
        executor=batch.executor,
        ideator=batch.ideator,
        state=batch.state,
        counts=counts,
        measurements=_measurements(session, batch.id),
        funnel=funnel,
        usage=usage(session, batch_id=batch.id),
        caps=_caps(context, session, batch),
        not_done=_not_done(session, batch.id),
        waits_for=_waits_for(context, session, batch),
        bases=_measured_bases(of_batch, stats),
        baseline=BaselineSummary(
            mean=shown(baseline.mean) if baseline else None,
            spread=shown(baseline.spread) if baseline and baseline.n > 1 else None,
            n=baseline.n if baseline else 0,
            pending=own.pending,
            failed=own.failed,
        ),
        best=best(session, [batch.id], own.metric),
        options=caps.options_of(batch),
        search=batch.search_id,
        epoch=batch.epoch,
        metadata=batch.labels,
        created_at=batch.created_at,
        finished_at=batch.finished_at,
        links=Links(
            self=path, experiments=f"/v1/experiments?batch={batch.id}", events=f"{path}/events"
        ),
    )


def base_body(row: schema.Idea | schema.Search) -> BaseBody | None:
    """The base of an idea or search, if it has one."""
    return None if row.base_id is None else BaseBody(name=row.base, codebase=row.base_id)


def _measured_bases(
    of_batch: Sequence[Base], stats: Mapping[str | None, BaselineStats]
) -> list[MeasuredBaseBody]:
    bodies = []
    for base in of_batch:
        of_base = stats[base.codebase]
        found = of_base.rounded  # an idea chose its code, so no exact results may be averaged
        bodies.append(
            MeasuredBaseBody(
                name=base.name,
                codebase=base.codebase,
                measured=BaselineSummary(
                    mean=shown(found.mean) if found else None,
                    spread=shown(found.spread) if found and found.n > 1 else None,
                    n=found.n if found else 0,
                    pending=of_base.pending,
                    failed=of_base.failed,
                ),
            )
        )
    return bodies


def _counts(session: Session, batch_id: str) -> tuple[Counts, Funnel]:
    table = schema.Experiment
    rows = session.execute(
        select(
            table.state,
            func.count(),
            func.sum(case((table.codebase_id.is_not(None), 1), else_=0)),
            func.sum(case((table.was_started.is_(True), 1), else_=0)),
        )
        .where(table.batch_id == batch_id)
        .group_by(table.state)
    ).all()
    by_state = {state: n for state, n, _, _ in rows}
    total = sum(by_state.values())
    scored = by_state.get(ExperimentState.SUCCEEDED.value, 0)
    patched, started = sum(row[2] for row in rows), sum(row[3] for row in rows)
    applied = session.scalars(
        select(func.count(func.distinct(table.id)))
        .join(schema.Implementation, schema.Implementation.experiment_id == table.id)
        .join(schema.Sample, schema.Sample.implementation_id == schema.Implementation.id)
        .where(table.batch_id == batch_id, schema.Sample.fitted)
    ).one()
    return (
        Counts(total=total, **by_state),
        Funnel(
            submitted=total,
            applied=max(applied, patched),
            patched=patched,
            # A scored experiment that shares a finished measurement was not started itself.
            started=max(started, scored),
            scored=scored,
        ),
    )


def _measurements(session: Session, batch_id: str) -> MeasurementCounts:
    link, table = schema.ExperimentMeasurement, schema.Measurement
    rows = session.execute(
        select(table.state, func.count(func.distinct(table.id)))
        .join(link, link.measurement_id == table.id)
        .join(schema.Experiment, schema.Experiment.id == link.experiment_id)
        .where(schema.Experiment.batch_id == batch_id, link.role == repairs.SCORE)
        .group_by(table.state)
    ).all()
    by_state: dict[str, int] = dict(rows)
    return MeasurementCounts(total=sum(by_state.values()), **by_state)


def _caps(context: Context, session: Session, batch: schema.Batch) -> list[CapBody]:
    """The caps of a batch, with what counts against them."""
    options = caps.options_of(batch)
    payer = Payer(batch.owner, batch.id, batch.search_id, "")
    allowed = caps.all_of(session, payer, options, context.settings.caps)
    found = []
    for limit in allowed.limits(batch.id, batch.search_id, batch.owner):
        used = caps.used(context.db, session, limit, payer)
        found.append(
            CapBody(
                scope=limit.scope,
                kind=limit.kind,
                limit=f"{limit.most:f}",
                used=f"{_shown_use(used):f}",
                reached=used >= limit.most,
            )
        )
    return found


def _shown_use(used: Decimal | float) -> Decimal | float:
    """Money as it is; GPU-hours in whole seconds, since evaluations take part of them."""
    return used if isinstance(used, Decimal) else whole(used * 3600) / 3600


def _waits_for(context: Context, session: Session, batch: schema.Batch) -> list[str]:
    if batch.finished_at is not None:
        return []
    now = context.db.now(session)
    return [waits_for(each, now) for each in waiting.of_batch(context.db, session, batch.id)]


def _not_done(session: Session, batch_id: str) -> int:
    """Experiments that a cap ended."""
    code = schema.Experiment.failure["code"].as_string()
    return session.scalars(
        select(func.count()).where(
            schema.Experiment.batch_id == batch_id,
            schema.Experiment.state == ExperimentState.FAILED.value,
            code.in_([cap.value for cap in caps.CAP_CODES]),
        )
    ).one()


def best(session: Session, batch_ids: list[str], spec: MetricSpec) -> BestSummary | None:
    """The best experiment of some batches, by the metric over its seeds as it is shown.

    The first of equals: an exact comparison would show which of them is better.
    """
    link, table = schema.ExperimentMeasurement, schema.Experiment
    metric = disclosure.SHOWN_METRIC
    if spec.judged is Judged.METHOD:
        over_seeds: ColumnElement[float] = func.avg(metric)
    else:
        is_lower = spec.direction is Direction.MINIMIZE
        over_seeds = func.min(metric) if is_lower else func.max(metric)
    rows = session.execute(
        select(table.id, over_seeds)
        .join(link, link.experiment_id == table.id)
        .join(schema.Result, schema.Result.measurement_id == link.measurement_id)
        .where(
            table.batch_id.in_(batch_ids),
            table.state == ExperimentState.SUCCEEDED.value,
            link.role == repairs.SCORE,
        )
        .group_by(table.id, table.batch_id, table.position)
        .order_by(table.batch_id, table.position)
    ).all()
    winner: BestSummary | None = None
    for experiment, found in rows:
        number = shown(found)
        if winner is None or is_better(spec.direction, number, winner.metric):
            winner = BestSummary(experiment=experiment, metric=number)
    return winner


def search_event_body(row: schema.SearchEvent) -> EventBody:
    """An event of a search."""
    return EventBody(
        id=row.id, type=row.type, search=row.search_id, data=row.data, created_at=row.created_at
    )


def event_body(row: schema.Event, search: str | None) -> EventBody:
    """An event of a batch, which may be an epoch of a search."""
    return EventBody(
        id=row.id,
        type=row.type,
        batch=row.batch_id,
        experiment=row.experiment_id,
        search=search,
        data=row.data,
        created_at=row.created_at,
    )
