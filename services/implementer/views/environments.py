"""Environments and baselines as the API shows them."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy.orm import Session

from assay.contracts.base import FailureBody
from assay.contracts.environment import (
    BaselineBody,
    BaselineFailure,
    EnvironmentBody,
    EnvironmentManifest,
    ProfileBody,
    SplitBody,
)
from assay.domain.conditions import Conditions
from assay.domain.metrics import Sample
from assay.domain.rounding import Bits, shown, shown_or_none
from assay.domain.states import MeasurementKind
from assay.domain.wear import grows
from assay.environments.catalog import RULES, Environment
from assay.storage import baselines, conditions, disclosure, measurements, schema
from services.implementer.views.confirmations import gaps

#: So many batches that confirm something tell whether a split is worn.
_LATEST = 50


def environment_bodies(
    session: Session, environments: Sequence[Environment]
) -> list[EnvironmentBody]:
    """Environments on disk, with what results have shown of their held-out splits."""
    bits = disclosure.shown_bits(session, [environment.id for environment in environments])
    return [
        _environment_body(
            environment, bits[environment.id], gap_grows=_gap_grows(session, environment)
        )
        for environment in environments
    ]


def _gap_grows(session: Session, environment: Environment) -> bool:
    """Whether results of some profile improve ever more beside what confirmations find."""
    profiles = environment.manifest.profiles
    return any(grows(gaps(session, environment.id, profile, _LATEST)) for profile in profiles)


def _environment_body(environment: Environment, bits: Bits, *, gap_grows: bool) -> EnvironmentBody:
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
                baseline_seeds=baselines.seeds_wanted(profile),
                in_words=profile.in_words,
                notes=environment.profile_notes(name),
            )
            for name, profile in manifest.profiles.items()
        ],
        knobs=list(manifest.knobs),
        recipes=list(manifest.recipes),
        failures=dict(manifest.failures),
        codebase=environment.codebase_hash,
        rules=environment.prompt(RULES),
        splits=_splits(manifest, bits, gap_grows=gap_grows),
    )


def _splits(manifest: EnvironmentManifest, bits: Bits, *, gap_grows: bool) -> list[SplitBody]:
    each = {"search": bits.search}
    if manifest.metric.confirmed is not None or bits.sealed:
        each["sealed"] = bits.sealed
    budget = manifest.held_out_bits
    adapted = {"search": gap_grows}
    return [
        SplitBody(
            name=name,
            bits_shown=number,
            bits_budget=budget,
            worn=number > budget or adapted.get(name, False),
            gap_grows=adapted.get(name, False),
        )
        for name, number in each.items()
    ]


def baseline_body(
    session: Session,
    environment: schema.Environment,
    metric: str,
    profile: str,
    on: Conditions,
) -> BaselineBody:
    """The baseline as far as it is measured on this service."""
    scores = measurements.baseline_scores(session, environment, profile, on)
    values = {seed: shown(scored.shown) for seed, scored in scores.items()}
    sample = Sample.of([scored.metric for scored in scores.values()])
    progress = baselines.progress(session, environment, profile, on)
    return BaselineBody(
        environment=environment.id,
        profile=profile,
        hardware_class=on.hardware_class,
        conditions=on.id or None,
        facts=conditions.facts_by_id(session, [on.id]).get(on.id, {}),
        metric=metric,
        mean=shown(sample.mean) if sample else None,
        spread=shown_or_none(sample.spread) if sample else None,
        seeds=list(values),
        values=list(values.values()),
        kind=MeasurementKind.SCORE.value,
        measurements=[scored.measurement for scored in scores.values()],
        pending=len(progress.pending),
        pending_seeds=list(progress.pending),
        failed=len(progress.failed),
        failures=[
            BaselineFailure(
                seed=row.seed,
                measurement=row.id,
                failure=FailureBody.model_validate(row.failure) if row.failure else None,
            )
            for row in progress.failed
        ],
    )
