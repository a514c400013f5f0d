"""What workers call. Every report about an attempt carries its lease token."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from starlette.concurrency import run_in_threadpool

from assay.contracts.worker import (
    INLINE_BYTES,
    FinishRequest,
    FinishResponse,
    LeaseRequest,
    LogPiece,
    ManifestEntry,
    Point,
    ProgressRequest,
    SyncRequest,
    SyncResponse,
    WorkerBody,
    WorkerRegistration,
)
from assay.domain.errors import AssayError, Fenced, InvalidInput
from assay.domain.states import AttemptState, Failure, FailureStage
from assay.storage import attempts, environments, schema, workers
from assay.storage.attempts import Outcome, Piece, Telemetry
from assay.storage.objects import attempt_prefix, bundle_key, codebase_key
from services.implementer.context import Context
from services.implementer.dependencies import ContextDep, WorkerDep, get_worker
from services.implementer.streams import decode_piece
from services.implementer.views.measurements import worker_body

router = APIRouter(tags=["worker"], include_in_schema=False, dependencies=[Depends(get_worker)])
Sha256 = Annotated[str, Path(pattern=r"^[0-9a-f]{64}$")]
FILE_NAME = r"^[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}$"
FileName = Annotated[str, Path(pattern=FILE_NAME)]
MANIFEST = "manifest.json"


@router.post("/workers")
def register(request: WorkerRegistration, context: ContextDep, worker_id: WorkerDep) -> WorkerBody:
    """A worker has started."""
    with context.write() as session:
        row = workers.register(context.db, session, worker_id, request)
        return worker_body(session, row)


@router.post("/workers/{worker}/sync")
async def sync(
    worker: str, request: SyncRequest, context: ContextDep, worker_id: WorkerDep
) -> SyncResponse:
    """What a worker holds against what it should hold; waits a while for news if there is none.

    What it holds may have changed while this waited, so news only ends the wait: the worker asks
    again, and nothing is called lost for not being in an old list.
    """
    if worker != worker_id:
        raise Fenced("this token belongs to another worker")
    response = await run_in_threadpool(_sync, context, worker_id, request)
    has_news = response.assign or response.stop or response.fenced
    if request.wait_seconds > 0 and not has_news:
        await context.doorbells.wait(worker_id, request.wait_seconds)
    return response


def _sync(context: Context, worker_id: str, request: SyncRequest) -> SyncResponse:
    with context.write() as session:
        response = workers.sync(context.db, session, worker_id, request, context.settings.lease)
    for spec in response.assign:
        spec.archive = _small_codebase(context, spec.codebase)
    return response


def _small_codebase(context: Context, codebase: str) -> str | None:
    """A codebase that is small enough to come along; otherwise the worker asks for it."""
    try:
        data = context.store.get(codebase_key(codebase))
    except AssayError:  # asking for it says what is wrong, to the attempt it concerns
        return None
    return base64.b64encode(data).decode() if len(data) <= INLINE_BYTES else None


@router.post("/attempts/{attempt}/claim", status_code=204)
def claim(attempt: str, request: LeaseRequest, context: ContextDep, worker_id: WorkerDep) -> None:
    """Take an assigned attempt."""
    with context.write() as session:
        attempts.claim(
            context.db,
            session,
            attempt,
            worker_id,
            request.lease_token,
            context.settings.lease,
        )


@router.post("/attempts/{attempt}/progress", status_code=204)
def progress(
    attempt: str, request: ProgressRequest, context: ContextDep, worker_id: WorkerDep
) -> None:
    """New log bytes and curve points."""
    state = AttemptState(request.state) if request.state else None
    telemetry = _telemetry(request.logs, request.points)
    with context.write() as session:
        attempts.progress(
            context.db, session, attempt, worker_id, request.lease_token, telemetry, state
        )


@router.put("/attempts/{attempt}/artifacts/{name}")
async def put_artifact(
    attempt: str,
    name: FileName,
    request: Request,
    context: ContextDep,
    worker_id: WorkerDep,
    lease_token: Annotated[int, Query()],
) -> ManifestEntry:
    """Store a file of an attempt below the attempt's own prefix."""
    if name == MANIFEST:
        raise InvalidInput(f"{MANIFEST} is written when the attempt finishes")
    data = await _body(request, context.settings.max_artifact_bytes)
    return await run_in_threadpool(
        _put_artifact, context, attempt, worker_id, lease_token, name, data
    )


