"""What workers call. Every report about an attempt carries its lease token."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from fastapi import APIRouter, Depends
from starlette.concurrency import run_in_threadpool

from assay.contracts.worker import (
    SCORED_ON,
    ClaimRequest,
    FinishRequest,
    FinishResponse,
    ProgressRequest,
    RescoreReport,
    SyncRequest,
    SyncResponse,
    WorkerBody,
    WorkerRegistration,
)
from assay.domain.errors import Forbidden, InvalidInput
from assay.domain.failure_codes import reported_failure
from assay.domain.metrics import LARGEST_METRIC
from assay.domain.states import AttemptState, MeasurementKind
from assay.storage import attempts, environments, workers
from assay.storage.attempts import Outcome, Rescored, Telemetry
from assay.storage.objects import attempt_prefix
from assay.telemetry.logs import keep
from services.implementer import intake
from services.implementer.context import Context
from services.implementer.dependencies import ContextDep, IdPath, WorkerDep, get_worker
from services.implementer.intake import Lease
from services.implementer.routers.transfers import small_codebase
from services.implementer.views.measurements import worker_body

router = APIRouter(tags=["worker"], include_in_schema=False, dependencies=[Depends(get_worker)])


@router.post("/workers")
def register(request: WorkerRegistration, context: ContextDep, worker_id: WorkerDep) -> WorkerBody:
    """A worker has started."""
    with context.write() as session:
        row = workers.register(context.db, session, worker_id, request, context.settings.lease)
        body = worker_body(session, row)
    context.on_worker()
    return body


@router.post("/workers/{worker}/sync")
async def sync(
    worker: IdPath, request: SyncRequest, context: ContextDep, worker_id: WorkerDep
) -> SyncResponse:
    """What a worker holds against what it should hold; waits a while for news if there is none.

    What it holds may have changed while this waited, so news only ends the wait: the worker asks
    again, and nothing is called lost for not being in an old list.
    """
    if worker != worker_id:
        raise Forbidden("this token belongs to another worker")
    response = await run_in_threadpool(_sync, context, worker_id, request)
    has_news = response.assign or response.stop or response.fenced
    if request.wait_seconds > 0 and not has_news:
        await context.doorbells.wait(worker_id, request.wait_seconds)
    return response


def _sync(context: Context, worker_id: str, request: SyncRequest) -> SyncResponse:
    with context.write() as session:
        response = workers.sync(context.db, session, worker_id, request, context.settings.lease)
    for spec in response.assign:
        spec.archive = small_codebase(context.store, spec.codebase)
    return response


@router.post("/attempts/{attempt}/claim", status_code=204)
def claim(
    attempt: IdPath, request: ClaimRequest, context: ContextDep, worker_id: WorkerDep
) -> None:
    """Take an assigned attempt, with the GPUs it will use."""
    keep(worker=worker_id, lease_token=request.lease_token)
    with context.write() as session:
        attempts.claim(
            context.db,
            session,
            attempt,
            worker_id,
            request.lease_token,
            context.settings.lease,
            request.devices,
        )


@router.post("/attempts/{attempt}/progress", status_code=204)
def progress(
    attempt: IdPath, request: ProgressRequest, context: ContextDep, worker_id: WorkerDep
) -> None:
    """New log bytes and curve points."""
    keep(worker=worker_id, lease_token=request.lease_token)
    state = AttemptState(request.state) if request.state else None
    lease = Lease(attempt, worker_id, request.lease_token)
    telemetry = _telemetry(context, lease, request)
    with context.write() as session:
        attempts.progress(
            context.db, session, attempt, worker_id, request.lease_token, telemetry, state
        )
    intake.compact(context, lease, telemetry.logs)


@router.post("/attempts/{attempt}/finish")
def finish(
    attempt: IdPath, request: FinishRequest, context: ContextDep, worker_id: WorkerDep
) -> FinishResponse:
    """The end of an attempt, committed once; repeating it gives the stored state."""
    keep(worker=worker_id, lease_token=request.lease_token)
    with context.db.read() as session:
        of = attempts.subject(session, attempt, worker_id, request.lease_token)
        manifest = environments.manifest(session, of.environment)
    lease = Lease(attempt, worker_id, request.lease_token)
    prefix = attempt_prefix(of.measurement, attempt, request.lease_token)
    name = None
    if of.kind.is_scored:
        _check_split(request, of.kind)
        name = manifest.metric.deciding(of.kind)
    outcome = _outcome(request, name, prefix, manifest.failures)
    telemetry = _telemetry(context, lease, request)
    intake.store_files(context, prefix, request.artifacts)
    intake.write_manifest(context, lease, of.measurement, outcome)
    with context.write() as session:
        state = attempts.finish(
            context.db,
            session,
            attempt,
            worker_id,
            request.lease_token,
            outcome,
            telemetry,
            context.settings.retry_after,
        )
    intake.compact(context, lease, telemetry.logs)
    return FinishResponse(state=state.value)


def _check_split(request: FinishRequest, kind: MeasurementKind) -> None:
    """Refuse a confirmation by a worker that knows no such kind: it scored on `search`."""
    is_confirmed = kind is MeasurementKind.CONFIRM and request.state == "succeeded"
    if is_confirmed and request.provenance.get(SCORED_ON) is None:
        raise InvalidInput.field(
            f"/provenance/{SCORED_ON}",
            "a confirmation has to say which split it was scored on; upgrade the worker",
            "split_missing",
        )


def _outcome(
    request: FinishRequest, name: str | None, prefix: str, declared: Collection[str]
) -> Outcome:
    """What is reported; `name` is the metric that a success has, None for one without."""
    failure = request.failure
    measured = name if request.state == "succeeded" else None
    return Outcome(
        state=AttemptState(request.state),
        failure=reported_failure(failure.stage, failure.code, failure.message, declared)
        if failure
        else None,
        unclear=request.unclear,
        metric=_metric(request.metrics, measured, "/metrics") if measured else None,
        metrics=request.metrics,
        rescored=_rescored(request.rescore, measured) if measured else None,
        provenance=request.provenance,
        prefix=prefix,
        artifacts=tuple(entry.model_dump(exclude={"data"}) for entry in request.artifacts),
        started=request.started,
        seconds=request.seconds or 0.0,
    )


def _rescored(report: RescoreReport | None, name: str) -> Rescored | None:
    if report is None:
        return None
    metric = _metric(report.metrics, name, "/rescore/metrics")
    return Rescored(metric, report.metrics, report.seconds)


def _metric(metrics: Mapping[str, float], name: str, field: str) -> float:
    """The number that an evaluation is about. Raises InvalidInput if it is not there."""
    metric = metrics.get(name)
    if metric is None or not abs(metric) <= LARGEST_METRIC:
        raise InvalidInput.field(
            field,
            f"a success needs {name!r}, finite and at most {LARGEST_METRIC:g} in size; report a "
            "failure instead",
            "metric_missing",
        )
    return metric


def _telemetry(
    context: Context, lease: Lease, report: ProgressRequest | FinishRequest
) -> Telemetry:
    pieces = intake.log_pieces(report.logs)
    return intake.telemetry_of(context, lease, pieces, report.points, report.system)
