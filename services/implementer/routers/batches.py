"""Batches: create, read, list, cancel, follow."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.responses import JSONResponse
from sqlalchemy import select
from sqlalchemy.orm import Session

from assay.contracts.base import MAX_INTEGER, Page
from assay.contracts.batch import BatchBody, BatchRequest, CallBody, EventBody
from assay.domain.states import BatchState
from assay.storage import batches, conditions, idempotency, schema
from assay.storage.bases import Base
from assay.storage.rows import get
from services.implementer import novelty, pricing, submission
from services.implementer.context import Context
from services.implementer.dependencies import (
    ContextDep,
    IdPath,
    IdQuery,
    KeyDep,
    NameQuery,
    OwnerDep,
    PageDep,
)
from services.implementer.owned import owned_batch
from services.implementer.paging import after, page_of
from services.implementer.streams import answer_events, of_batch
from services.implementer.views.batches import batch_bodies, batch_body
from services.implementer.views.calls import call_body

router = APIRouter(tags=["batches"])
DryRunQuery = Annotated[bool, Query(description="Check and price only.")]
PRICED: dict[int | str, dict[str, Any]] = {
    200: {"description": "With `dry_run`: what it would cost; nothing is stored."}
}
CallState = Literal["calling", "returned", "failed", "cancelled", "interrupted"]


@router.post(
    "/batches",
    status_code=202,
    response_model=BatchBody,
    responses=PRICED,
)
def create(
    request: BatchRequest,
    context: ContextDep,
    owner: OwnerDep,
    key: KeyDep = None,
    dry_run: DryRunQuery = False,
) -> Response:
    """Submit ideas. The batch is the long-running operation: poll it or follow its events."""
    return submit("POST /v1/batches", request, context, owner, key, dry_run=dry_run)


def submit(
    endpoint: str,
    request: BatchRequest,
    context: Context,
    owner: str,
    key: str | None,
    *,
    dry_run: bool,
    based_on: Sequence[Base | None] | None = None,
) -> Response:
    """Check and store a batch, once per idempotency key and endpoint. Returns the answer.

    `based_on`: for each idea its base, in place of what the request names.
    """
    fingerprint = idempotency.fingerprint(endpoint, request.model_dump_json())
    done = None if dry_run else idempotency.replay(context.db, owner, key, fingerprint)
    if done is None:
        checked = submission.check_batch(context, request, owner, based_on)
        if dry_run:
            submission.check_placement(context, request, checked)
            return JSONResponse(pricing.dry_run(context, request, checked, owner))
        store = _storing(context, request, checked, owner)
        done = idempotency.once(context.db, owner, key, fingerprint, store)
        context.on_commit()
    headers = {"Location": done.body["links"]["self"]}
    if done.replayed:
        headers["Idempotent-Replayed"] = "true"
    return JSONResponse(done.body, done.status, headers)


def _storing(
    context: Context, request: BatchRequest, checked: submission.Checked, owner: str
) -> Callable[[Session], tuple[int, dict[str, Any]]]:
    """What stores a checked batch, in a transaction, and gives the answer."""
    environment, based_on = checked
    environment_id = submission.register(context, environment)
    similar = novelty.find(context, request, environment.name, owner, based_on)

    def action(session: Session) -> tuple[int, dict[str, Any]]:
        submission.check_search(context, session, request.search, owner, request.executor)
        on = conditions.choose(
            session,
            environment.id,
            environment.manifest,
            request.profile,
            request.hardware_class,
            request.conditions,
            isolated=submission.wants_isolation(session, request, environment, based_on),
        )
        batch_id = batches.create(
            context.db, session, request, owner, environment_id, on, similar, based_on=based_on
        )
        batch = get(session, schema.Batch, batch_id, "batch")
        return 202, batch_body(context, session, batch, is_new=True).wire()

    return action


@router.get("/batches")
def list_(
    context: ContextDep,
    owner: OwnerDep,
    page: PageDep,
    environment: NameQuery = None,
    state: BatchState | None = None,
    search: IdQuery = None,
) -> Page[BatchBody]:
    """Batches, newest first."""
    filters = {"environment": environment, "state": state, "search": search}
    query = select(schema.Batch).where(schema.Batch.owner == owner)
    if environment is not None:
        query = query.join(
            schema.Environment, schema.Environment.id == schema.Batch.environment_id
        ).where((schema.Environment.name == environment) | (schema.Environment.id == environment))
    if state is not None:
        query = query.where(schema.Batch.state == state.value)
    if search is not None:
        query = query.where(schema.Batch.search_id == search)
    last = after(page, filters)
    if last is not None:
        query = query.where(schema.Batch.id < str(last))
    with context.db.read() as session:
        rows = session.scalars(query.order_by(schema.Batch.id.desc()).limit(page.limit + 1)).all()
        shown = batch_bodies(context, session, rows[: page.limit])
        bodies = {body.id: body for body in shown}
        return page_of(rows, page, filters, lambda r: r.id, lambda r: bodies[r.id])


@router.get(
    "/batches/{batch_id}",
    response_model=BatchBody,
    responses={304: {"description": "Nothing changed since the `ETag` that was sent."}},
)
def read(
    batch_id: IdPath,
    context: ContextDep,
    owner: OwnerDep,
    if_none_match: Annotated[str | None, Header()] = None,
) -> Response:
    """A batch. Send the `ETag` back as `If-None-Match` to be told 304 while nothing changed."""
    with context.db.read() as session:
        batch = owned_batch(session, batch_id, owner)
        body = batch_body(context, session, batch)
    tag = _tag(body)
    headers = {"ETag": tag}
    if body.finished_at is None:
        headers["Retry-After"] = "1"
    if if_none_match == tag:
        return Response(status_code=304, headers=headers)
    return JSONResponse(body.wire(), headers=headers)


def _tag(body: BatchBody) -> str:
    # Of the whole body: calls and baselines change it, too, and raise no version.
    return f'"{hashlib.sha256(body.model_dump_json().encode()).hexdigest()[:32]}"'


@router.post("/batches/{batch_id}/cancel")
def cancel(batch_id: IdPath, context: ContextDep, owner: OwnerDep) -> BatchBody:
    """Cancel what has not finished. Repeating it changes nothing."""
    with context.write() as session:
        owned_batch(session, batch_id, owner)
        batches.cancel(context.db, session, batch_id)
    with context.db.read() as session:
        return batch_body(context, session, get(session, schema.Batch, batch_id, "batch"))


@router.get("/batches/{batch_id}/calls")
def calls(
    batch_id: IdPath,
    context: ContextDep,
    owner: OwnerDep,
    page: PageDep,
    state: CallState | None = None,
) -> Page[CallBody]:
    """The ledger: every request to a model for the batch, oldest first."""
    filters = {"batch": batch_id, "state": state}
    table = schema.ModelCall
    query = select(table).where(table.batch_id == batch_id)
    if state is not None:
        query = query.where(table.state == state)
    last = after(page, filters)
    if last is not None:
        query = query.where(table.id > str(last))
    with context.db.read() as session:
        owned_batch(session, batch_id, owner)
        rows = session.scalars(query.order_by(table.id).limit(page.limit + 1)).all()
    return page_of(rows, page, filters, lambda r: r.id, call_body)


@router.get(
    "/batches/{batch_id}/events",
    response_model=Page[EventBody],
    responses={
        200: {"content": {"text/event-stream": {}}},
        204: {"description": "A stream that was followed to its end: do not come back."},
    },
)
async def events(
    batch_id: IdPath,
    request: Request,
    context: ContextDep,
    owner: OwnerDep,
    page: PageDep,
    after_id: Annotated[int, Query(alias="after", ge=0, le=MAX_INTEGER)] = 0,
    last_event_id: Annotated[int | None, Header(ge=0, le=MAX_INTEGER)] = None,
) -> Any:
    """What changed: a page of JSON, or a stream with `Accept: text/event-stream`.

    A stream resumes after `Last-Event-ID` and ends after `batch.finished`.
    """
    start = max(after_id, last_event_id or 0)
    return await answer_events(request, context, owner, of_batch(batch_id), start, page)
