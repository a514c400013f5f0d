"""Experiments as the API shows them, with what their measurements say."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import select
from sqlalchemy.orm import Session

from assay.contracts.base import FailureBody
from assay.contracts.batch import (
    ExperimentBody,
    IdeaBody,
    PairBody,
    RepairBody,
    SimilarBody,
    UsedBody,
)
from assay.domain.errors import Conflict, NotFound
from assay.domain.metrics import mean, over_seeds, reward
from assay.domain.rounding import (
    shown,
    shown_metrics,
    shown_provenance,
    whole,
)
from assay.domain.states import TERMINAL_EXPERIMENT, ExperimentState
from assay.domain.usage import mean_usage
from assay.storage import conditions, measurements, repairs, schema
from assay.storage.rows import get
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


def experiment_bodies(session: Session, rows: Sequence[schema.Experiment]) -> list[ExperimentBody]:
    """Experiments with their results; a fixed number of queries per batch."""
    baselines: dict[str, BaselineStats] = {}
    for batch_id in {row.batch_id for row in rows}:
        batch = get(session, schema.Batch, batch_id, "batch")
        baselines[batch_id] = BaselineStats.of(session, batch)
    related = _Related.of(session, rows)
    return [_body(row, baselines[row.batch_id], related) for row in rows]


def pair_body(session: Session, one: schema.Experiment, other: schema.Experiment) -> PairBody:
    """One experiment beside another, by seed where both were measured on it.

    Raises:
        NotFound: one has no result.
        Conflict: they are of different environments or profiles.
    """
    related = _Related.of(session, [one, other])
    mine, theirs = (
        {m.seed: m.scored for m in related.measured.get(row.id, []) if m.scored is not None}
        for row in (one, other)
    )
    for row in (one, other):
        if row.state != ExperimentState.SUCCEEDED.value:
            raise NotFound(f"{row.id} is {row.state} and has no result", code="no_result")
    batch, others = (get(session, schema.Batch, row.batch_id, "batch") for row in (one, other))
    for name in ("environment_id", "profile"):
        if getattr(batch, name) != getattr(others, name):
            raise Conflict(
                f"{one.id} was measured on {getattr(batch, name)}, {other.id} on "
                f"{getattr(others, name)}: their metrics say different things",
                code="not_comparable",
            )
    stats = BaselineStats.instead(session, batch, theirs)
    found = stats.compare(mine, conditions.that_differ(session, batch, others))
    assert found is not None, "both have results"
    return PairBody(
        experiment=one.id,
        other=other.id,
        environment=batch.environment_id,
        profile=batch.profile,
        metric_name=stats.metric.name,
        comparison=found,
    )


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

    @classmethod
    def of(cls, session: Session, rows: Sequence[schema.Experiment]) -> _Related:
        ids = [row.id for row in rows]
        ideas = session.scalars(
            select(schema.Idea).where(schema.Idea.id.in_([row.idea_id for row in rows]))
        )
        implementations = session.execute(
            select(schema.Implementation.experiment_id, schema.Implementation.id).where(
                schema.Implementation.experiment_id.in_(ids)
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
            .where(link.experiment_id.in_(ids), link.role == repairs.SCORE)
            .order_by(schema.Measurement.seed, schema.Measurement.id)
        ):
            id_, seed, metrics, seconds, provenance, *scored = measurement
            found = None if metrics is None else measurements.Scored(*scored)
            measured[experiment].append(_Measured(id_, seed, found, metrics, seconds, provenance))
        return cls(
            {idea.id: idea for idea in ideas},
            dict(implementations),
            measured,
            _smokes(session, ids),
            _repairs(session, ids),
            cls._sharing(session, rows),
            _retried_as(session, ids),
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
                schema.Experiment.codebase_id.in_(codebases),
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
        .where(link.experiment_id.in_(ids), link.role == repairs.SMOKE)
        .order_by(link.measurement_id)
    ):
        found[experiment].append(measurement)
    return found


def _retried_as(session: Session, ids: Sequence[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for retried, experiment in session.execute(
        select(schema.Idea.retries, schema.Experiment.id)
        .join(schema.Experiment, schema.Experiment.idea_id == schema.Idea.id)
        .where(schema.Idea.retries.in_(ids))
        .order_by(schema.Experiment.id)
    ):
        found[retried or ""].append(experiment)
    return found


def _repairs(session: Session, ids: Sequence[str]) -> dict[str, list[RepairBody]]:
    table, found = schema.Repair, defaultdict(list)
    for row in session.scalars(
        select(table).where(table.experiment_id.in_(ids)).order_by(table.number)
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


def _body(row: schema.Experiment, baseline: BaselineStats, related: _Related) -> ExperimentBody:
    measured = related.measured.get(row.id, [])
    scored = {m.seed: m.scored for m in measured if m.scored is not None}
    rounded = [each.shown for each in scored.values()]
    seconds = [m.seconds for m in measured if m.seconds is not None]
    warm_ups = [w for m in measured if (w := (m.provenance or {}).get("train_warm_up_seconds"))]
    name = baseline.metric.confirmed
    metrics = [shown_metrics(m.metrics) for m in measured if name and m.metrics]
    confirmed = [found[name] for found in metrics if name and name in found]
    succeeded = row.state == ExperimentState.SUCCEEDED.value
    spec = baseline.metric
    found = over_seeds(spec.judged, spec.direction, rounded) if succeeded else None
    metric = None if found is None else shown(found)
    twins = related.sharing.get((row.batch_id, row.codebase_id or ""), [])
    return ExperimentBody(
        id=row.id,
        batch=row.batch_id,
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
        metric_name=baseline.metric.name,
        metric=metric,
        confirmed=shown(mean(confirmed)) if succeeded and confirmed else None,
        reward=reward(baseline.metric.reward, metric),
        comparison=baseline.compare(scored) if succeeded else None,
        used=_used(measured, baseline.metric.name) if succeeded else None,
        seconds=sum(map(whole, seconds)) if seconds else None,
        warm_up_seconds=sum(map(whole, warm_ups)) if warm_ups else None,
        shared_with=[twin for twin in twins if twin != row.id],
        retried_as=related.retried_as.get(row.id, []),
        created_at=row.created_at,
        finished_at=row.finished_at,
    )


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
        similar=[SimilarBody(**alike) for alike in row.similar],
    )