async def _body(request: Request, limit: int) -> bytes:
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > limit:
            raise InvalidInput(f"an artifact holds at most {limit} bytes", code="too_large")
        parts.append(part)
    return b"".join(parts)


def _put_artifact(
    context: Context, attempt: str, worker_id: str, lease_token: int, name: str, data: bytes
) -> ManifestEntry:
    with context.db.read() as session:
        row = session.get(schema.Attempt, attempt)
        if (
            row is None
            or row.worker_id != worker_id
            or row.lease_token != lease_token
            or not AttemptState(row.state).is_live
        ):
            raise Fenced(f"attempt {attempt} is not held with token {lease_token}")
        prefix = attempt_prefix(row.measurement_id, attempt, lease_token)
    context.store.put(f"{prefix}/{name}", data)
    return ManifestEntry(name=name, bytes=len(data), sha256=hashlib.sha256(data).hexdigest())


@router.post("/attempts/{attempt}/finish")
def finish(
    attempt: str, request: FinishRequest, context: ContextDep, worker_id: WorkerDep
) -> FinishResponse:
    """The end of an attempt, committed once; repeating it gives the stored state."""
    with context.db.read() as session:
        measurement, environment = attempts.subject(
            session, attempt, worker_id, request.lease_token
        )
        metric_name = environments.manifest(session, environment).metric.name
    prefix = attempt_prefix(measurement, attempt, request.lease_token)
    outcome = _outcome(request, metric_name, prefix)
    for entry in request.artifacts:
        if entry.data is not None:
            _store_inline(context, prefix, entry)
    if outcome.artifacts:
        manifest = json.dumps(
            {
                "attempt": attempt,
                "measurement": measurement,
                "files": list(outcome.artifacts),
            },
            sort_keys=True,
        )
        # Written last: an attempt with a manifest is complete.
        context.store.put(f"{outcome.prefix}/{MANIFEST}", manifest.encode())
    telemetry = _telemetry(request.logs, request.points)
    with context.write() as session:
        state = attempts.finish(
            context.db, session, attempt, worker_id, request.lease_token, outcome, telemetry
        )
    return FinishResponse(state=state.value)


def _store_inline(context: Context, prefix: str, entry: ManifestEntry) -> None:
    name, data = entry.name, decode_piece(entry.data or "")
    if name == MANIFEST or not re.fullmatch(FILE_NAME, name):
        raise InvalidInput(f"{name!r} is not a name for a file of an attempt")
    if hashlib.sha256(data).hexdigest() != entry.sha256 or len(data) != entry.bytes:
        raise InvalidInput(f"{name}: its bytes are not those of its hash")
    context.store.put(f"{prefix}/{name}", data)


def _outcome(request: FinishRequest, metric_name: str, prefix: str) -> Outcome:
    metric = request.metrics.get(metric_name)
    succeeded = request.state == "succeeded"
    if succeeded and (metric is None or not math.isfinite(metric)):
        raise InvalidInput.field(
            "/metrics", f"a success needs a finite {metric_name!r}", "metric_missing"
        )
    failure = request.failure
    return Outcome(
        state=AttemptState(request.state),
        failure=Failure(
            FailureStage(failure.stage), failure.code, failure.message, failure.retryable
        )
        if failure
        else None,
        infrastructure=request.infrastructure,
        metric=metric if succeeded else None,
        metrics=request.metrics,
        provenance=request.provenance,
        prefix=prefix,
        artifacts=tuple(entry.model_dump(exclude={"data"}) for entry in request.artifacts),
        started=request.started,
        seconds=request.seconds or 0.0,
    )


def _telemetry(logs: list[LogPiece], points: list[Point]) -> Telemetry:
    return Telemetry(
        tuple(Piece(piece.stream, piece.offset, decode_piece(piece.data)) for piece in logs),
        tuple((point.seq, point.step, point.values) for point in points),
    )


@router.get("/codebases/{sha256}", response_class=Response)
def codebase(sha256: Sha256, context: ContextDep) -> Response:
    """A codebase as a zip."""
    return Response(context.store.get(codebase_key(sha256)), media_type="application/zip")


@router.get("/bundles/{sha256}", response_class=Response)
def bundle(sha256: Sha256, context: ContextDep) -> Response:
    """An environment as a zip: codebase, evaluator, preparation."""
    return Response(context.store.get(bundle_key(sha256)), media_type="application/zip")
