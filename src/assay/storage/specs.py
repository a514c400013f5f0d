"""What workers are told of their attempts."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from assay.contracts.worker import AttemptSpec, RescoreRule
from assay.domain.metrics import Sample
from assay.domain.rescore import rescore_rule
from assay.domain.states import MeasurementKind
from assay.storage import environments, equivalences, measurements, schema

_RESULTS = (MeasurementKind.SCORE.value, MeasurementKind.CONFIRM.value)


def specs(session: Session, attempt_ids: Sequence[str]) -> list[AttemptSpec]:
    """All a worker needs to know of these attempts, oldest first."""
    if not attempt_ids:
        return []
    rules: dict[tuple[str, str, str, str], RescoreRule | None] = {}
    found = []
    for attempt, measurement, environment in session.execute(
        select(schema.Attempt, schema.Measurement, schema.Environment)
        .join(schema.Measurement, schema.Measurement.id == schema.Attempt.measurement_id)
        .join(schema.Environment, schema.Environment.id == schema.Measurement.environment_id)
        .where(schema.Attempt.id.in_(attempt_ids))
        .order_by(schema.Attempt.id)
    ).all():
        rule = None
        is_result = measurement.kind in _RESULTS
        if is_result and measurement.codebase_id != environment.codebase:
            key = (
                environment.id,
                measurement.profile,
                measurement.conditions_id,
                measurement.kind,
            )
            if key not in rules:
                rules[key] = _rescore(session, environment, measurement)
            rule = rules[key]
        found.append(_spec(attempt, measurement, environment, rule))
    return found


def _spec(
    attempt: schema.Attempt,
    measurement: schema.Measurement,
    environment: schema.Environment,
    rescore: RescoreRule | None,
) -> AttemptSpec:
    return AttemptSpec(
        attempt=attempt.id,
        lease_token=attempt.lease_token,
        measurement=measurement.id,
        kind=measurement.kind,
        codebase=measurement.codebase_id,
        environment=environment.id,
        bundle=environment.bundle,
        profile=measurement.profile,
        seed=measurement.seed,
        hardware_class=measurement.hardware_class,
        cpus=measurement.cpus,
        gpus=measurement.gpus,
        memory_bytes=measurement.memory_bytes,
        bound_seconds=attempt.bound_seconds,
        needs_isolation=measurement.needs_isolation,
        rescore=rescore,
    )


def _rescore(
    session: Session, environment: schema.Environment, measurement: schema.Measurement
) -> RescoreRule | None:
    """When to score a result twice: the same for all that are compared with one baseline."""
    manifest = environments.manifest(session, environment.id)
    if manifest.entry_points.predict is None:
        return None
    on = equivalences.family(
        session,
        environment.id,
        measurement.profile,
        measurement.hardware_class,
        measurement.conditions_id,
    )
    kind = MeasurementKind(measurement.kind)
    values = measurements.baseline_values(session, environment, measurement.profile, on, kind)
    rule = rescore_rule(manifest.metric.direction, Sample.of(list(values.values())))
    return RescoreRule(beyond=rule.beyond)
