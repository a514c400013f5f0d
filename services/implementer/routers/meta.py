"""Version, health, workers."""

from __future__ import annotations

from importlib import metadata

from fastapi import APIRouter, Depends
from sqlalchemy import select, text

from assay.contracts.base import Page, Resource
from assay.contracts.worker import WorkerBody
from assay.storage import schema
from services.implementer.dependencies import ContextDep, get_owner
from services.implementer.views.measurements import worker_body

router = APIRouter()


class VersionBody(Resource):
    """The version of the service."""

    version: str


class HealthBody(Resource):
    """Whether the service is there, or ready for work."""

    state: str


@router.get("/v1/version", tags=["meta"])
def version() -> VersionBody:
    """The version of the service."""
    return VersionBody(version=metadata.version("assay"))


@router.get("/healthz", tags=["meta"])
def health() -> HealthBody:
    """The process answers."""
    return HealthBody(state="ok")


@router.get("/readyz", tags=["meta"])
def ready(context: ContextDep) -> HealthBody:
    """The database and the object store can be used; 503 with the reason if not."""
    with context.db.read() as session:
        session.execute(text("SELECT 1"))
    context.store.check()
    return HealthBody(state="ready")


@router.get("/v1/workers", tags=["workers"], dependencies=[Depends(get_owner)])
def list_workers(context: ContextDep) -> Page[WorkerBody]:
    """The workers, what they have and what they hold."""
    with context.db.read() as session:
        rows = session.scalars(
            select(schema.Worker)
            .where(schema.Worker.incarnation != "")
            .order_by(schema.Worker.name)
        ).all()
        return Page(data=[worker_body(session, row) for row in rows])
