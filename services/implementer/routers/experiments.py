"""Experiments and their implementations: read, list, cancel, repeat; diff, logs, result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from sqlalchemy import select
from sqlalchemy.orm import Session

from assay.contracts.annotation import AnnotationRequest
from assay.contracts.base import Page
from assay.contracts.bases import PromoteRequest, PromotionBody
from assay.contracts.batch import (
    BatchBody,
    ConfirmRequest,
    CurvePoint,
    ExperimentBody,
    ImplementationBody,
    ResultBody,
)
from assay.domain.errors import NotFound
from assay.domain.states import TERMINAL_EXPERIMENT, ExperimentState
from assay.patching import unified_diff
from assay.storage import (
    batches,
    caps,
    conditions,
    environments,
    repairs,
    reproductions,
    retries,
    schema,
)
from assay.storage.annotations import change_annotation, tagged
from assay.storage.bases import base_of, needs_sandbox
from assay.storage.rows import get
from services.implementer import bases, submission, telemetry
from services.implementer.bundles import experiment_bundle
from services.implementer.confirming import confirmation
from services.implementer.dependencies import (
    ContextDep,
    IdPath,
    IdQuery,
    KeyDep,
    NameQuery,
    OwnerDep,
    PageDep,
    TagQuery,
)
from services.implementer.owned import batch_of, owned_batch, owned_experiment
from services.implementer.paging import after, page_of, position_of
from services.implementer.routers.batches import PRICED, DryRunQuery, submit
from services.implementer.streams import LogSource, log_stream, wants_stream
from services.implementer.telemetry import LogReading, Stream
from services.implementer.views.confirmations import experiment_bodies
from services.implementer.views.measurements import (
    artifact_bodies,
    implementation_body,
    measurement_bodies,
)

router = APIRouter(tags=["experiments"])
#: What a diff is made against.
Against = Literal["base", "baseline"]


class ZipResponse(Response):
    """A zip archive."""

    media_type = "application/zip"


@router.get("/experiments")
def list_(
    context: ContextDep,
    owner: OwnerDep,
    page: PageDep,
    batch: IdQuery = None,
    state: ExperimentState | None = None,
    environment: NameQuery = None,
    tag: TagQuery = None,
) -> Page[ExperimentBody]:
    """Experiments: of one batch in the order of their ideas, otherwise newest first.

    `environment` is a name or `name@hash`.
    """
    filters = {"batch": batch, "state": state, "environment": environment}
    if tag is not None:
        filters["tag"] = tag
    table = schema.Experiment
    query = select(table).join(schema.Batch).where(schema.Batch.owner == owner)
    last = after(page, filters)
    if tag is not None:
        query = tagged(query, table.id, owner, tag)
    with context.db.read() as session:
        if state is not None:
            query = query.where(table.state == state.value)
        if environment is not None:
            known = schema.Environment
            query = query.join(known, known.id == schema.Batch.environment_id).where(
                (known.name == environment) | (known.id == environment)
            )
        if batch is not None:
            _held = owned_batch(session, batch, owner)  # so that it is not read again
            query = query.where(table.batch_id == batch).order_by(table.position)
            if last is not None:
                query = query.where(table.position > position_of(last))
        else:
            query = query.order_by(table.id.desc())
            if last is not None:
                query = query.where(table.id < str(last))
        rows = session.scalars(query.limit(page.limit + 1)).all()
        bodies = {body.id: body for body in experiment_bodies(session, rows)}
    key: Callable[[schema.Experiment], Any] = (
        (lambda row: row.position) if batch is not None else (lambda row: row.id)
    )
    return page_of(rows, page, filters, key, lambda row: bodies[row.id])


@router.get("/experiments/{experiment_id}")
def read(experiment_id: IdPath, context: ContextDep, owner: OwnerDep) -> ExperimentBody:
    """One idea put to the test."""
    with context.db.read() as session:
        row = owned_experiment(session, experiment_id, owner)
        return experiment_bodies(session, [row])[0]


@router.patch("/experiments/{experiment_id}")
def annotate(
    experiment_id: IdPath, request: AnnotationRequest, context: ContextDep, owner: OwnerDep
) -> ExperimentBody:
    """Change the tags and the note of an experiment, and nothing else. Repeating it changes
    nothing."""
    with context.write() as session:
        owned_experiment(session, experiment_id, owner)
        change_annotation(session, owner, experiment_id, request.tags, request.note)
    return read(experiment_id, context, owner)


@router.post("/experiments/{experiment_id}/cancel")
def cancel(experiment_id: IdPath, context: ContextDep, owner: OwnerDep) -> ExperimentBody:
    """Cancel an experiment. Repeating it, or cancelling a finished one, changes nothing."""
    with context.write() as session:
        owned_experiment(session, experiment_id, owner)
        batches.cancel_experiment(context.db, session, experiment_id)
    return read(experiment_id, context, owner)


@router.post(
    "/experiments/{experiment_id}/retry",
    status_code=202,
    response_model=ExperimentBody,
    responses={200: {"description": "It was asked for before.", "model": ExperimentBody}},
)
def retry(experiment_id: IdPath, context: ContextDep, owner: OwnerDep) -> Response:
    """Measure a failed experiment again: another one, in a batch of its own, on the same codebase.

    Seeds that failed are measured anew; results are shared. Repeating it while the retry waits or
    runs, or after it succeeded, changes nothing. The failed experiment stays as it is.
    """
    with context.db.read() as session:
        row = owned_experiment(session, experiment_id, owner)
        batch = get(session, schema.Batch, row.batch_id, "batch")
        base = base_of(get(session, schema.Idea, row.idea_id, "idea"))
    environment = submission.known_environment(context, batch.environment_id)
    context.check_store()
    with context.write() as session:
        found = retries.experiment(context.db, session, experiment_id)
        if found.is_new:
            isolated = needs_sandbox(
                session,
                batch.executor,
                batch.ideator,
                [base],
                allow_unisolated=caps.options_of(batch).allow_unisolated,
            )
            conditions.choose(
                session,
                environment.id,
                environment.manifest,
                batch.profile,
                batch.hardware_class,
                isolated=isolated,
            )
        made = get(session, schema.Experiment, found.id, "experiment")
        body = experiment_bodies(session, [made])[0].wire()
    headers = {"Location": f"/v1/experiments/{found.id}"}
    return JSONResponse(body, 202 if found.is_new else 200, headers)


@router.post(
    "/experiments/{experiment_id}/reproduce",
    status_code=202,
    response_model=ExperimentBody,
    responses={200: {"description": "It was asked for before.", "model": ExperimentBody}},
)
def reproduce(
    experiment_id: IdPath,
    context: ContextDep,
    owner: OwnerDep,
    queue: Annotated[
        bool, Query(description="Also where no live worker measures under its conditions.")
    ] = False,
) -> Response:
    """Measure a result again, to see whether it agrees: another experiment, in a batch of its own.

    It has the same codebase, seeds, profile, environment and conditions, and measurements that
    count nowhere else. Repeating it while the reproduction waits or runs changes nothing. Once
    that has ended, its `agreement` says what came of it.
    """
    with context.db.read() as session:
        row = owned_experiment(session, experiment_id, owner)
        batch = get(session, schema.Batch, row.batch_id, "batch")
    submission.known_environment(context, batch.environment_id)
    context.check_store()
    with context.write() as session:
        found = reproductions.request(context.db, session, experiment_id, queue=queue)
        made = get(session, schema.Experiment, found.id, "experiment")
        body = experiment_bodies(session, [made])[0].wire()
    headers = {"Location": f"/v1/experiments/{found.id}"}
    return JSONResponse(body, 202 if found.is_new else 200, headers)


@router.post(
    "/experiments/{experiment_id}/confirm",
    status_code=202,
    response_model=BatchBody,
    responses=PRICED,
)
def confirm(
    experiment_id: IdPath,
    request: ConfirmRequest,
    context: ContextDep,
    owner: OwnerDep,
    key: KeyDep = None,
    dry_run: DryRunQuery = False,
) -> Response:
    """Measure a result again in a batch of its own: on fresh seeds, scored on the sealed split.

    An environment without a sealed split is scored as before. The baseline is measured on the
    same seeds and the same split. No ideator sees what comes of it.
    """
    with context.db.read() as session:
        rows = [owned_experiment(session, id_, owner) for id_ in (experiment_id, *request.beside)]
        wanted = confirmation(session, rows, request)
        own = [base_of(get(session, schema.Idea, row.idea_id, "idea")) for row in rows]
    endpoint = f"POST /v1/experiments/{experiment_id}/confirm"
    based_on = own if request.base is None else None
    return submit(endpoint, wanted, context, owner, key, dry_run=dry_run, based_on=based_on)


@router.post(
    "/experiments/{experiment_id}/promote",
    status_code=201,
    response_model=PromotionBody,
    responses={200: {"description": "It has the name already.", "model": PromotionBody}},
)
def promote(
    experiment_id: IdPath, request: PromoteRequest, context: ContextDep, owner: OwnerDep
) -> Response:
    """Give a confirmed codebase a name that later batches can start from as their `base`.

    The latest confirmation must claim it to be better than what the name stands for, or than the
    baseline if the name is new. Every owner of the service can use the name, and so read the
    codebase; the idea and the experiment stay their owner's. What the name stood for before stays
    in its history, and batches and searches that were submitted keep it.
    """
    with context.write() as session:
        row = owned_experiment(session, experiment_id, owner)
        found = bases.promote(context, session, row, request.name)
        body = bases.promotion_body(session, found.row, owner, is_current=True).wire()
    return JSONResponse(body, 201 if found.is_new else 200)


@router.get("/experiments/{experiment_id}/diff", response_class=PlainTextResponse)
def diff(
    experiment_id: IdPath,
    context: ContextDep,
    owner: OwnerDep,
    against: Annotated[
        Against,
        Query(description="`baseline`: the environment's own code, also if there is a base."),
    ] = "base",
) -> str:
    """What was changed: the experiment's codebase against its base, as a unified diff.

    An experiment without a base is compared with the environment's own code.
    """
    with context.db.read() as session:
        row = owned_experiment(session, experiment_id, owner)
        if row.codebase_id is None:
            raise NotFound(
                f"experiment {experiment_id} has no codebase: it is {row.state}; "
                f"its samples are in its implementation",
                code="no_codebase",
            )
        batch = get(session, schema.Batch, row.batch_id, "batch")
        before = get(session, schema.Environment, batch.environment_id, "environment").codebase
        base = base_of(get(session, schema.Idea, row.idea_id, "idea"))
        if against == "base" and base is not None:
            before = base.codebase
    return unified_diff(
        environments.get_codebase(context.store, before),
        environments.get_codebase(context.store, row.codebase_id),
    )


def first_measurement(session: Session, experiment: schema.Experiment) -> str | None:
    """The measurement on the experiment's first seed."""
    return session.scalars(
        select(schema.Measurement.id)
        .join(
            schema.ExperimentMeasurement,
            schema.ExperimentMeasurement.measurement_id == schema.Measurement.id,
        )
        .where(
            schema.ExperimentMeasurement.experiment_id == experiment.id,
            schema.ExperimentMeasurement.role == repairs.SCORE,
        )
        .order_by(schema.Measurement.seed, schema.Measurement.id)
        .limit(1)
    ).first()


