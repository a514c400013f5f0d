"""What is implemented and measured next."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from assay.contracts.base import MAX_INTEGER
from assay.contracts.queue import QueueBody
from services.implementer.dependencies import MAX_PAGE, ContextDep, OwnerDep
from services.implementer.views.queue import queue_body

router = APIRouter(tags=["queue"])


@router.get("/queue")
def read(
    context: ContextDep,
    owner: OwnerDep,
    limit: Annotated[
        int, Query(ge=1, le=MAX_INTEGER, description=f"Of each stage, at most {MAX_PAGE}.")
    ] = 20,
) -> QueueBody:
    """What is implemented and measured next, and why the rest waits. Of others' work it says how
    much there is, and nothing else."""
    with context.db.snapshot() as session:
        return queue_body(context, session, owner, min(limit, MAX_PAGE))
