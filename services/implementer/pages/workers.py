"""The page of the workers: what they have, what runs where, and why something waits."""

from __future__ import annotations

from collections import defaultdict

from fastapi import Request, Response

from services.implementer.dependencies import ContextDep, OwnerDep
from services.implementer.pages.rendering import render
from services.implementer.pages.routing import page_router
from services.implementer.routers import meta
from services.implementer.views.batches import batch_bodies
from services.implementer.views.dashboard import (
    capacity,
    queue_counts,
    running_attempts,
    unfinished_batches,
)
from services.implementer.views.queue import queue_body

router = page_router()
#: Batches whose reasons to wait are looked up.
_MOST_WAITING = 10
#: Of each stage of the queue; `assay queue` shows more.
_MOST_NEXT = 5


@router.get("/workers")
def workers(request: Request, context: ContextDep, owner: OwnerDep) -> Response:
    """Show the workers, their attempts and what batches wait for."""
    listed = meta.list_workers(context).data
    with context.db.read() as session:
        running = defaultdict(list)
        for attempt in running_attempts(session, owner):
            running[attempt.worker].append(attempt)
        unfinished = unfinished_batches(session, owner, _MOST_WAITING)
        waiting = batch_bodies(context, session, unfinished)
        queue, together = queue_counts(session), capacity(session)
        line_up = queue_body(context, session, owner, _MOST_NEXT)
    return render(
        request,
        "workers.html",
        owner=owner,
        workers=listed,
        running=running,
        waiting=waiting,
        queue=queue,
        line_up=line_up,
        capacity=together,
    )
