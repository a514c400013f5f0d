"""Experiments as the API shows them, with what their measurements say."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import select
from sqlalchemy.orm import InstrumentedAttribute, Session

from assay.contracts.base import FailureBody
from assay.contracts.batch import (
    AgreementBody,
    BaseBody,
    ExperimentBody,
    IdeaBody,
    RepairBody,
    SimilarBody,
    UsedBody,
)
from assay.domain.metrics import mean, over_seeds, reward
from assay.domain.rounding import shown, shown_metrics, shown_provenance, whole
from assay.domain.states import TERMINAL_EXPERIMENT, ExperimentState
from assay.domain.usage import mean_usage
from assay.storage import measurements, repairs, schema
from assay.storage.rows import among
from services.implementer.views.agreements import agreement_bodies
from services.implementer.views.batches import base_body
from services.implementer.views.verdicts import BaselineStats

_TERMINAL = {s.value for s in TERMINAL_EXPERIMENT}
#: Fields of `UsedBody` by the facts that workers report.
_USAGE = {
    "compute": "train_compute",
    "evaluation_compute": "evaluation_compute",
    "seconds": "train_wall",
    "memory": "train_memory",
    "artifact": "train_artifact",
    "parameters": "train_parameters",
}


def plain_bodies(session: Session, rows: Sequence[schema.Experiment]) -> list[ExperimentBody]:
    """Experiments with their own results; a fixed number of queries per setting of their batches.

    What confirmations say of them is added by `confirmations.experiment_bodies`.
    """
    related = _Related.of(session, rows)
    wanted: dict[str, set[str | None]] = defaultdict(lambda: {None})
    for row in rows:
        wanted[row.batch_id].add(related.ideas[row.idea_id].base_id)
    found = session.scalars(select(schema.Batch).where(schema.Batch.id.in_(wanted)))
    batches = {batch.id: batch for batch in found}
    stats = BaselineStats.of_batches(session, ((batches[id_], of) for id_, of in wanted.items()))
    return [
        _body(
            row,
            batches[row.batch_id],
            _Compared.of(related.ideas[row.idea_id], stats[row.batch_id]),
            related,
        )
        for row in rows
    ]


class _Compared(NamedTuple):
    """What an experiment is compared with; without a base, the baseline alone."""

    stats: BaselineStats
    base: BaseBody | None
    baseline: BaselineStats | None

    @classmethod
    def of(cls, idea: schema.Idea, stats: Mapping[str | None, BaselineStats]) -> _Compared:
        base = base_body(idea)
        return cls(stats[idea.base_id], base, None if base is None else stats[None])


class _Measured(NamedTuple):
    """A measurement of an experiment; what follows the id is None without a result."""

    id: str
    seed: int
    scored: measurements.Scored | None
    metrics: dict[str, float] | None
    seconds: float | None
    provenance: dict[str, Any] | None


@dataclass(frozen=True)
class _Related:
    ideas: dict[str, schema.Idea]
    implementations: dict[str, str]
    measured: dict[str, list[_Measured]]
    smokes: dict[str, list[str]]
    repairs: dict[str, list[RepairBody]]
    sharing: dict[tuple[str, str], list[str]]
    retried_as: dict[str, list[str]]
    reproduced_as: dict[str, list[str]]
    agreements: dict[str, AgreementBody]

    @classmethod
    def of(cls, session: Session, rows: Sequence[schema.Experiment]) -> _Related:
        ids = [row.id for row in rows]
        found_ideas = session.scalars(
            select(schema.Idea).where(
                among(session, schema.Idea.id, (row.idea_id for row in rows))
            )
        )
        ideas = {idea.id: idea for idea in found_ideas}
        implementations = session.execute(
            select(schema.Implementation.experiment_id, schema.Implementation.id).where(
                among(session, schema.Implementation.experiment_id, ids)
            )
        ).all()
        measured: dict[str, list[_Measured]] = defaultdict(list)
        link = schema.ExperimentMeasurement
        for experiment, *measurement in session.execute(
            select(
                link.experiment_id,
                link.measurement_id,
                schema.Measurement.seed,
                schema.Result.metrics,
                schema.Result.seconds,
                schema.Result.provenance,
                *measurements.SCORED,
            )
            .outerjoin(schema.Result, schema.Result.measurement_id == link.measurement_id)
            .join(schema.Measurement, schema.Measurement.id == link.measurement_id)
            .join(schema.Experiment, schema.Experiment.id == link.experiment_id)
            .join(schema.Batch, schema.Batch.id == schema.Experiment.batch_id)
            # A process of the version before asks for the kind `score`, whatever the batch is.
            .where(
                among(session, link.experiment_id, ids),
                link.role == repairs.SCORE,
                schema.Measurement.kind == schema.Batch.kind,
            )
            .order_by(schema.Measurement.seed, schema.Measurement.id)
        ):
            id_, seed, metrics, seconds, provenance, *scored = measurement
            found = None if metrics is None else measurements.Scored(*scored)
            measured[experiment].append(_Measured(id_, seed, found, metrics, seconds, provenance))
        return cls(
            ideas,
            dict(implementations),
            measured,
            _smokes(session, ids),
            _repairs(session, ids),
            cls._sharing(session, rows),
            _repeated_as(session, ids, schema.Idea.retries),
            _repeated_as(session, ids, schema.Idea.reproduces),
            agreement_bodies(session, rows, ideas),
        )

    @staticmethod
    def _sharing(
        session: Session, rows: Sequence[schema.Experiment]
    ) -> dict[tuple[str, str], list[str]]:
        sharing: dict[tuple[str, str], list[str]] = defaultdict(list)
        codebases = {row.codebase_id for row in rows if row.codebase_id}
        for batch, codebase, experiment in session.execute(
            select(schema.Experiment.batch_id, schema.Experiment.codebase_id, schema.Experiment.id)
            .where(
                among(session, schema.Experiment.codebase_id, codebases),
                schema.Experiment.batch_id.in_({row.batch_id for row in rows}),
            )
            .order_by(schema.Experiment.position)
        ):
            sharing[(batch, codebase or "")].append(experiment)
        return sharing


def _smokes(session: Session, ids: Sequence[str]) -> dict[str, list[str]]:
    link, found = schema.ExperimentMeasurement, defaultdict(list)
    for experiment, measurement in session.execute(
        select(link.experiment_id, link.measurement_id)
        .where(among(session, link.experiment_id, ids), link.role == repairs.SMOKE)
        .order_by(link.measurement_id)
    ):
        found[experiment].append(measurement)
    return found


def _repeated_as(
    session: Session, ids: Sequence[str], as_: InstrumentedAttribute[str | None]
) -> dict[str, list[str]]:
    """The experiments that measure these again; `as_`: the column that says so."""
    found: dict[str, list[str]] = defaultdict(list)
    for repeated, experiment in session.execute(
        select(as_, schema.Experiment.id)
        .join(schema.Experiment, schema.Experiment.idea_id == schema.Idea.id)
        .where(among(session, as_, ids))
        .order_by(schema.Experiment.id)
    ):
        found[repeated or ""].append(experiment)
    return found


def _repairs(session: Session, ids: Sequence[str]) -> dict[str, list[RepairBody]]:
    table, found = schema.Repair, defaultdict(list)
    for row in session.scalars(
        select(table).where(among(session, table.experiment_id, ids)).order_by(table.number)
    ):
        found[row.experiment_id].append(
            RepairBody(
                number=row.number,
                state=row.state,
                codebase=row.codebase_id,
                measurement=row.measurement_id,
                failure=FailureBody(**row.failure),
                sample=row.sample,
                revision=row.revision,
                repaired=row.repaired_id,
            )
        )
    return found


def _body(
    row: schema.Experiment, batch: schema.Batch, compared: _Compared, related: _Related
) -> ExperimentBody:
    stats, base, baseline = compared
    measured = related.measured.get(row.id, [])
    scored = {m.seed: m.scored for m in measured if m.scored is not None}
    rounded = [each.shown for each in scored.values()]
    seconds = [m.seconds for m in measured if m.seconds is not None]
    warm_ups = [w for m in measured if (w := (m.provenance or {}).get("train_warm_up_seconds"))]
    succeeded = row.state == ExperimentState.SUCCEEDED.value
    spec = stats.metric
    found = over_seeds(spec.judged, spec.direction, rounded) if succeeded else None
    metric = None if found is None else shown(found)
    twins = related.sharing.get((row.batch_id, row.codebase_id or ""), [])
    return ExperimentBody(
        id=row.id,
        batch=row.batch_id,
        environment=batch.environment_id,
        profile=batch.profile,
        position=row.position,
        idea=idea_body(related.ideas[row.idea_id]),
        state=row.state,
        is_terminal=row.state in _TERMINAL,
        failure=FailureBody(**row.failure) if row.failure else None,
        implementation=related.implementations[row.id],
        codebase=row.codebase_id,
        measurements=[m.id for m in measured],
        smokes=related.smokes.get(row.id, []),
        repairs=related.repairs.get(row.id, []),
        hardware_class=stats.on.hardware_class,
        conditions=stats.on.id or None,
        metric_name=stats.metric_name,
        metric=metric,
        metrics=_metrics(measured, stats.metric_name) if succeeded else {},
        reward=reward(spec.reward, metric),
        base=base,
        comparison=stats.compare(scored) if succeeded else None,
        against_baseline=baseline.compare(scored) if succeeded and baseline else None,
        used=_used(measured, stats.metric_name) if succeeded else None,
        seconds=sum(map(whole, seconds)) if seconds else None,
        warm_up_seconds=sum(map(whole, warm_ups)) if warm_ups else None,
        shared_with=[twin for twin in twins if twin != row.id],
        retried_as=related.retried_as.get(row.id, []),
        reproduced_as=related.reproduced_as.get(row.id, []),
        agreement=related.agreements.get(row.id),
        created_at=row.created_at,
        finished_at=row.finished_at,
    )


def _metrics(measured: Sequence[_Measured], metric: str) -> dict[str, float]:
    """Means over seeds of the evaluator's other metrics, from what measurements show of them."""
    found: dict[str, list[float]] = defaultdict(list)
    for each in measured:
        exact = {} if each.scored is None else {metric: each.scored.metric}
        for name, value in shown_metrics({**(each.metrics or {}), **exact}).items():
            if name != metric:
                found[name].append(value)
    return {name: shown(mean(values)) for name, values in sorted(found.items())}


def _used(measured: Sequence[_Measured], metric: str) -> UsedBody | None:
    """The mean of what the measurements show, so that it tells no more than they do."""
    provenances = [
        shown_provenance(m.provenance, m.metrics or {}, metric) for m in measured if m.provenance
    ]
    found = mean_usage(provenances)
    if not found:
        return None
    shown_usage = shown_provenance(found, {}, metric)
    return UsedBody(**{name: shown_usage.get(fact) for name, fact in _USAGE.items()})


def idea_body(row: schema.Idea) -> IdeaBody:
    """An idea as submitted, without its thinking."""
    return IdeaBody(
        id=row.id,
        text=row.text,
        client_key=row.client_key,
        operator=row.operator,
        parents=list(row.parents),
        confirms=row.confirms,
        retries=row.retries,
        codebase=row.codebase_id,
        reproduces=row.reproduces,
        similar=[SimilarBody(**alike) for alike in row.similar],
    )