@router.get("/experiments/{experiment_id}/logs", response_class=PlainTextResponse)
def logs(
    experiment_id: IdPath,
    request: Request,
    context: ContextDep,
    owner: OwnerDep,
    stream: Stream = "train",
    offset: Annotated[int, Query(ge=0, le=telemetry.MAX_OFFSET)] = 0,
    limit: Annotated[int, Query(ge=1, le=telemetry.MAX_LOG_PAGE)] = telemetry.MAX_LOG_PAGE,
    last_event_id: Annotated[int | None, Header(ge=0, le=telemetry.MAX_OFFSET)] = None,
) -> Response:
    """The log of the first seed from a byte offset on; a stream with SSE.

    The header `Next-Offset` says where to go on.
    """

    def reading(start: int) -> LogReading:
        with context.db.read() as session:
            experiment = owned_experiment(session, experiment_id, owner)
            ended = experiment.state in {s.value for s in TERMINAL_EXPERIMENT}
            measurement = first_measurement(session, experiment)
            if measurement is None:
                return LogReading(b"", start, ended)
            place = telemetry.find_log(session, measurement, stream, start, limit)
        return place.read(context.store, ended=ended)

    if not wants_stream(request):
        return telemetry.log_response(reading(offset))
    with context.db.read() as session:
        batch = owned_experiment(session, experiment_id, owner).batch_id
    # With another limit it is read in other pieces.
    source = LogSource(f"{experiment_id} {stream} {limit}", batch, reading)
    start = offset if last_event_id is None else last_event_id
    return log_stream(request, context, owner, source, start)


