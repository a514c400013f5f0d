"""The page of a batch, and what can be asked of one."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Request, Response

from assay.analysis.rows import leads, rank
from assay.domain.metrics import Direction
from assay.domain.states import ExperimentState
from assay.storage import environments
from services.implementer.dependencies import (
    MAX_PAGE,
    ContextDep,
    Cursor,
    IdPath,
    OwnerDep,
    PageRequest,
)
from services.implementer.owned import owned_batch
from services.implementer.pages.rendering import render
from services.implementer.pages.routing import page_router, see
from services.implementer.routers import batches as api
from services.implementer.routers import experiments as experiments_api
from services.implementer.views.batches import batch_body
from services.implementer.views.dashboard import confirmed_by

router = page_router()
StateQuery = Annotated[ExperimentState | None, Query()]


@router.get("/batches/{batch_id}")
def batch(
    batch_id: IdPath,
    request: Request,
    context: ContextDep,
    owner: OwnerDep,
    state: StateQuery = None,
    cursor: Cursor = None,
) -> Response:
    """Show a batch and a page of its experiments; best first if all fit one page."""
    with context.db.read() as session:
        row = owned_batch(session, batch_id, owner)
        body = batch_body(context, session, row)
        metric = environments.manifest(session, row.environment_id).metric
        confirms = confirmed_by(session, [batch_id]).get(batch_id)
    page = PageRequest(MAX_PAGE, cursor)
    found = experiments_api.list_(context, owner, page, batch=batch_id, state=state)
    direction = Direction(metric.direction)
    is_whole = cursor is None and found.next_cursor is None
    return render(
        request,
        "batch.html",
        owner=owner,
        batch=body,
        metric=metric,
        confirms=confirms,
        rows=rank(found.data, direction) if is_whole else found.data,
        leads=leads(found.data) if is_whole and state is None else None,
        next_cursor=found.next_cursor,
        chosen=state,
    )


@router.post("/batches/{batch_id}/cancel")
def cancel(batch_id: IdPath, context: ContextDep, owner: OwnerDep) -> Response:
    """Cancel what has not finished."""
    api.cancel(batch_id, context, owner)
    return see(f"/batches/{batch_id}")
