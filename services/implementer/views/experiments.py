"""Experiments as the API shows them, with what their measurements say."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from sqlalchemy import CompoundSelect, Select, literal, select, union_all
from sqlalchemy.orm import InstrumentedAttribute, Session, aliased

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
from assay.domain.states import TERMINAL_EXPERIMENT, ExperimentState, MeasurementKind
from assay.domain.usage import FACT, mean_usage
from assay.storage import measurements, repairs, schema
from assay.storage.rows import among, get_all, run
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


_EXPERIMENT, _IDEA = schema.Experiment, schema.Idea
_LINK, _REPAIR = schema.ExperimentMeasurement, schema.Repair
#: What there is one of for each experiment: see `_About`.
_ABOUT = (
    select(
        _EXPERIMENT.id,
        schema.Implementation.id,
        schema.Implementation.repairs,
        schema.Annotation.tags,
        schema.Annotation.note,
        _IDEA.id,
        _IDEA.text,
        _IDEA.client_key,
        _IDEA.operator,
        _IDEA.parents,
        _IDEA.confirms,
        _IDEA.retries,
        _IDEA.reproduces,
        _IDEA.codebase_id,
        _IDEA.similar,
        _IDEA.base_id,
        _IDEA.base,
    )
    .join(_IDEA, _IDEA.id == _EXPERIMENT.idea_id)
    .join(schema.Implementation, schema.Implementation.experiment_id == _EXPERIMENT.id)
    .outerjoin(schema.Annotation, schema.Annotation.subject_id == _EXPERIMENT.id)
    .where(among(_EXPERIMENT.id))
)
_MEASUREMENTS = (
    select(
        _LINK.experiment_id,
        _LINK.role,
        schema.Measurement.kind,
        schema.Measurement.id,
        schema.Measurement.seed,
        schema.Result.metrics,
        schema.Result.seconds,
        schema.Result.provenance,
        *measurements.SCORED,
    )
    .join(schema.Measurement, schema.Measurement.id == _LINK.measurement_id)
    .outerjoin(schema.Result, schema.Result.measurement_id == _LINK.measurement_id)
    .where(among(_LINK.experiment_id), _LINK.role.in_([repairs.SCORE, repairs.SMOKE]))
    .order_by(schema.Measurement.seed, schema.Measurement.id)
)
_REPAIRS = (
    select(
        _REPAIR.experiment_id,
        _REPAIR.number,
        _REPAIR.state,
        _REPAIR.codebase_id,
        _REPAIR.measurement_id,
        _REPAIR.failure,
        _REPAIR.sample,
        _REPAIR.revision,
        _REPAIR.repaired_id,
    )
    .where(among(_REPAIR.experiment_id))
    .order_by(_REPAIR.number)
)


class Role(StrEnum):
    """What another experiment is to one: it has its codebase, in the same batch, or measures it
    again."""

    TWIN = "twin"
    RETRY = "retry"
    REPRODUCTION = "reproduction"
    CONFIRMATION = "confirmation"


def _again(role: Role, repeated: InstrumentedAttribute[str | None]) -> Select[*tuple[Any, ...]]:
    """Experiments that measure these again; `repeated`: the column that says which."""
    return (
        select(
            repeated.label("of"),
            literal(role.value).label("role"),
            _EXPERIMENT.id.label("id"),
            _EXPERIMENT.batch_id,
            _EXPERIMENT.state,
            literal(0).label("place"),
        )
        .join(_EXPERIMENT, _EXPERIMENT.idea_id == _IDEA.id)
        .where(among(repeated))
    )


_TWIN = aliased(schema.Experiment)
_RELATIVES: CompoundSelect[*tuple[Any, ...]] = union_all(
    select(
        _EXPERIMENT.id.label("of"),
        literal(Role.TWIN.value).label("role"),
        _TWIN.id.label("id"),
        _TWIN.batch_id,
        _TWIN.state,
        _TWIN.position.label("place"),
    )
    .join(
        _TWIN,
        (_TWIN.batch_id == _EXPERIMENT.batch_id)
        & (_TWIN.codebase_id == _EXPERIMENT.codebase_id)
        & (_TWIN.id != _EXPERIMENT.id),
    )
    .where(among(_EXPERIMENT.id)),
    _again(Role.RETRY, _IDEA.retries),
    _again(Role.REPRODUCTION, _IDEA.reproduces),
    _again(Role.CONFIRMATION, _IDEA.confirms)
    .join(schema.Batch, schema.Batch.id == _EXPERIMENT.batch_id)
    .where(schema.Batch.kind == MeasurementKind.CONFIRM.value),
).order_by("place", "id")


@dataclass(frozen=True)
class Plain:
    """Experiments with their own results, and what is read further of them and their batches.

    `confirming`: the experiments that confirm each of them, oldest first.
    """

    bodies: list[ExperimentBody]
    batches: Mapping[str, schema.Batch]
    confirming: Mapping[str, Sequence[Relative]]


def plain_bodies(session: Session, rows: Sequence[schema.Experiment]) -> Plain:
    """Experiments with their own results; a fixed number of queries per setting of their batches.

    What confirmations say of them is added by `confirmations.experiment_bodies`.
    """
    batches = get_all(session, schema.Batch, (row.batch_id for row in rows))
    related = _Related.of(session, rows)
    wanted: dict[str, set[str | None]] = defaultdict(lambda: {None})
    for row in rows:
        wanted[row.batch_id].add(related.about[row.id].idea.base_id)
    stats = BaselineStats.of_batches(session, ((batches[id_], of) for id_, of in wanted.items()))
    bodies = [
        _body(
            row,
            batches[row.batch_id],
            _Compared.of(related.about[row.id].idea, stats[row.batch_id]),
            related,
        )
        for row in rows
    ]
    confirming = {
        row.id: found
        for row in rows
        if (found := related.relatives.get((row.id, Role.CONFIRMATION)))
    }
    return Plain(bodies, batches, confirming)


class Idea(NamedTuple):
    """An idea as it was submitted, without its thinking."""

    id: str
    text: str
    client_key: str | None
    operator: str
    parents: list[Any]
    confirms: str | None
    retries: str | None
    reproduces: str | None
    codebase_id: str | None
    similar: list[Any]
    base_id: str | None
    base: str | None


class _About(NamedTuple):
    """What there is one of for an experiment. `repairs` counts them. Without an annotation, tags
    and note are None."""

    implementation: str
    repairs: int
    tags: list[str] | None
    note: str | None
    idea: Idea


class Relative(NamedTuple):
    """An experiment that has the same codebase as another, or measures it again."""

    id: str
    batch_id: str
    state: str


class _Compared(NamedTuple):
    """What an experiment is compared with; without a base, the baseline alone."""

    stats: BaselineStats
    base: BaseBody | None
    baseline: BaselineStats | None

    @classmethod
    def of(cls, idea: Idea, stats: Mapping[str | None, BaselineStats]) -> _Compared:
        base = base_body(idea)
        return cls(stats[idea.base_id], base, None if base is None else stats[None])


class _Measured(NamedTuple):
    """A measurement of an experiment; what follows the seed is None without a result."""

    kind: str
    id: str
    seed: int
    scored: measurements.Scored | None
    metrics: dict[str, float] | None
    seconds: float | None
    provenance: dict[str, Any] | None


@dataclass(frozen=True)
class _Related:
    """What belongs to experiments, by their ids."""

    about: Mapping[str, _About]
    measured: Mapping[str, Sequence[_Measured]]
    smokes: Mapping[str, Sequence[str]]
    repairs: Mapping[str, list[RepairBody]]
    relatives: Mapping[tuple[str, Role], Sequence[Relative]]
    agreements: Mapping[str, AgreementBody]

    @classmethod
    def of(cls, session: Session, rows: Sequence[schema.Experiment]) -> _Related:
        ids = [row.id for row in rows]
        about = {
            id_: _About(implementation, repaired, tags, note, Idea(*idea))
            for id_, implementation, repaired, tags, note, *idea in run(
                session, _ABOUT, ids=ids
            ).all()
        }
        measured: dict[str, list[_Measured]] = defaultdict(list)
        smokes: dict[str, list[str]] = defaultdict(list)
        for experiment, role, *measurement in run(session, _MEASUREMENTS, ids=ids).all():
            kind, id_, seed, metrics, seconds, provenance, *scored = measurement
            if role == repairs.SMOKE:
                smokes[experiment].append(id_)
                continue
            found = None if metrics is None else measurements.Scored(*scored)
            measured[experiment].append(
                _Measured(kind, id_, seed, found, metrics, seconds, provenance)
            )
        relatives: dict[tuple[str, Role], list[Relative]] = defaultdict(list)
        for of, as_, id_, batch, state, _ in run(session, _RELATIVES, ids=ids):
            relatives[of, Role(as_)].append(Relative(id_, batch, state))
        return cls(
            about,
            measured,
            {experiment: sorted(of) for experiment, of in smokes.items()},
            _repairs(session, [id_ for id_, of in about.items() if of.repairs]),
            relatives,
            agreement_bodies(
                session, rows, {id_: of.idea.reproduces for id_, of in about.items()}
            ),
        )

    def ids(self, experiment: str, role: Role) -> list[str]:
        """Which experiments are that to this one."""
        return [each.id for each in self.relatives.get((experiment, role), ())]


def _repairs(session: Session, ids: Sequence[str]) -> dict[str, list[RepairBody]]:
    found: dict[str, list[RepairBody]] = defaultdict(list)
    for row in run(session, _REPAIRS, ids=ids) if ids else ():
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
    about = related.about[row.id]
    # A process of the version before asks for the kind `score`, whatever the batch is.
    measured = [m for m in related.measured.get(row.id, ()) if m.kind == batch.kind]
    scored = {m.seed: m.scored for m in measured if m.scored is not None}
    rounded = [each.shown for each in scored.values()]
    seconds = [m.seconds for m in measured if m.seconds is not None]
    warm_ups = [w for m in measured if (w := (m.provenance or {}).get("train_warm_up_seconds"))]
    succeeded = row.state == ExperimentState.SUCCEEDED.value
    spec = stats.metric
    found = over_seeds(spec.judged, spec.direction, rounded) if succeeded else None
    metric = None if found is None else shown(found)
    return ExperimentBody(
        id=row.id,
        batch=row.batch_id,
        environment=batch.environment_id,
        profile=batch.profile,
        position=row.position,
        idea=_idea_body(about.idea),
        state=row.state,
        is_terminal=row.state in _TERMINAL,
        failure=FailureBody(**row.failure) if row.failure else None,
        implementation=about.implementation,
        codebase=row.codebase_id,
        measurements=[m.id for m in measured],
        smokes=list(related.smokes.get(row.id, ())),
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
        shared_with=related.ids(row.id, Role.TWIN),
        retried_as=related.ids(row.id, Role.RETRY),
        reproduced_as=related.ids(row.id, Role.REPRODUCTION),
        agreement=related.agreements.get(row.id),
        tags=about.tags or [],
        note=about.note or "",
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
        shown_provenance({FACT: m.provenance[FACT]}, m.metrics or {}, metric)
        for m in measured
        if m.provenance and FACT in m.provenance
    ]
    found = mean_usage(provenances)
    if not found:
        return None
    shown_usage = shown_provenance(found, {}, metric)
    return UsedBody(**{name: shown_usage.get(fact) for name, fact in _USAGE.items()})


def _idea_body(row: Idea) -> IdeaBody:
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
