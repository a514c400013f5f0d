"""Two codebases side by side: which results of theirs may be compared, and what they say."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import product

from sqlalchemy import select
from sqlalchemy.orm import Session

from assay.contracts.batch import PairBody, SideBody
from assay.domain.codebases import BASELINE, is_hash
from assay.domain.conditions import Conditions
from assay.domain.errors import Conflict, InvalidInput, NotFound
from assay.domain.states import ExperimentState, MeasurementKind
from assay.storage import conditions, equivalences, measurements, repairs, schema
from assay.storage.measurements import Scored
from assay.storage.rows import get
from services.implementer.owned import batch_of, owned_experiment
from services.implementer.views.verdicts import BaselineStats

_LONG_AGO = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True)
class Setting:
    """Where two codebases are compared. `kind` is that of the measurements that count."""

    environment: schema.Environment
    profile: str
    kind: MeasurementKind


@dataclass(frozen=True)
class _Side:
    """The results of a codebase under one set of conditions. `asked_at`: when they were asked
    for last."""

    experiment: str | None
    codebase: str
    on: Conditions
    scores: dict[int, Scored]
    asked_at: datetime


def is_experiment(name: str) -> bool:
    """Whether a side is named by its experiment."""
    return name != BASELINE and not is_hash(name)


def setting_of(
    session: Session,
    owner: str,
    names: Sequence[str],
    environment: str | None,
    profile: str | None,
) -> Setting:
    """Return where these sides are compared: as their experiments were measured, or as asked.

    Raises:
        NotFound: there is no such experiment of the owner, or nothing was measured there.
        InvalidInput: environment or profile is missing, or not that of an experiment.
        Conflict: the experiments were measured in different environments, profiles or ways.
    """
    found: dict[str, tuple[str, str, str]] = {}
    for name in filter(is_experiment, names):
        batch = batch_of(session, owned_experiment(session, name, owner).id)
        found[name] = (batch.environment_id, batch.profile, batch.kind)
    if len(set(found.values())) > 1:
        (one, first), (other, second) = found.items()
        raise Conflict(
            f"{one} was measured in {', '.join(first)}, {other} in {', '.join(second)}: their "
            "metrics say different things",
            code="not_comparable",
        )
    if not found:
        return _setting(session, names, environment, profile, MeasurementKind.SCORE.value)
    (own,) = set(found.values())
    if (environment or own[0], profile or own[1]) != own[:2]:
        raise InvalidInput(
            f"the experiment was measured in {own[0]}, profile {own[1]}; leave `environment` and "
            "`profile` out"
        )
    return _setting(session, names, *own)


def _setting(
    session: Session,
    names: Sequence[str],
    environment: str | None,
    profile: str | None,
    kind: str,
) -> Setting:
    if environment is None or profile is None:
        raise InvalidInput(
            "neither side is an experiment, so name `environment` and `profile` (--env, --profile)"
        )
    row = session.get(schema.Environment, environment)
    if row is None:
        raise _no_result(" and ".join(names), environment, profile)
    return Setting(row, profile, MeasurementKind(kind))


def pair_body(session: Session, owner: str, where: Setting, a: str, b: str) -> PairBody:
    """Return codebase `a` against `b`, which takes the place of the baseline.

    Only seeds count on which both have a result. A side that was measured under several sets of
    conditions is compared under those of the other one, if it can be.

    Raises:
        NotFound: one has no result, or no seed is common to both.
    """
    one, other = max(
        product(_sides(session, owner, where, a), _sides(session, owner, where, b)),
        key=lambda pair: (_have_equal_conditions(*pair), len(_shared(*pair))),
    )
    seeds = _shared(one, other)
    if not seeds:
        raise NotFound(
            f"{a} and {b} have no seed in common: they were measured on seeds "
            f"{_listed(one.scores)} and {_listed(other.scores)}. Measure both on the same: assay "
            "compare … --seeds 5",
            code="no_common_seed",
        )
    mine, theirs = ({seed: side.scores[seed] for seed in seeds} for side in (one, other))
    stats = BaselineStats.instead(
        session,
        where.environment.id,
        where.profile,
        one.on,
        theirs,
        one.asked_at,
        where.kind,
    )
    found = stats.compare(mine, conditions.that_differ(session, one.on, other.on))
    assert found is not None, "both have results"
    return PairBody(
        a=_side_body(one, where),
        b=_side_body(other, where),
        environment=where.environment.id,
        profile=where.profile,
        metric_name=stats.metric_name,
        direction=stats.metric.direction.value,
        seeds=seeds,
        comparison=found,
    )


def _sides(session: Session, owner: str, where: Setting, name: str) -> list[_Side]:
    """What `name` may stand for, by conditions; at least one. Raises NotFound without a result."""
    if is_experiment(name):
        return [_experiment(session, get(session, schema.Experiment, name, "experiment"))]
    codebase = where.environment.codebase if name == BASELINE else name
    found = _codebase(
        session, None if codebase == where.environment.codebase else owner, where, codebase
    )
    if not found:
        raise _no_result(name, where.environment.id, where.profile)
    return found


def _experiment(session: Session, row: schema.Experiment) -> _Side:
    if row.state != ExperimentState.SUCCEEDED.value or row.codebase_id is None:
        raise NotFound(f"{row.id} is {row.state} and has no result", code="no_result")
    table, link = schema.Measurement, schema.ExperimentMeasurement
    scores = session.execute(
        select(table.seed, *measurements.SCORED)
        .join(schema.Result, schema.Result.measurement_id == table.id)
        .join(link, link.measurement_id == table.id)
        .where(link.experiment_id == row.id, link.role == repairs.SCORE)
    )
    batch = get(session, schema.Batch, row.batch_id, "batch")
    return _Side(
        row.id,
        row.codebase_id,
        conditions.of_batch(session, batch),
        {seed: Scored(*scored) for seed, *scored in scores},
        batch.created_at,
    )


def _codebase(session: Session, owner: str | None, where: Setting, codebase: str) -> list[_Side]:
    """The results of a codebase, by conditions: of this owner's experiments, or (None) all."""
    table, link = schema.Measurement, schema.ExperimentMeasurement
    own = (
        select(schema.Batch.created_at)
        .join(schema.Experiment, schema.Experiment.batch_id == schema.Batch.id)
        .join(link, link.experiment_id == schema.Experiment.id)
        .where(link.measurement_id == table.id, schema.Batch.owner == owner)
        .order_by(schema.Batch.created_at.desc())
        .limit(1)
        .scalar_subquery()
    )
    query = (
        select(table.hardware_class, table.conditions_id, table.seed, own, *measurements.SCORED)
        .join(schema.Result, schema.Result.measurement_id == table.id)
        .where(
            table.codebase_id == codebase,
            table.environment_id == where.environment.id,
            table.profile == where.profile,
            table.kind == where.kind.value,
        )
        .order_by(table.seed, table.replicate)
    )
    if owner is not None:
        query = query.where(own.is_not(None))
    scores: dict[Conditions, dict[int, Scored]] = defaultdict(dict)
    asked: dict[Conditions, datetime] = {}
    for hardware_class, conditions_id, seed, asked_at, *scored in session.execute(query):
        on = equivalences.family(
            session, where.environment.id, where.profile, hardware_class, conditions_id
        )
        scores[on][seed] = Scored(*scored)
        asked[on] = max(asked.get(on, _LONG_AGO), asked_at or _LONG_AGO)
    return [_Side(None, codebase, on, found, asked[on]) for on, found in scores.items()]


def _have_equal_conditions(one: _Side, other: _Side) -> bool:
    return (one.on.hardware_class, one.on.id) == (other.on.hardware_class, other.on.id)


def _shared(one: _Side, other: _Side) -> list[int]:
    return sorted(one.scores.keys() & other.scores.keys())


def _side_body(side: _Side, where: Setting) -> SideBody:
    return SideBody(
        experiment=side.experiment,
        codebase=side.codebase,
        is_baseline=side.codebase == where.environment.codebase,
        hardware_class=side.on.hardware_class,
        conditions=side.on.id or None,
    )


def _no_result(name: str, environment: str, profile: str) -> NotFound:
    return NotFound(
        f"{name} has no result in {environment}, profile {profile}; measure it: assay compare … "
        "--seeds 5",
        code="no_result",
    )


def _listed(scores: dict[int, Scored]) -> str:
    seeds = sorted(scores)
    return ", ".join(map(str, seeds[:8])) + (", …" if len(seeds) > 8 else "")
