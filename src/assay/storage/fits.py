"""Priors of verdicts: fitted on request to what has been measured, and kept."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict, dataclass
from datetime import datetime

from sqlalchemy import bindparam, func, select
from sqlalchemy.orm import Session

from assay.domain.conditions import Conditions
from assay.domain.errors import Conflict
from assay.domain.ids import new_id
from assay.domain.states import MeasurementKind
from assay.domain.verdicts import (
    DEFAULT_PRIOR,
    FEWEST_CODEBASES,
    Measured,
    Prior,
    fit_prior,
)
from assay.storage import conditions, disclosure, measurements, schema
from assay.storage.database import Database
from assay.storage.rows import among, run


@dataclass(frozen=True)
class Fit:
    """A prior and the record it comes from; without one it is the stated default."""

    prior: Prior
    id: str | None = None
    number: int = 0
    created_at: datetime | None = None


_FIT = schema.VerdictFit
_LATEST = (
    select(_FIT.prior, _FIT.id, _FIT.number, _FIT.created_at)
    .where(
        _FIT.environment_id == bindparam("environment"),
        _FIT.profile == bindparam("profile"),
        _FIT.hardware_class == bindparam("hardware_class"),
        among(_FIT.conditions_id, "conditions"),
    )
    .order_by(_FIT.number.desc())
    .limit(1)
)


def latest(session: Session, environment_id: str, profile: str, on: Conditions) -> Fit:
    """Return the prior that verdicts use now."""
    row = run(
        session,
        _LATEST,
        environment=environment_id,
        profile=profile,
        hardware_class=on.hardware_class,
        conditions=list(on.ids),
    ).one_or_none()
    if row is None:
        return Fit(DEFAULT_PRIOR)
    return Fit(Prior(**row.prior), row.id, row.number, row.created_at)


def refit(
    db: Database,
    session: Session,
    environment: schema.Environment,
    profile: str,
    on: Conditions,
    owner: str,
) -> Fit:
    """Fit a prior to all codebases that were measured on two seeds or more, and store it.

    From its commit on, every verdict of the environment, profile and conditions uses it, also
    those of experiments that ended long ago.

    It is fitted to results as they are shown, so that it tells no more about held-out data.

    Raises:
        Conflict: too few codebases, or no baseline with a spread.
    """
    scores = measurements.baseline_scores(session, environment, profile, on)
    baseline = Measured.of({seed: scored.shown for seed, scored in scores.items()})
    if baseline is None or baseline.noise == 0:
        raise Conflict(
            f"a fit needs a baseline with a spread over seeds; run `assay env calibrate "
            f"{environment.name} --profile {profile}`",
            code="no_baseline",
        )
    codebases = _codebases(session, environment, profile, on)
    prior = fit_prior(codebases, baseline)
    if prior.codebases == 0:
        raise Conflict(
            f"a fit needs {FEWEST_CODEBASES} codebases that were measured on two seeds or more "
            f"and whose results differ between seeds; there are "
            f"{sum(codebase.noise > 0 for codebase in codebases)}. Verdicts use the default prior",
            code="too_few_codebases",
        )
    number = _last_number(session, environment.id, profile, on.hardware_class) + 1
    row = schema.VerdictFit(
        id=new_id("fit"),
        environment_id=environment.id,
        profile=profile,
        hardware_class=on.hardware_class,
        conditions_id=on.id,
        number=number,
        owner=owner,
        prior=asdict(prior),
        created_at=db.now(session),
    )
    session.add(row)
    session.flush()
    return Fit(prior, row.id, number, row.created_at)


def _last_number(session: Session, environment_id: str, profile: str, hardware_class: str) -> int:
    """Fits are counted over all conditions of a hardware class."""
    table = schema.VerdictFit
    query = select(func.max(table.number)).where(
        table.environment_id == environment_id,
        table.profile == profile,
        table.hardware_class == hardware_class,
    )
    return session.scalar(query) or 0


def _codebases(
    session: Session, environment: schema.Environment, profile: str, on: Conditions
) -> list[Measured]:
    """Every other codebase, by its metric on each seed."""
    table = schema.Measurement
    values: dict[str, dict[int, float]] = defaultdict(dict)
    query = (
        select(table.codebase_id, table.seed, disclosure.SHOWN_METRIC)
        .join(schema.Result, schema.Result.measurement_id == table.id)
        .where(
            table.environment_id == environment.id,
            table.profile == profile,
            *conditions.selected(table, on),
            table.kind == MeasurementKind.SCORE.value,
            table.codebase_id != environment.codebase,
        )
        .order_by(table.codebase_id, table.seed, table.replicate)
    )
    for codebase, seed, metric in session.execute(query):
        values[codebase][seed] = metric
    found = (Measured.of(seeds) for seeds in values.values())
    return [each for each in found if each is not None]
