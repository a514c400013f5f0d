"""The first page: what was searched and submitted lately, the queue, the workers."""

from __future__ import annotations

from fastapi import Request, Response

from services.implementer.dependencies import ContextDep, OwnerDep
from services.implementer.pages.rendering import render
from services.implementer.pages.routing import page_router
from services.implementer.views.dashboard import overview_body

router = page_router()


@router.get("/")
def overview(request: Request, context: ContextDep, owner: OwnerDep) -> Response:
    """Searches, batches, queue and workers."""
    with context.db.read() as session:
        body = overview_body(session, owner)
    return render(request, "overview.html", owner=owner, body=body)
