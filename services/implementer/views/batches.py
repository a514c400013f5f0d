"""Batches and events as the API shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from itertools import chain
from typing import Any, Protocol

from sqlalchemy import and_, case, func, select
from sqlalchemy.orm import Session

from assay.contracts.batch import (
    BaseBody,
    BaselineSummary,
    BatchBody,
    BestSummary,
    Counts,
    EventBody,
    Links,
    MeasuredBaseBody,
    MeasurementCounts,
    Usage,
)
from assay.contracts.caps import CapBody, Limit
from assay.contracts.environment import MetricSpec
from assay.domain.metrics import Direction, Judged, is_better
from assay.domain.rounding import shown, whole
from assay.domain.states import ExperimentState
from assay.storage import bases, caps, disclosure, repairs, schema, waiting
from assay.storage.bases import Base
from assay.storage.calls import Payer
from assay.storage.rows import among, get_all, run
from services.implementer.context import Context
from services.implementer.outcomes import BatchCounts, BatchOutcome
from services.implementer.views.calls import usage_of_batches
from services.implementer.views.verdicts import BaselineStats
from services.implementer.views.waits import waits_for

_EXPERIMENT, _LINK = schema.Experiment, schema.ExperimentMeasurement
_CAPPED = and_(
    _EXPERIMENT.state == ExperimentState.FAILED.value,
    _EXPERIMENT.failure["code"].as_string().in_([cap.value for cap in caps.CAP_CODES]),
)
_COUNTS = (
    select(
        _EXPERIMENT.batch_id,
        _EXPERIMENT.state,
        func.count(),
        func.count(_EXPERIMENT.codebase_id),
        func.sum(case((_EXPERIMENT.was_started.is_(True), 1), else_=0)),
        func.sum(case((_CAPPED, 1), else_=0)),
    )
    .where(among(_EXPERIMENT.batch_id))
    .group_by(_EXPERIMENT.batch_id, _EXPERIMENT.state)
)
_APPLIED = (
    select(_EXPERIMENT.batch_id, func.count(func.distinct(_EXPERIMENT.id)))
    .join(schema.Implementation, schema.Implementation.experiment_id == _EXPERIMENT.id)
    .join(schema.Sample, schema.Sample.implementation_id == schema.Implementation.id)
    .where(among(_EXPERIMENT.batch_id), schema.Sample.fitted)
    .group_by(_EXPERIMENT.batch_id)
)
_MEASUREMENTS = (
    select(
        _EXPERIMENT.batch_id,
        schema.Measurement.state,
        func.count(func.distinct(schema.Measurement.id)),
    )
    .join(_LINK, _LINK.measurement_id == schema.Measurement.id)
    .join(_EXPERIMENT, _EXPERIMENT.id == _LINK.experiment_id)
    .where(among(_EXPERIMENT.batch_id), _LINK.role == repairs.SCORE)
    .group_by(_EXPERIMENT.batch_id, schema.Measurement.state)
)
_METRIC = disclosure.SHOWN_METRIC
_BEST = (
    select(
        _EXPERIMENT.batch_id,
        _EXPERIMENT.id,
        func.avg(_METRIC),
        func.min(_METRIC),
        func.max(_METRIC),
    )
    .join(_LINK, _LINK.experiment_id == _EXPERIMENT.id)
    .join(schema.Result, schema.Result.measurement_id == _LINK.measurement_id)
    .where(
        among(_EXPERIMENT.batch_id),
        _EXPERIMENT.state == ExperimentState.SUCCEEDED.value,
        _LINK.role == repairs.SCORE,
    )
    .group_by(_EXPERIMENT.id, _EXPERIMENT.batch_id, _EXPERIMENT.position)
    .order_by(_EXPERIMENT.batch_id, _EXPERIMENT.position)
)


def batch_body(
    context: Context, session: Session, batch: schema.Batch, *, is_new: bool = False
) -> BatchBody:
    """A batch with its counts, funnel, usage, baseline and best result. `is_new`: this transaction
    has stored it."""
    return batch_bodies(context, session, [batch], are_new=is_new)[0]


def batch_bodies(
    context: Context, session: Session, rows: Sequence[schema.Batch], *, are_new: bool = False
) -> list[BatchBody]:
    """Batches with their counts, funnels, usages, baselines and best results. `are_new`: nothing
    can have been done for any of them, so only their ideas are counted.

    The number of queries depends on how many settings (environment, profile, conditions, seeds of
    the baseline) the batches have, not on how many batches there are.
    """
    if not rows:
        return []
    ids = [row.id for row in rows]
    based_on = bases.of_batches(session, ids)
    stats = BaselineStats.of_batches(
        session, [(row, [None, *(base.codebase for base in based_on[row.id])]) for row in rows]
    )
    specs = {row.id: stats[row.id][None].metric for row in rows}
    if are_new:
        counts = _counts(session, ids)
        outcomes = {
            id_: BatchOutcome(counts[id_], 0, MeasurementCounts(), Usage(), None) for id_ in ids
        }
    else:
        finished = [row.id for row in rows if row.finished_at is not None]
        outcomes = outcomes_of_finished(context, session, {id_: specs[id_] for id_ in finished})
        outcomes |= _outcomes(session, {id_: specs[id_] for id_ in ids if id_ not in outcomes})
    under = _caps(context, session, rows)
    waits = {} if are_new else _waits_for(context, session, rows)
    return [
        _body(
            row,
            stats[row.id],
            counts=outcomes[row.id].counts.counts,
            measurements=outcomes[row.id].measurements,
            funnel=outcomes[row.id].funnel,
            usage=outcomes[row.id].usage,
            caps=under[row.id],
            not_done=outcomes[row.id].counts.capped,
            waits_for=waits.get(row.id, []),
            bases=_measured_bases(based_on[row.id], stats[row.id]),
            best=outcomes[row.id].best,
        )
        for row in rows
    ]


def outcomes_of_finished(
    context: Context, session: Session, specs: Mapping[str, MetricSpec]
) -> dict[str, BatchOutcome]:
    """What came of finished batches, by id; mostly without a query. `specs`: their metrics."""
    return context.finished.of(
        specs, lambda missing: _outcomes(session, {id_: specs[id_] for id_ in missing})
    )


def _outcomes(session: Session, specs: Mapping[str, MetricSpec]) -> dict[str, BatchOutcome]:
    """What came of batches until now, in five queries."""
    ids = list(specs)
    if not ids:
        return {}
    counts, measured = _counts(session, ids), _measurements(session, ids)
    applied, used, best = (
        _applied(session, ids),
        usage_of_batches(session, ids),
        _best(session, specs),
    )
    return {
        id_: BatchOutcome(
            counts[id_], applied.get(id_, 0), measured[id_], used.get(id_, Usage()), best.get(id_)
        )
        for id_ in ids
    }


def _body(
    batch: schema.Batch, stats: Mapping[str | None, BaselineStats], **found: Any
) -> BatchBody:
    baseline, own = stats[None].exact, stats[None]
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
        baseline=BaselineSummary(
            mean=shown(baseline.mean) if baseline else None,
            spread=shown(baseline.spread) if baseline and baseline.n > 1 else None,
            n=baseline.n if baseline else 0,
            pending=own.pending,
            failed=own.failed,
        ),
        options=caps.options_of(batch),
        search=batch.search_id,
        epoch=batch.epoch,
        metadata=batch.labels,
        created_at=batch.created_at,
        finished_at=batch.finished_at,
        links=Links(
            self=path, experiments=f"/v1/experiments?batch={batch.id}", events=f"{path}/events"
        ),
        **found,
    )


class Based(Protocol):
    """An idea or a search: its base, and what that was asked for as."""

    @property
    def base_id(self) -> str | None: ...

    @property
    def base(self) -> str | None: ...


def base_body(row: Based) -> BaseBody | None:
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


def _counts(session: Session, batch_ids: Sequence[str]) -> Mapping[str, BatchCounts]:
    """The experiments of batches, by batch, in one query."""
    rows = run(session, _COUNTS, ids=list(batch_ids))
    by_state: dict[str, dict[str, int]] = {id_: {} for id_ in batch_ids}
    sums: dict[str, list[int]] = {id_: [0, 0, 0] for id_ in batch_ids}
    for batch_id, state, number, *more in rows:
        by_state[batch_id][state] = number
        sums[batch_id] = [a + b for a, b in zip(sums[batch_id], more, strict=True)]
    return {
        id_: BatchCounts(Counts(total=sum(found.values()), **found), *sums[id_])
        for id_, found in by_state.items()
    }


def _applied(session: Session, batch_ids: Sequence[str]) -> Mapping[str, int]:
    """How many experiments have a sample whose diff fitted, by batch."""
    return dict(run(session, _APPLIED, ids=list(batch_ids)).all())


def _measurements(session: Session, batch_ids: Sequence[str]) -> Mapping[str, MeasurementCounts]:
    rows = run(session, _MEASUREMENTS, ids=list(batch_ids))
    by_state: dict[str, dict[str, int]] = {id_: {} for id_ in batch_ids}
    for batch_id, state, number in rows:
        by_state[batch_id][state] = number
    return {
        id_: MeasurementCounts(total=sum(found.values()), **found)
        for id_, found in by_state.items()
    }


def _caps(
    context: Context, session: Session, rows: Sequence[schema.Batch]
) -> dict[str, list[CapBody]]:
    """The caps of batches, with what counts against them."""
    # The session finds those that are held, so that `all_of` asks for none of them by itself.
    _held = get_all(session, schema.Search, (row.search_id for row in rows if row.search_id))
    limits: dict[str, list[tuple[Limit, Payer]]] = {}
    for row in rows:
        payer = Payer(row.owner, row.id, row.search_id, "")
        allowed = caps.all_of(session, payer, caps.options_of(row), context.settings.caps)
        limits[row.id] = [
            (limit, payer) for limit in allowed.limits(row.id, row.search_id, row.owner)
        ]
    used = caps.used_by(context.db, session, chain.from_iterable(limits.values()))
    return {
        id_: [_cap_body(limit, caps.used(used, limit, payer)) for limit, payer in of]
        for id_, of in limits.items()
    }


def _cap_body(limit: Limit, used: Decimal | float) -> CapBody:
    return CapBody(
        scope=limit.scope,
        kind=limit.kind,
        limit=f"{limit.most:f}",
        used=f"{_shown_use(used):f}",
        reached=used >= limit.most,
    )


def _shown_use(used: Decimal | float) -> Decimal | float:
    """Money as it is; GPU-hours in whole seconds, since evaluations take part of them."""
    return used if isinstance(used, Decimal) else whole(used * 3600) / 3600


def _waits_for(
    context: Context, session: Session, rows: Sequence[schema.Batch]
) -> dict[str, list[str]]:
    open_ = [row.id for row in rows if row.finished_at is None]
    if not open_:
        return {}
    now = context.db.now(session)
    found = waiting.of_batches(context.db, session, open_)
    return {id_: [waits_for(each, now) for each in of] for id_, of in found.items()}


def _best(session: Session, specs: Mapping[str, MetricSpec]) -> dict[str, BestSummary]:
    """The best experiment of each batch, by the metric over its seeds as it is shown; a batch
    without a result is left out. `specs`: the metrics of the batches, by id.

    The first of equals: an exact comparison would show which of them is better.
    """
    winners: dict[str, BestSummary] = {}
    for batch_id, experiment, average, lowest, highest in run(session, _BEST, ids=list(specs)):
        spec = specs[batch_id]
        if spec.judged is Judged.METHOD:
            found = average
        else:
            found = lowest if spec.direction is Direction.MINIMIZE else highest
        number, winner = shown(found), winners.get(batch_id)
        if winner is None or is_better(spec.direction, number, winner.metric):
            winners[batch_id] = BestSummary(experiment=experiment, metric=number)
    return winners


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
