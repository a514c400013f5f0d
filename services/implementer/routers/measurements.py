"""Measurements: read, list, retry, logs, artifacts."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response
from fastapi.responses import JSONResponse, PlainTextResponse, StreamingResponse
from sqlalchemy import select
from sqlalchemy.orm import Session

from assay.contracts.base import Page
from assay.contracts.batch import MeasurementBody, SystemSample
from assay.domain.conditions import OWN_OWNER
from assay.domain.errors import Gone, NotFound
from assay.domain.states import MeasurementKind, MeasurementState
from assay.storage import caps, retries, schema
from assay.storage.rows import get
from services.implementer import telemetry
from services.implementer.dependencies import (
    ContextDep,
    IdPath,
    IdQuery,
    NamePath,
    NameQuery,
    OwnerDep,
    PageDep,
)
from services.implementer.owned import owned_experiment
from services.implementer.paging import after, page_of
from services.implementer.telemetry import Stream
from services.implementer.views.measurements import (
    artifact_bodies,
    measurement_bodies,
    measurement_body,
)

router = APIRouter(tags=["measurements"])


@router.get("/measurements")
def list_(
    context: ContextDep,
    owner: OwnerDep,
    page: PageDep,
    experiment: IdQuery = None,
    environment: NameQuery = None,
    state: MeasurementState | None = None,
) -> Page[MeasurementBody]:
    """Measurements, oldest first. Those of the baseline belong to whoever asked first, and
    controls that the scheduler asks for to everybody."""
    filters = {"experiment": experiment, "environment": environment, "state": state}
    table = schema.Measurement
    query = select(table).order_by(table.id)
    last = after(page, filters)
    if last is not None:
        query = query.where(table.id > str(last))
    if state is not None:
        query = query.where(table.state == state.value)
    if environment is not None:
        query = query.join(schema.Environment).where(
            (schema.Environment.name == environment) | (schema.Environment.id == environment)
        )
    with context.db.read() as session:
        if experiment is not None:
            owned_experiment(session, experiment, owner)
            link = schema.ExperimentMeasurement
            query = query.join(link, link.measurement_id == table.id).where(
                link.experiment_id == experiment
            )
        else:
            of_hosts = (table.kind == MeasurementKind.CONTROL.value) & (table.owner == OWN_OWNER)
            query = query.where((table.owner == owner) | of_hosts)
        rows = session.scalars(query.limit(page.limit + 1)).all()
        shown = measurement_bodies(session, rows[: page.limit])
        bodies = {body.id: body for body in shown}
        return page_of(rows, page, filters, lambda r: r.id, lambda r: bodies[r.id])


def visible_measurement(session: Session, measurement_id: str, owner: str) -> schema.Measurement:
    """A measurement that the owner asked for or whose experiment is the owner's, or a baseline's.

    A baseline is shared: its owner is whoever asked first, and why a seed failed concerns all.
    """
    row = get(session, schema.Measurement, measurement_id, "measurement")
    environment = get(session, schema.Environment, row.environment_id, "environment")
    if row.owner == owner or row.codebase_id == environment.codebase:
        return row
    link = schema.ExperimentMeasurement
    mine = session.scalars(
        select(schema.Batch.id)
        .join(schema.Experiment, schema.Experiment.batch_id == schema.Batch.id)
        .join(link, link.experiment_id == schema.Experiment.id)
        .where(link.measurement_id == measurement_id, schema.Batch.owner == owner)
        .limit(1)
    ).first()
    if mine is None:
        raise NotFound(f"measurement {measurement_id!r} was not found")
    return row


@router.get("/measurements/{measurement_id}")
def read(measurement_id: IdPath, context: ContextDep, owner: OwnerDep) -> MeasurementBody:
    """One scored execution of a codebase, with its attempts and provenance."""
    with context.db.read() as session:
        return measurement_body(session, visible_measurement(session, measurement_id, owner))


@router.post(
    "/measurements/{measurement_id}/retry",
    status_code=202,
    response_model=MeasurementBody,
    responses={200: {"description": "It was asked for before.", "model": MeasurementBody}},
)
def retry(measurement_id: IdPath, context: ContextDep, owner: OwnerDep) -> Response:
    """Measure again what failed: the next replicate, which later requests share.

    Repeating it while that waits or runs, or after it succeeded, changes nothing. Experiments that
    the failure ended stay as they are.
    """
    context.check_store()
    spending = caps.of_owner(context.settings.caps, owner)
    with context.write() as session:
        visible_measurement(session, measurement_id, owner)
        found = retries.measurement(context.db, session, measurement_id, owner, spending)
        row = get(session, schema.Measurement, found.id, "measurement")
        body = measurement_body(session, row).wire()
    headers = {"Location": f"/v1/measurements/{found.id}"}
    return JSONResponse(body, 202 if found.is_new else 200, headers)


@router.get("/measurements/{measurement_id}/logs", response_class=PlainTextResponse)
def logs(
    measurement_id: IdPath,
    context: ContextDep,
    owner: OwnerDep,
    stream: Stream = "train",
    offset: Annotated[int, Query(ge=0, le=telemetry.MAX_OFFSET)] = 0,
    limit: Annotated[int, Query(ge=1, le=telemetry.MAX_LOG_PAGE)] = telemetry.MAX_LOG_PAGE,
) -> Response:
    """The log of the newest attempt, from a byte offset on."""
    with context.db.read() as session:
        visible_measurement(session, measurement_id, owner)
        place = telemetry.find_log(session, measurement_id, stream, offset, limit)
    return telemetry.log_response(place.read(context.store))


@router.get("/measurements/{measurement_id}/system")
def system(
    measurement_id: IdPath,
    context: ContextDep,
    owner: OwnerDep,
    max_points: Annotated[int, Query(ge=1, le=20_000)] = 500,
) -> Page[SystemSample]:
    """What the newest attempt used (processor, memory, GPUs) as its worker saw it, thinned."""
    with context.db.read() as session:
        visible_measurement(session, measurement_id, owner)
        points = telemetry.read_system(session, measurement_id, max_points)
    return Page(data=points)


@router.get(
    "/measurements/{measurement_id}/artifacts/{name}",
    response_class=Response,
    responses={200: {"content": {"application/octet-stream": {}}}},
)
def artifact(
    measurement_id: IdPath, name: NamePath, context: ContextDep, owner: OwnerDep
) -> Response:
    """A stored file. It was written by the codebase: treat it as hostile."""
    with context.db.read() as session:
        visible_measurement(session, measurement_id, owner)
        files = {a.name: a for a in artifact_bodies(session, measurement_id)}
        result = session.get(schema.Result, measurement_id)
        stored = session.get(schema.Artifacts, result.attempt_id) if result else None
    if stored is None or name not in files:
        listed = ", ".join(files) or "none"
        raise NotFound(f"measurement {measurement_id} has no artifact {name!r}; it has: {listed}")
    removed_at = files[name].removed_at
    if removed_at is not None:
        raise Gone(
            f"{name} of measurement {measurement_id} was removed on {removed_at:%Y-%m-%d}: it is "
            "large, and only the best of an environment, profile and hardware class are kept "
            "(ASSAY_RETENTION_BEST). `assay experiment confirm` measures its codebase again and "
            "keeps what that leaves"
        )
    key = f"{stored.prefix}/{name}"
    stat = context.store.stat(key)
    if stat is None:
        raise NotFound(
            f"{name} of measurement {measurement_id} is lost: the object store lacks {key}. "
            "Restore it from a backup"
        )
    headers = {
        "Content-Disposition": "attachment",
        "Content-Length": str(stat.size),
        "X-Content-Type-Options": "nosniff",
    }
    data = context.store.stream(key)
    return StreamingResponse(data, media_type="application/octet-stream", headers=headers)
