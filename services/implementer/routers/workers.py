"""Workers, for their operators: no new work for a while, and hosts that are gone."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Path
from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from assay.contracts.base import Name
from assay.contracts.worker import AdmitRequest, AdmittedBody, CordonRequest, WorkerBody
from assay.domain.errors import Conflict, NotFound
from assay.storage import cordons, schema, workers
from services.implementer.context import Context
from services.implementer.dependencies import ContextDep, get_administrator, get_owner
from services.implementer.views.measurements import worker_body

router = APIRouter(tags=["workers"])
WorkerName = Annotated[Name, Path(description="A worker's id or name.")]
_ADMINISTRATOR = [Depends(get_administrator)]


@router.post("/workers", status_code=201, dependencies=_ADMINISTRATOR)
def admit(request: AdmitRequest, context: ContextDep) -> AdmittedBody:
    """Let a worker of this name in. One that was admitted before gets a new token: its old one is
    worth nothing from now on."""
    _check_not_own(context, request.name)
    token = workers.new_token()
    worker_id = workers.admit(context.db, request.name, token)
    context.tokens.forget()
    context.on_worker()
    return AdmittedBody(id=worker_id, name=request.name, token=token)


@router.get("/workers/{worker}", dependencies=[Depends(get_owner)])
def read(worker: WorkerName, context: ContextDep) -> WorkerBody:
    """A worker, what it has and what it holds."""
    with context.db.read() as session:
        return worker_body(session, session.get_one(schema.Worker, _find(session, worker)))


@router.post("/workers/{worker}/cordon", dependencies=_ADMINISTRATOR)
def cordon(worker: WorkerName, request: CordonRequest, context: ContextDep) -> WorkerBody:
    """Give a worker no new work, for so long or until it is uncordoned. What runs goes on."""
    with context.write() as session:
        row = cordons.cordon(
            context.db, session, _find(session, worker), request.reason, request.seconds
        )
        return worker_body(session, row)


@router.post("/workers/{worker}/uncordon", dependencies=_ADMINISTRATOR)
def uncordon(worker: WorkerName, context: ContextDep) -> WorkerBody:
    """Give a worker work again, and forget what it failed at before."""
    with context.write() as session:
        return worker_body(session, cordons.uncordon(context.db, session, _find(session, worker)))


@router.post("/workers/{worker}/remove", dependencies=_ADMINISTRATOR)
def remove(worker: WorkerName, context: ContextDep) -> WorkerBody:
    """A worker's host is gone for good: what it held is tried again elsewhere, at once.

    Only say so of a host that is really gone: its resources count as free.
    """
    with context.write() as session:
        worker_id = _find(session, worker)
        _check_not_own(context, session.get_one(schema.Worker, worker_id).name)
        return worker_body(session, workers.remove(context.db, session, worker_id))


def _check_not_own(context: Context, name: str) -> None:
    """Refuse to shut out the worker of `assay serve`, which would wait for ever to be let in."""
    if name == context.own_worker:
        raise Conflict(
            f"{name!r} is the worker of this service itself; choose another name",
            code="own_worker",
        )


def _find(session: Session, worker: str) -> str:
    found = session.scalars(
        select(schema.Worker.id).where(
            or_(schema.Worker.id == worker, schema.Worker.name == worker)
        )
    ).first()
    if found is None:
        raise NotFound(f"worker {worker!r} was not found")
    return found
