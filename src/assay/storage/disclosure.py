"""What the results of an environment have shown about its held-out splits, in bits.

`attempts` counts each result and each failure in scoring once, when it is stored: reading it again
shows nothing new. The rules are in `assay.domain.rounding`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from sqlalchemy import bindparam, func, select, update
from sqlalchemy.orm import Session

from assay.contracts.worker import SCORED_ON, SEARCH
from assay.domain.rounding import (
    Bits,
    SplitMetrics,
    failure_bits,
    rescore_bits,
    shown_metrics,
    success_bits,
)
from assay.domain.states import FailureStage, MeasurementKind
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
    row = get(session, schema.Measurement, result.measurement_id, "measurement")
    scored = _scored(session, row, result.provenance)
    # Of all metrics, since the standard error is one of them.
    metrics = {**result.metrics, scored.metric: result.metric}
    result.shown_metric = shown_metrics(metrics)[scored.metric]
    bits = success_bits(metrics, result.provenance, result.seconds, scored)
    run(session, _ADD, measurement=row.id, **asdict(bits))


def count_rescore(session: Session, result: schema.Result, rescore: schema.Rescore) -> None:
    """Count the bits of what is shown of a result's second evaluation."""
    row = get(session, schema.Measurement, result.measurement_id, "measurement")
    scored = _scored(session, row, result.provenance)
    first = {**result.metrics, scored.metric: result.metric}
    second = {**rescore.metrics, scored.metric: rescore.metric}
    bits = rescore_bits(second, rescore.seconds, first, scored)
    run(session, _ADD, measurement=row.id, **asdict(bits))


def count_failure(
    session: Session,
    measurement_id: str,
    stage: FailureStage,
    provenance: Mapping[str, Any],
) -> None:
    """Count a failed attempt, if it failed in scoring. One that is tried again counts, too."""
    if stage in _SCORING:
        row = get(session, schema.Measurement, measurement_id, "measurement")
        bits = failure_bits(_scored(session, row, provenance))
        run(session, _ADD, measurement=measurement_id, **asdict(bits))


def _scored(
    session: Session, row: schema.Measurement, provenance: Mapping[str, Any]
) -> SplitMetrics:
    """Which splits an evaluation read: a confirmation the split `sealed`, if there is one."""
    spec = environments.manifest(session, row.environment_id).metric
    if row.kind != MeasurementKind.CONFIRM.value or provenance.get(SCORED_ON) == SEARCH:
        return SplitMetrics(search=spec.name)
    if spec.confirmed is None:
        return SplitMetrics(sealed=spec.name)
    return SplitMetrics(search=spec.name, sealed=spec.confirmed)


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