@router.get("/experiments/{experiment_id}/curves")
def curves(
    experiment_id: IdPath,
    context: ContextDep,
    owner: OwnerDep,
    max_points: Annotated[int, Query(ge=1, le=20_000)] = 500,
) -> Page[CurvePoint]:
    """What the codebase logged while it trained, on the first seed, thinned evenly.

    Claimed by the codebase: a curve is never a result.
    """
    with context.db.read() as session:
        experiment = owned_experiment(session, experiment_id, owner)
        measurement = first_measurement(session, experiment)
        points = telemetry.read_curves(session, measurement, max_points) if measurement else []
    return Page(data=points)


@router.get("/experiments/{experiment_id}/result")
def result(experiment_id: IdPath, context: ContextDep, owner: OwnerDep) -> ResultBody:
    """The sealed result: the metric, how it compares, and its provenance per measurement."""
    with context.db.read() as session:
        row = owned_experiment(session, experiment_id, owner)
        body = experiment_bodies(session, [row])[0]
        if body.metric is None:
            raise NotFound(
                f"experiment {experiment_id} has no result: it is {row.state}", code="no_result"
            )
        batch = get(session, schema.Batch, row.batch_id, "batch")
        metric = environments.manifest(session, batch.environment_id).metric
        rows = [
            get(session, schema.Measurement, measurement, "measurement")
            for measurement in body.measurements
        ]
        bodies = measurement_bodies(session, rows)
        return ResultBody(
            experiment=row.id,
            metric_name=body.metric_name,
            direction=metric.direction.value,
            metric=body.metric,
            reward=body.reward,
            comparison=body.comparison,
            against_baseline=body.against_baseline,
            used=body.used,
            promotable=bool(bodies) and all(m.promotable for m in bodies),
            measurements=bodies,
            artifacts=_artifacts(session, rows),
        )


