"""Version, health, workers."""

from __future__ import annotations

from importlib import metadata
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import PlainTextResponse
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from pydantic import Field
from sqlalchemy import select

from assay.contracts.base import Page, Resource
from assay.contracts.worker import WorkerBody
from assay.storage import schema
from services.implementer.dependencies import ContextDep, get_owner, may_scrape
from services.implementer.health import readiness
from services.implementer.views.measurements import worker_bodies

router = APIRouter()


class VersionBody(Resource):
    """The version of the service."""

    version: str


class HealthBody(Resource):
    """Whether the service is there, or ready for work."""

    state: str = Field(description="ok, ready, or degraded: it accepts work that waits.")
    checks: dict[str, str] = Field({}, description="`ok`, or a code and what is wrong.")


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
    checks = readiness(context)
    whole = set(checks.values()) == {"ok"}
    return HealthBody(state="ready" if whole else "degraded", checks=checks)


@router.get("/metrics", tags=["meta"], response_class=PlainTextResponse)
def metrics(request: Request, _: Annotated[None, Depends(may_scrape)]) -> Response:
    """What the service counts, for Prometheus."""
    return Response(request.app.state.metrics.render(), media_type=CONTENT_TYPE_PLAIN_0_0_4)


@router.get("/v1/workers", tags=["workers"], dependencies=[Depends(get_owner)])
def list_workers(context: ContextDep) -> Page[WorkerBody]:
    """The workers, what they have and what they hold."""
    with context.db.read() as session:
        rows = session.scalars(
            select(schema.Worker)
            .where(schema.Worker.incarnation != "")
            .order_by(schema.Worker.name)
        ).all()
        return Page(data=worker_bodies(session, rows))
