"""Environments and baselines as the API shows them."""

from __future__ import annotations

from sqlalchemy.orm import Session

from assay.contracts.environment import BaselineBody, EnvironmentBody, ProfileBody
from assay.domain.metrics import Sample
from assay.domain.states import TERMINAL_MEASUREMENT, MeasurementState
from assay.environments.catalog import Environment
from assay.storage import measurements, schema


def environment_body(environment: Environment) -> EnvironmentBody:
    """An environment on disk."""
    manifest = environment.manifest
    return EnvironmentBody(
        id=environment.id,
        name=environment.name,
        title=manifest.title,
        problem=manifest.problem,
        metric=manifest.metric.name,
        unit=manifest.metric.unit,
        direction=manifest.metric.direction,
        reward=manifest.metric.reward,
        protected=list(manifest.codebase.protected),
        profiles=[
            ProfileBody(
                name=name,
                description=profile.description,
                cpus=profile.cpus,
                gpus=profile.gpus,
                memory_gb=profile.memory_gb,
                budget=profile.budget.model_dump(exclude_none=True),
            )
            for name, profile in manifest.profiles.items()
        ],
        knobs=list(manifest.knobs),
        recipes=list(manifest.recipes),
        codebase=environment.codebase_hash,
    )


def baseline_body(
    session: Session,
    environment: schema.Environment,
    metric: str,
    profile: str,
    hardware_class: str,
) -> BaselineBody:
    """The baseline as far as it is measured on this service."""
    values = measurements.baseline_values(session, environment, profile, hardware_class)
    states = measurements.baseline_states(session, environment, profile, hardware_class)
    sample = Sample.of(list(values.values()))
    terminal = {s.value for s in TERMINAL_MEASUREMENT}
    return BaselineBody(
        environment=environment.id,
        profile=profile,
        hardware_class=hardware_class,
        metric=metric,
        mean=sample.mean if sample else None,
        spread=sample.spread if sample else None,
        seeds=list(values),
        values=list(values.values()),
        pending=sum(n for state, n in states.items() if state not in terminal),
        failed=states.get(MeasurementState.FAILED.value, 0),
    )
