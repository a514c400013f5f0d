"""Experiments as flat records, for the endpoint that exports them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from assay.contracts.batch import ComparisonBody, ExperimentBody, Usage
from assay.contracts.trajectory import CurvePointBody, SeedBody, TrajectoryBody
from assay.domain.failure_codes import rules_for
from assay.domain.metrics import Direction
from assay.domain.rounding import shown, whole
from assay.patching import unified_diff
from assay.storage import disclosure, environments, schema
from assay.storage.objects import ObjectStore
from services.implementer.telemetry import read_curves
from services.implementer.views.calls import usage_of_implementations
from services.implementer.views.confirmations import experiment_bodies


def trajectory_bodies(
    session: Session,
    batch: schema.Batch,
    rows: Sequence[schema.Experiment],
    *,
    curve_points: int | None,
) -> list[TrajectoryBody]:
    """Experiments of a batch as records without diffs; a fixed number of queries.

    With `curve_points`, each has a curve of at most so many points, which takes a query each.
    """
    bodies = experiment_bodies(session, rows)
    of_ideas = select(schema.Idea.id, schema.Idea.thinking).where(
        schema.Idea.id.in_([row.idea_id for row in rows])
    )
    thinking = dict(session.execute(of_ideas).all())
    used = usage_of_implementations(session, [body.implementation for body in bodies])
    seeds = _seeds(session, [id_ for body in bodies for id_ in body.measurements])
    direction = environments.manifest(session, batch.environment_id).metric.direction
    found = []
    for body in bodies:
        measured = [seeds[id_] for id_ in body.measurements]
        record = _record(body, batch, direction, thinking[body.idea.id], measured)
        _add_usage(record, used.get(body.implementation, Usage()))
        if curve_points is not None:
            first = body.measurements[:1]
            points = read_curves(session, first[0], curve_points) if first else []
            record.curve = [
                CurvePointBody(seq=p.seq, step=p.step, values=p.values) for p in points
            ]
        found.append(record)
    return found


def with_diffs(
    store: ObjectStore, environment: schema.Environment, records: Sequence[TrajectoryBody]
) -> Iterator[TrajectoryBody]:
    """The records with their diffs, read as they are taken. Call it outside of a transaction."""
    before: dict[str, dict[str, str]] = {}
    for record in records:
        if record.codebase is not None:
            base = record.base or environment.codebase
            if base not in before:
                before = {base: environments.get_codebase(store, base)}  # one at a time is kept
            after = environments.get_codebase(store, record.codebase)
            record.diff = unified_diff(before[base], after)
        yield record


def _seeds(session: Session, ids: Sequence[str]) -> dict[str, SeedBody]:
    table, result = schema.Measurement, schema.Result
    rows = session.execute(
        select(
            table.id,
            table.seed,
            table.state,
            table.failure,
            result.measurement_id,
            disclosure.SHOWN_METRIC,
            result.seconds,
        )
        .outerjoin(result, result.measurement_id == table.id)
        .where(table.id.in_(ids))
    )
    return {
        id_: SeedBody(
            seed=seed,
            measurement=id_,
            state=state,
            metric=None if scored is None else shown(metric),
            seconds=None if scored is None else whole(seconds),
            failure_code=failure["code"] if failure else None,
        )
        for id_, seed, state, failure, scored, metric, seconds in rows
    }


def _record(
    body: ExperimentBody,
    batch: schema.Batch,
    direction: Direction,
    thinking: str | None,
    seeds: list[SeedBody],
) -> TrajectoryBody:
    idea, failure, base = body.idea, body.failure, body.base
    blame = rules_for(failure.code, failure.stage).blame.value if failure else None
    return TrajectoryBody(
        kind=batch.kind,
        experiment=body.id,
        batch=batch.id,
        search=batch.search_id,
        epoch=batch.epoch,
        position=body.position,
        environment=batch.environment_id,
        profile=batch.profile,
        hardware_class=batch.hardware_class,
        conditions=batch.conditions_id or None,
        ideator=batch.ideator,
        executor=batch.executor,
        operator=idea.operator,
        parents=idea.parents,
        client_key=idea.client_key,
        confirms=idea.confirms,
        retries=idea.retries,
        reproduces=idea.reproduces,
        retried_as=body.retried_as,
        idea=idea.text,
        thinking=thinking,
        base=base and base.codebase,
        base_name=base and base.name,
        codebase=body.codebase,
        diff=None,
        state=body.state,
        failure_stage=failure and failure.stage,
        failure_code=failure and failure.code,
        failure_blame=blame,
        failure_message=failure and failure.message,
        metric_name=body.metric_name,
        direction=direction.value,
        metric=body.metric,
        reward=body.reward,
        seeds=seeds,
        seconds=body.seconds,
        warm_up_seconds=body.warm_up_seconds,
        claimed=body.claimed,
        implementation=body.implementation,
        executor_calls=0,
        executor_input_tokens=0,
        executor_cached_input_tokens=0,
        executor_output_tokens=0,
        executor_cost_usd=0.0,
        created_at=body.created_at,
        finished_at=body.finished_at,
        **_compared(body.comparison),
    )


def _compared(found: ComparisonBody | None) -> dict[str, object]:
    return {
        "verdict": found and found.verdict,
        "effect": found and found.effect,
        "effect_low": found and found.low,
        "effect_high": found and found.high,
        "standard_error": found and found.standard_error,
        "p": found and found.p,
        "exploratory": found and found.exploratory,
        "baseline_mean": found and found.baseline_mean,
        "baseline_spread": found and found.baseline_spread,
        "baseline_n": found and found.baseline_n,
    }


def _add_usage(record: TrajectoryBody, used: Usage) -> None:
    record.executor_calls = used.calls
    record.executor_input_tokens = used.input_tokens
    record.executor_cached_input_tokens = used.cached_input_tokens
    record.executor_output_tokens = used.output_tokens
    record.executor_cost_usd = None if used.cost_usd is None else float(used.cost_usd)
