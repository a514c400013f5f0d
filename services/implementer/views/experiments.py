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
    ComparisonBody,
    ExperimentBody,
    IdeaBody,
    RepairBody,
    SimilarBody,
    UsedBody,
)
from assay.contracts.environment import MetricSpec
from assay.domain.metrics import Sample, compare, improvement, mean, reward
from assay.domain.rounding import (
    shown,
    shown_metrics,
    shown_or_none,
    shown_provenance,
    whole,
)
from assay.domain.states import TERMINAL_EXPERIMENT, ExperimentState
from assay.domain.usage import mean_usage
from assay.storage import caps, disclosure, environments, measurements, repairs, schema
from assay.storage.rows import get

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


@dataclass(frozen=True)
class Yardstick:
    """What the experiments of a batch are compared with: exact numbers."""

    metric: MetricSpec
    baseline: Sample | None
    pending: int

    @classmethod
    def of(cls, session: Session, batch: schema.Batch) -> Yardstick:
        """The baseline of a batch: the seeds it asked for, on its hardware class."""
        environment = get(session, schema.Environment, batch.environment_id, "environment")
        manifest = environments.manifest(session, batch.environment_id)
        wanted = caps.options_of(batch).baseline_seeds
        values = measurements.baseline_values(
            session, environment, batch.profile, batch.hardware_class, wanted
        )
        sample = Sample.of(list(values.values()))
        return cls(manifest.metric, sample, max(0, wanted - len(values)))

    def compare(self, values: Sequence[float], metric: float | None) -> ComparisonBody | None:
        """A result against the baseline; None without either.

        The verdict is that of the exact `values`. All other numbers are computed from `metric`,
        which is their mean as it is shown, so that they tell no more about it.
        """
        result = Sample.of(values)
        if result is None or metric is None or self.baseline is None:
            return None
        comparison = compare(self.metric.direction, result, self.baseline)
        if comparison is None:
            return None
        mean, error = shown(self.baseline.mean), comparison.standard_error
        delta = metric - mean
        sigmas = None if error is None else improvement(self.metric.direction, delta, error)
        return ComparisonBody(
            baseline_mean=mean,
            baseline_spread=shown_or_none(self.baseline.spread),
            baseline_n=self.baseline.n,
            delta=shown(delta),
            standard_error=shown_or_none(error),
            sigmas=shown_or_none(sigmas),
            verdict=comparison.verdict.value,
        )


def experiment_bodies(session: Session, rows: Sequence[schema.Experiment]) -> list[ExperimentBody]:
    """Experiments with their results; a fixed number of queries per batch."""
    yardsticks: dict[str, Yardstick] = {}
    for batch_id in {row.batch_id for row in rows}:
        batch = get(session, schema.Batch, batch_id, "batch")
        yardsticks[batch_id] = Yardstick.of(session, batch)
    related = _Related.of(session, rows)
    return [_body(row, yardsticks[row.batch_id], related) for row in rows]


class _Measured(NamedTuple):
    """A measurement of an experiment; what follows the id is None without a result."""

    id: str
    metric: float | None
    shown_metric: float | None
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
                schema.Result.metric,
                disclosure.SHOWN_METRIC,
                schema.Result.metrics,
                schema.Result.seconds,
                schema.Result.provenance,
            )
            .outerjoin(schema.Result, schema.Result.measurement_id == link.measurement_id)
            .join(schema.Measurement, schema.Measurement.id == link.measurement_id)
            .where(link.experiment_id.in_(ids), link.role == repairs.SCORE)
            .order_by(schema.Measurement.seed, schema.Measurement.id)
        ):
            measured[experiment].append(_Measured(*measurement))
        return cls(
            {idea.id: idea for idea in ideas},
            dict(implementations),
            measured,
            _smokes(session, ids),
            _repairs(session, ids),
            cls._sharing(session, rows),
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


def _body(row: schema.Experiment, yardstick: Yardstick, related: _Related) -> ExperimentBody:
    measured = related.measured.get(row.id, [])
    values = [m.metric for m in measured if m.metric is not None]
    rounded = [m.shown_metric for m in measured if m.shown_metric is not None]
    seconds = [m.seconds for m in measured if m.seconds is not None]
    name = yardstick.metric.confirmed
    metrics = [shown_metrics(m.metrics) for m in measured if name and m.metrics]
    confirmed = [found[name] for found in metrics if name and name in found]
    succeeded = row.state == ExperimentState.SUCCEEDED.value
    metric = shown(mean(rounded)) if succeeded and rounded else None
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
        metric_name=yardstick.metric.name,
        metric=metric,
        confirmed=shown(mean(confirmed)) if succeeded and confirmed else None,
        reward=reward(yardstick.metric.reward, metric),
        comparison=yardstick.compare(values, metric) if succeeded else None,
        used=_used(measured, yardstick.metric.name) if succeeded else None,
        seconds=sum(map(whole, seconds)) if seconds else None,
        shared_with=[twin for twin in twins if twin != row.id],
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
        similar=[SimilarBody(**alike) for alike in row.similar],
    )
