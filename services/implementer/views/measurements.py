"""Measurements, implementations, workers and searches as the API shows them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from assay.contracts.base import FailureBody
from assay.contracts.batch import (
    ArtifactBody,
    AttemptBody,
    ImplementationBody,
    MeasurementBody,
    RescoreBody,
    SampleBody,
    Usage,
)
from assay.contracts.search import (
    BestOfEpoch,
    EpochBody,
    PauseBody,
    SearchBody,
)
from assay.contracts.worker import (
    ApartBody,
    DeclaredBody,
    Device,
    DeviceTrouble,
    WorkerBody,
)
from assay.domain.metrics import Direction, is_better
from assay.domain.rounding import shown_metrics, shown_provenance, shown_rescore, whole
from assay.domain.states import MeasurementKind
from assay.storage import (
    caps,
    conditions,
    environments,
    equivalences,
    samples,
    schema,
    searches,
)
from assay.storage.annotations import Annotation, read_annotations
from assay.storage.retention import REMOVED_AT
from services.implementer.context import Context
from services.implementer.outcomes import BatchOutcome
from services.implementer.views.batches import base_body, outcomes_of_finished
from services.implementer.views.calls import (
    IdeatorUse,
    dollars,
    total,
    usage_of_batches,
    usage_of_implementations,
    use_of_ideators,
)


def measurement_body(session: Session, row: schema.Measurement) -> MeasurementBody:
    """A measurement with its attempts and, if it has one, its result."""
    return measurement_bodies(session, [row])[0]


def measurement_bodies(
    session: Session, rows: Sequence[schema.Measurement]
) -> list[MeasurementBody]:
    """Measurements with their attempts and results, in a fixed number of queries."""
    ids = [row.id for row in rows]
    result, rescore, attempt = schema.Result, schema.Rescore, schema.Attempt
    results = {
        each.measurement_id: each
        for each in session.scalars(select(result).where(result.measurement_id.in_(ids)))
    }
    rescores = {
        each.measurement_id: each
        for each in session.scalars(select(rescore).where(rescore.measurement_id.in_(ids)))
    }
    attempts: dict[str, list[schema.Attempt]] = defaultdict(list)
    for each in session.scalars(
        select(attempt).where(attempt.measurement_id.in_(ids)).order_by(attempt.number)
    ):
        attempts[each.measurement_id].append(each)
    return [
        _measurement_body(
            session, row, results.get(row.id), rescores.get(row.id), attempts.get(row.id, [])
        )
        for row in rows
    ]


def _measurement_body(
    session: Session,
    row: schema.Measurement,
    result: schema.Result | None,
    rescore: schema.Rescore | None,
    attempts: Sequence[schema.Attempt],
) -> MeasurementBody:
    spec = environments.manifest(session, row.environment_id).metric
    kind = MeasurementKind(row.kind)
    name = spec.deciding(kind)
    metrics = {**result.metrics, name: result.metric} if result and kind.is_scored else {}
    rounded = shown_metrics(metrics)
    return MeasurementBody(
        id=row.id,
        kind=row.kind,
        codebase=row.codebase_id,
        environment=row.environment_id,
        profile=row.profile,
        hardware_class=row.hardware_class,
        conditions=row.conditions_id or None,
        seed=row.seed,
        replicate=row.replicate,
        state=row.state,
        failure=_failure(row.failure),
        metric=rounded.get(name),
        metrics=rounded,
        rescore=_rescore_body(rescore, metrics, name),
        seconds=whole(result.seconds) if result else None,
        provenance=shown_provenance(result.provenance, metrics, name) if result else {},
        promotable=bool(result and kind.is_scored and result.provenance.get("isolated")),
        attempts=[_attempt_body(attempt) for attempt in attempts],
        created_at=row.created_at,
        finished_at=row.finished_at,
    )


def _rescore_body(
    row: schema.Rescore | None, first: dict[str, Any], name: str
) -> RescoreBody | None:
    """The second evaluation, in no more digits than the first one is shown in."""
    if row is None:
        return None
    metrics = shown_rescore({**row.metrics, name: row.metric}, first)
    return RescoreBody(metric=metrics[name], metrics=metrics, seconds=whole(row.seconds))


def _attempt_body(row: schema.Attempt) -> AttemptBody:
    return AttemptBody(
        id=row.id,
        number=row.number,
        worker=row.worker_id,
        state=row.state,
        failure=_failure(row.failure),
        software=row.software or {},
        created_at=row.created_at,
        started_at=row.started_at,
        finished_at=row.finished_at,
    )


def _failure(stored: dict[str, object] | None) -> FailureBody | None:
    return FailureBody.model_validate(stored) if stored else None


def artifact_bodies(session: Session, measurement_id: str) -> list[ArtifactBody]:
    """The stored files of a measurement: those of the attempt that gave its result."""
    result = session.get(schema.Result, measurement_id)
    stored = session.get(schema.Artifacts, result.attempt_id) if result else None
    return [
        ArtifactBody(
            name=file["name"],
            bytes=file["bytes"],
            sha256=file["sha256"],
            url=f"/v1/measurements/{measurement_id}/artifacts/{file['name']}",
            removed_at=file.get(REMOVED_AT),
        )
        for file in (stored.files if stored else [])
    ]


def implementation_body(session: Session, row: schema.Implementation) -> ImplementationBody:
    """The record of an implementation: every sample with its diff, patch log and tokens."""
    return ImplementationBody(
        id=row.id,
        experiment=row.experiment_id,
        executor=row.executor,
        state=row.state,
        codebase=row.codebase_id,
        winner=row.winner,
        usage=usage_of_implementations(session, [row.id]).get(row.id, Usage()),
        samples=[_sample_body(s) for s in samples.of(session, row.id)],
    )


def _sample_body(row: schema.Sample) -> SampleBody:
    seconds = (row.finished_at - row.started_at).total_seconds() if row.finished_at else None
    return SampleBody(
        sample=row.sample,
        revision=row.revision,
        is_repair=row.is_repair,
        state=row.state,
        fitted=row.fitted,
        smoke=row.smoke_id,
        code=row.code,
        answer=row.answer,
        thinking=row.thinking,
        diff=row.diff,
        patch_log=row.patch_log,
        prompt_version=row.prompt_version,
        input_tokens=row.input_tokens,
        cached_input_tokens=row.cached_input_tokens,
        output_tokens=row.output_tokens,
        cost_usd=None if row.cost_usd is None else dollars(row.cost_usd),
        tries=row.tries,
        seconds=seconds,
    )


def worker_body(session: Session, row: schema.Worker) -> WorkerBody:
    """A worker and the attempts whose resources it holds."""
    return worker_bodies(session, [row])[0]


def worker_bodies(session: Session, rows: Sequence[schema.Worker]) -> list[WorkerBody]:
    """Workers and the attempts whose resources they hold, in a fixed number of queries."""
    attempt = schema.Attempt
    held: dict[str, list[str]] = defaultdict(list)
    for worker_id, attempt_id in session.execute(
        select(attempt.worker_id, attempt.id)
        .where(attempt.worker_id.in_([row.id for row in rows]), attempt.released_at.is_(None))
        .order_by(attempt.id)
    ):
        held[worker_id].append(attempt_id)
    apart = equivalences.apart(session)
    packages = {
        each.environment_id: environments.manifest(session, each.environment_id).packages
        for each in apart
    }
    declared = equivalences.declared(session)
    return [_worker_body(row, held.get(row.id, []), apart, packages, declared) for row in rows]


def _worker_body(
    row: schema.Worker,
    held: Sequence[str],
    apart: Sequence[schema.Equivalence],
    packages: Mapping[str, Sequence[str]],
    declared: Sequence[schema.Equivalence],
) -> WorkerBody:
    until = row.cordoned_until
    # A worker may state anything in its info.
    key = row.info.get("held_out_key")
    is_cordoned = until is not None and until > datetime.now(UTC)
    facts = conditions.facts_of(row)
    return WorkerBody(
        id=row.id,
        name=row.name,
        state=row.state,
        cpus=row.cpus,
        gpus=row.gpus,
        memory_bytes=row.memory_bytes,
        hardware_class=row.hardware_class,
        conditions=facts.wide,
        facts=facts.deciding,
        recorded=facts.recorded,
        apart=[
            ApartBody(environment=each.environment_id, profile=each.profile, state=each.state)
            for each in apart
            if conditions.facts_of(row, packages[each.environment_id]).narrow == each.conditions_id
        ],
        declared=[
            DeclaredBody(
                environment=each.environment_id, profile=each.profile, equals=each.equals_id
            )
            for each in declared
            if each.conditions_id == facts.wide
        ],
        sandbox=row.sandbox,
        isolated=row.isolated,
        guarantees=row.guarantees,
        devices=[Device.model_validate(device) for device in row.devices],
        usable_gpus=row.usable_gpus,
        troubles=[DeviceTrouble.model_validate(each) for each in row.troubles],
        usable_cpus=row.usable_cpus,
        version=row.version,
        draining=row.draining,
        cordoned_until=row.cordoned_until if is_cordoned else None,
        cordon_reason=row.cordon_reason if is_cordoned else None,
        running=list(held),
        held_out_key=key if isinstance(key, str) else None,
        last_seen_at=row.last_seen_at,
    )


def epoch_body(epoch: searches.EpochRow) -> EpochBody:
    """One round of a search."""
    return EpochBody.model_validate(
        {
            "search": epoch.row.search_id,
            "number": epoch.row.number,
            "state": epoch.state.value,
            "batch": epoch.row.batch_id,
            "ideas": epoch.row.ideas,
            "decision": epoch.row.decision,
            "created_at": epoch.row.created_at,
        }
    )


def search_bodies(
    context: Context, session: Session, rows: Sequence[schema.Search]
) -> list[SearchBody]:
    """Searches, each with the best metric so far per finished epoch; a fixed number of queries."""
    ids = [row.id for row in rows]
    batches, pauses = searches.batches_of(session, ids), searches.pauses(session, ids)
    ideators, annotated = use_of_ideators(session, ids), read_annotations(session, ids)
    metrics = {row.id: environments.manifest(session, row.environment_id).metric for row in rows}
    every = [batch for of in batches.values() for batch in of]
    outcomes = outcomes_of_finished(
        context,
        session,
        {
            batch.id: environments.manifest(session, batch.environment_id).metric
            for batch in every
            if batch.is_finished
        },
    )
    used = {id_: outcome.usage for id_, outcome in outcomes.items()}
    if unfinished := [batch.id for batch in every if not batch.is_finished]:
        used |= usage_of_batches(session, unfinished)
    return [
        _search_body(
            row,
            _best_by_epoch(batches.get(row.id, []), outcomes, metrics[row.id].direction),
            pauses.get(row.id, []),
            ideators.get(row.id, IdeatorUse()),
            total([used[batch.id] for batch in batches.get(row.id, []) if batch.id in used]),
            annotated.get(row.id, Annotation([], "")),
        )
        for row in rows
    ]


def search_body(context: Context, session: Session, row: schema.Search) -> SearchBody:
    """A search with the best metric so far per finished epoch."""
    return search_bodies(context, session, [row])[0]


def _search_body(
    row: schema.Search,
    best: list[BestOfEpoch],
    pauses: Sequence[searches.Pause],
    ideator: IdeatorUse,
    executor_usage: Usage,
    annotation: Annotation,
) -> SearchBody:
    return SearchBody(
        id=row.id,
        owner=row.owner,
        environment=row.environment_id,
        profile=row.profile,
        strategy=row.strategy,
        seed=row.seed,
        epochs=row.epochs,
        batch_size=row.batch_size,
        ideator=row.ideator,
        executor=row.executor,
        hardware_class=row.hardware_class,
        conditions=row.conditions_id,
        base=base_body(row),
        config=row.config,
        caps=caps.spending_of(row),
        state=row.state,
        epochs_finished=len(best),
        best=best,
        pauses=[
            PauseBody.model_validate(
                {**pause.data, "paused_at": pause.paused_at, "resumed_at": pause.resumed_at}
            )
            for pause in pauses
        ],
        ideator_usage=ideator.usage,
        executor_usage=executor_usage,
        answers=ideator.answers,
        answers_unread=ideator.unread,
        driver=row.driver,
        metadata=row.labels,
        tags=annotation.tags,
        note=annotation.note,
        created_at=row.created_at,
        finished_at=row.finished_at,
    )


def _best_by_epoch(
    batches: Sequence[searches.BatchOfSearch],
    outcomes: Mapping[str, BatchOutcome],
    direction: Direction,
) -> list[BestOfEpoch]:
    so_far: float | None = None
    found = []
    for batch in batches:
        if batch.epoch is None or not batch.is_finished:
            continue
        outcome = outcomes[batch.id]
        best = outcome.best
        metric = best.metric if best else None
        if metric is not None and (so_far is None or is_better(direction, metric, so_far)):
            so_far = metric
        found.append(
            BestOfEpoch(
                epoch=batch.epoch,
                batch=batch.id,
                experiment=best.experiment if best else None,
                metric=metric,
                best_so_far=so_far,
                scored=outcome.counts.counts.succeeded,
                total=outcome.counts.counts.total,
            )
        )
    return found
