"""Bytes between workers and the object store: past the API where the store has URLs for that."""

from __future__ import annotations

import base64
import hashlib
from functools import lru_cache
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from fastapi.responses import RedirectResponse
from starlette.concurrency import run_in_threadpool

from assay.contracts.worker import (
    INLINE_BYTES,
    ManifestEntry,
    Token,
    UploadRequest,
    UploadTarget,
)
from assay.domain.errors import AssayError, InvalidInput
from assay.storage import attempts
from assay.storage.logs import Piece
from assay.storage.objects import CHUNK, ObjectStore, Upload, bundle_key, codebase_key
from services.implementer import intake
from services.implementer.context import Context
from services.implementer.dependencies import ContextDep, IdPath, WorkerDep, get_worker
from services.implementer.intake import FILE_NAME, MANIFEST, Lease
from services.implementer.telemetry import Stream

router = APIRouter(tags=["worker"], include_in_schema=False, dependencies=[Depends(get_worker)])
Sha256 = Annotated[str, Path(pattern=r"^[0-9a-f]{64}$")]
FileName = Annotated[str, Path(pattern=FILE_NAME)]
LeaseToken = Annotated[Token, Query()]
#: Of a log, at most so much comes in one request.
LOG_BYTES = 8 << 20


@router.post("/attempts/{attempt}/artifacts/{name}/upload")
def upload_target(
    attempt: IdPath,
    name: FileName,
    request: UploadRequest,
    context: ContextDep,
    worker_id: WorkerDep,
) -> UploadTarget:
    """Where to PUT a file of an attempt: at the store, or (without a URL) here."""
    _check_name(name)
    _check_size(request.bytes, context)
    prefix = intake.live_prefix(context, Lease(attempt, worker_id, request.lease_token))
    target = context.store.upload_url(f"{prefix}/{name}", request.bytes, request.sha256)
    if target is None:
        return UploadTarget()
    return UploadTarget(url=target.url, headers=target.headers)


@router.put("/attempts/{attempt}/artifacts/{name}")
async def put_artifact(
    attempt: IdPath,
    name: FileName,
    request: Request,
    context: ContextDep,
    worker_id: WorkerDep,
    lease_token: LeaseToken,
) -> ManifestEntry:
    """Store a file of an attempt below the attempt's own prefix."""
    _check_name(name)
    lease = Lease(attempt, worker_id, lease_token)
    prefix = await run_in_threadpool(intake.live_prefix, context, lease)
    with context.store.upload(f"{prefix}/{name}") as upload:
        size, sha256 = await _receive(request, upload, context)
        await run_in_threadpool(upload.commit)
    return ManifestEntry(name=name, bytes=size, sha256=sha256)


async def _receive(request: Request, upload: Upload, context: Context) -> tuple[int, str]:
    """Pass a body on as it comes. Returns its size and hash."""
    digest, size, waiting = hashlib.sha256(), 0, bytearray()
    async for part in request.stream():
        size += len(part)
        _check_size(size, context)
        digest.update(part)
        waiting += part
        if len(waiting) >= CHUNK:
            await run_in_threadpool(upload.write, bytes(waiting))
            waiting.clear()
    await run_in_threadpool(upload.write, bytes(waiting))
    return size, digest.hexdigest()


def _check_name(name: str) -> None:
    if name == MANIFEST:
        raise InvalidInput(f"{MANIFEST} is written when the attempt finishes")


def _check_size(size: int, context: Context) -> None:
    most = context.settings.max_artifact_bytes
    if size > most:
        raise InvalidInput(
            f"a stored file holds at most {most} bytes (ASSAY_IMPLEMENTER_MAX_ARTIFACT_BYTES)",
            code="too_large",
        )


@router.put("/attempts/{attempt}/logs/{stream}", status_code=204)
async def put_log(
    attempt: IdPath,
    stream: Stream,
    request: Request,
    context: ContextDep,
    worker_id: WorkerDep,
    lease_token: LeaseToken,
    offset: Annotated[int, Query(ge=0, lt=1 << 62)],
) -> None:
    """Log bytes from an offset on, as they are: for more than fits well into a report."""
    data = bytearray()
    async for part in request.stream():
        data += part
        if len(data) > LOG_BYTES:
            raise InvalidInput(f"send at most {LOG_BYTES} bytes of a log", code="too_large")
    piece = Piece(stream, offset, bytes(data))
    await run_in_threadpool(_store_log, context, Lease(attempt, worker_id, lease_token), piece)


def _store_log(context: Context, lease: Lease, piece: Piece) -> None:
    telemetry = intake.telemetry_of(context, lease, [piece])
    with context.write() as session:
        attempts.progress(context.db, session, lease.attempt, lease.worker, lease.token, telemetry)
    intake.compact(context, lease, telemetry.logs)


@router.get("/codebases/{sha256}", response_class=Response)
def codebase(sha256: Sha256, context: ContextDep) -> Response:
    """A codebase as a zip."""
    return _object(context, codebase_key(sha256))


@router.get("/bundles/{sha256}", response_class=Response)
def bundle(sha256: Sha256, context: ContextDep) -> Response:
    """An environment as a zip: codebase, evaluator, preparation."""
    return _object(context, bundle_key(sha256))


def _object(context: Context, key: str) -> Response:
    """An object, or where it is; the reader checks its hash."""
    url = context.store.download_url(key)
    if url is not None:
        return RedirectResponse(url, 307, {"Cache-Control": "no-store"})
    return Response(context.store.get(key), media_type="application/zip")


def small_codebase(store: ObjectStore, codebase: str) -> str | None:
    """A codebase that is small enough to come along; otherwise the worker asks for it."""
    try:
        return _small_codebase(store, codebase)
    except AssayError:  # asking for it says what is wrong, to the attempt it concerns
        return None


@lru_cache(maxsize=256)
def _small_codebase(store: ObjectStore, codebase: str) -> str | None:
    data = store.get_range(codebase_key(codebase), 0, INLINE_BYTES + 1)
    return base64.b64encode(data).decode() if len(data) <= INLINE_BYTES else None