@router.get("/experiments/{experiment_id}/bundle", response_class=ZipResponse)
def bundle(experiment_id: IdPath, context: ContextDep, owner: OwnerDep) -> Response:
    """Everything that it takes to measure a result again without a service, as a zip.

    It holds the codebase, the environment, what was measured and how, and a `run.py`. Held-out
    keys are not in it.
    """
    body = result(experiment_id, context, owner)
    with context.db.read() as session:
        row = get(session, schema.Experiment, experiment_id, "experiment")
        now = context.db.now(session)
        data = experiment_bundle(session, context.store, row, body, now)
    name = f'attachment; filename="{row.id}.zip"'
    return ZipResponse(data, headers={"Content-Disposition": name})


def _artifacts(session: Session, rows: Sequence[schema.Measurement]) -> list[Any]:
    return [artifact for row in rows for artifact in artifact_bodies(session, row.id)]


@router.get("/implementations/{implementation_id}", tags=["implementations"])
def implementation(
    implementation_id: IdPath, context: ContextDep, owner: OwnerDep
) -> ImplementationBody:
    """How an idea became a codebase: every sample with its diff, patch log and tokens."""
    with context.db.read() as session:
        row = get(session, schema.Implementation, implementation_id, "implementation")
        if batch_of(session, row.experiment_id).owner != owner:
            raise NotFound(f"implementation {implementation_id!r} was not found")
        return implementation_body(session, row)
