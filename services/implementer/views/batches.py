"""Batches and events as the API shows them."""

from __future__ import annotations

from decimal import Decimal

from sqlalchemy import case, func, select
from sqlalchemy.orm import Session

from assay.contracts.batch import (
    BaselineSummary,
    BatchBody,
    BatchOptions,
    BestSummary,
    Counts,
    EventBody,
    Funnel,
    Links,
    Usage,
)
from assay.domain.metrics import Direction, is_better
from assay.domain.states import ExperimentState
from assay.storage import schema
from services.implementer.views.experiments import Yardstick


def batch_body(session: Session, batch: schema.Batch) -> BatchBody:
    """A batch with its counts, funnel, usage, baseline and best result."""
    yardstick = Yardstick.of(session, batch)
    baseline = yardstick.baseline
    counts, funnel = _counts(session, batch.id)
    path = f"/v1/batches/{batch.id}"
    return BatchBody(
        id=batch.id,
        owner=batch.owner,
        environment=batch.environment_id,
        profile=batch.profile,
        hardware_class=batch.hardware_class,
        executor=batch.executor,
        ideator=batch.ideator,
        state=batch.state,
        counts=counts,
        funnel=funnel,
        usage=usage(session, batch_id=batch.id),
        baseline=BaselineSummary(
            mean=baseline.mean if baseline else None,
            spread=baseline.spread if baseline else None,
            n=baseline.n if baseline else 0,
            pending=yardstick.pending,
        ),
        best=best(session, [batch.id], yardstick.metric.direction),
        options=BatchOptions.model_validate(batch.options),
        search=batch.search_id,
        epoch=batch.epoch,
        metadata=batch.labels,
        created_at=batch.created_at,
        finished_at=batch.finished_at,
        links=Links(
            self=path, experiments=f"/v1/experiments?batch={batch.id}", events=f"{path}/events"
        ),
    )


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
    return (
        Counts(total=total, **by_state),
        # A scored experiment that shares a finished measurement was not started itself.
        Funnel(submitted=total, patched=patched, started=max(started, scored), scored=scored),
    )


def usage(
    session: Session, *, batch_id: str | None = None, implementation_id: str | None = None
) -> Usage:
    """What the model calls of a batch or of one implementation used."""
    table = schema.Sample
    query = select(
        func.count(),
        func.coalesce(func.sum(table.input_tokens), 0),
        func.coalesce(func.sum(table.cached_input_tokens), 0),
        func.coalesce(func.sum(table.output_tokens), 0),
        func.sum(table.cost_usd),
        func.sum(case((table.cost_usd.is_(None) & table.finished_at.is_not(None), 1), else_=0)),
    )
    if implementation_id is not None:
        query = query.where(table.implementation_id == implementation_id)
    if batch_id is not None:
        query = (
            query.join(schema.Implementation, schema.Implementation.id == table.implementation_id)
            .join(schema.Experiment, schema.Experiment.id == schema.Implementation.experiment_id)
            .where(schema.Experiment.batch_id == batch_id)
        )
    calls, tokens, cached, output, cost, unpriced = session.execute(query).one()
    return Usage(
        calls=calls,
        input_tokens=tokens,
        cached_input_tokens=cached,
        output_tokens=output,
        cost_usd=None if unpriced else dollars(cost or Decimal(0)),
    )


def dollars(amount: Decimal) -> str:
    """Dollars without trailing zeros, never in exponent notation."""
    return f"{amount.normalize():f}"


def best(session: Session, batch_ids: list[str], direction: Direction) -> BestSummary | None:
    """The best experiment of some batches, by the mean metric over its seeds."""
    link, table = schema.ExperimentMeasurement, schema.Experiment
    rows = session.execute(
        select(table.id, func.avg(schema.Result.metric))
        .join(link, link.experiment_id == table.id)
        .join(schema.Result, schema.Result.measurement_id == link.measurement_id)
        .where(table.batch_id.in_(batch_ids), table.state == ExperimentState.SUCCEEDED.value)
        .group_by(table.id, table.batch_id, table.position)
        .order_by(table.batch_id, table.position)
    ).all()
    winner: BestSummary | None = None
    for experiment, metric in rows:
        if winner is None or is_better(direction, metric, winner.metric):
            winner = BestSummary(experiment=experiment, metric=metric)
    return winner


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
