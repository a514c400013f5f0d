"""What the results of an environment have shown about its held-out splits, in bits.

`attempts` counts each result and each failure in scoring once, when it is stored: reading it again
shows nothing new. The rules are in `assay.domain.rounding`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict

from sqlalchemy import bindparam, func, select, update
from sqlalchemy.orm import Session

from assay.contracts.environment import EnvironmentManifest
from assay.domain.rounding import Bits, failure_bits, shown_metrics, success_bits
from assay.domain.states import FailureStage
from assay.storage import environments, schema
from assay.storage.rows import get, run, table_of

#: A result's metric as it is shown. One that a process of an older version stored is rounded by
#: whoever shows it, without its standard error.
SHOWN_METRIC = func.coalesce(schema.Result.shown_metric, schema.Result.metric)
#: Stages of failures that an evaluator with access to held-out data decides.
_SCORING = (FailureStage.SCORE, FailureStage.GUARD)
_BASELINE = (
    select(schema.Environment.codebase)
    .where(schema.Environment.id == schema.Measurement.environment_id)
    .scalar_subquery()
)
#: Nothing is added to a baseline's measurement: no idea chose what its code does.
_ADD = (
    update(table_of(schema.Measurement))
    .where(
        schema.Measurement.id == bindparam("measurement"),
        schema.Measurement.codebase_id != _BASELINE,
    )
    .values(
        search_bits=schema.Measurement.search_bits + bindparam("search"),
        sealed_bits=schema.Measurement.sealed_bits + bindparam("sealed"),
    )
)


def count_success(session: Session, result: schema.Result) -> None:
    """Set what is shown of a result's metric, and count the bits of all that is shown."""
    manifest = _manifest(session, result.measurement_id)
    spec = manifest.metric
    # Of all metrics, since the standard error is one of them.
    metrics = {**result.metrics, spec.name: result.metric}
    result.shown_metric = shown_metrics(metrics)[spec.name]
    bits = success_bits(metrics, result.provenance, result.seconds, spec.name, spec.confirmed)
    run(session, _ADD, measurement=result.measurement_id, **asdict(bits))


def count_failure(session: Session, measurement_id: str, stage: FailureStage) -> None:
    """Count a failed attempt, if it failed in scoring. One that is tried again counts, too."""
    if stage in _SCORING:
        manifest = _manifest(session, measurement_id)
        bits = failure_bits(manifest.metric.confirmed)
        run(session, _ADD, measurement=measurement_id, **asdict(bits))


def shown_bits(session: Session, environment_ids: Iterable[str]) -> dict[str, Bits]:
    """Bits shown so far, by environment: of all profiles, hardware classes and owners."""
    wanted, table = list(environment_ids), schema.Measurement
    rows = session.execute(
        select(table.environment_id, func.sum(table.search_bits), func.sum(table.sealed_bits))
        .where(table.environment_id.in_(wanted))
        .group_by(table.environment_id)
    ).all()
    found = {name: Bits(int(search), int(sealed)) for name, search, sealed in rows}
    return {name: found.get(name, Bits()) for name in wanted}


def _manifest(session: Session, measurement_id: str) -> EnvironmentManifest:
    row = get(session, schema.Measurement, measurement_id, "measurement")
    return environments.manifest(session, row.environment_id)
