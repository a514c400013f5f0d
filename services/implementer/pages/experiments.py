"""The page of an experiment, and what can be asked of one."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

from fastapi import Request, Response
from sqlalchemy import select
from sqlalchemy.orm import Session

from assay.analysis.text import clean
from assay.contracts.batch import ConfirmRequest, ExperimentBody
from assay.domain.errors import InvalidInput
from assay.domain.states import TERMINAL_EXPERIMENT, ExperimentState
from assay.storage import environments, logs, schema
from assay.storage.rows import get
from services.implementer import telemetry
from services.implementer.context import Context
from services.implementer.dependencies import ContextDep, IdPath, OwnerDep, PageRequest
from services.implementer.owned import owned_experiment
from services.implementer.pages.diffs import FileDiff, file_diffs
from services.implementer.pages.forms import annotation
from services.implementer.pages.rendering import render
from services.implementer.pages.routing import FormDep, page_router, see, see_made
from services.implementer.routers import experiments as api
from services.implementer.routers import measurements as measurements_api
from services.implementer.telemetry import Stream
from services.implementer.views.batches import batch_body
from services.implementer.views.measurements import implementation_body

router = page_router()
#: Of a log, the end that a page holds; the rest is behind a link.
_LOG_BYTES = 48 << 10
_MOST_SEEDS = 64
_ENDED_BADLY = (ExperimentState.FAILED.value, ExperimentState.CANCELLED.value)


@dataclass(frozen=True)
class Log:
    """The end of a log. `start` and `end` are byte offsets; `ended`: no more will come."""

    stream: str
    text: str
    start: int
    end: int
    ended: bool


@dataclass(frozen=True)
class Diff:
    """What the codebase changes; `cut` where it is longer than a page shows."""

    files: list[FileDiff]
    cut: bool


@router.get("/experiments/{experiment_id}")
def experiment(
    experiment_id: IdPath, request: Request, context: ContextDep, owner: OwnerDep
) -> Response:
    """Show everything about an experiment."""
    body = api.read(experiment_id, context, owner)
    with context.db.read() as session:
        batch = get(session, schema.Batch, body.batch, "batch")
        metric = environments.manifest(session, batch.environment_id).metric
        implementation = implementation_body(
            session, get(session, schema.Implementation, body.implementation, "implementation")
        )
        of_batch = batch_body(context, session, batch)
        retried = _states(session, body.retried_as)
    listed = measurements_api.list_(
        context, owner, PageRequest(_MOST_SEEDS, None), experiment=experiment_id
    )
    return render(
        request,
        "experiment.html",
        owner=owner,
        e=body,
        batch=of_batch,
        metric=metric,
        implementation=implementation,
        measurements=listed.data,
        retried=retried,
        # A retry that waits, runs or has succeeded is the answer to every later one.
        may_retry=not retried or retried[-1][1] in _ENDED_BADLY,
        diff=_diff(body, context, owner),
        logs=_logs(context, body, owner),
        key=secrets.token_urlsafe(12),
        address=str(request.base_url).rstrip("/"),
    )


def _states(session: Session, ids: Sequence[str]) -> list[tuple[str, str]]:
    """Return these experiments, in this order, and the state of each."""
    if not ids:
        return []
    table = schema.Experiment
    rows = session.execute(select(table.id, table.state).where(table.id.in_(ids)))
    states = dict(rows.all())
    return [(id_, states[id_]) for id_ in ids]


def _diff(body: ExperimentBody, context: Context, owner: str) -> Diff | None:
    if body.codebase is None:
        return None
    return Diff(*file_diffs(api.diff(body.id, context, owner)))


def _logs(context: Context, body: ExperimentBody, owner: str) -> list[Log]:
    found = []
    with context.db.read() as session:
        row = owned_experiment(session, body.id, owner)
        ended = row.state in {state.value for state in TERMINAL_EXPERIMENT}
        places = [(stream, *_end_of_log(session, row, stream)) for stream in get_args(Stream)]
    for stream, start, place in places:
        data = b"" if place is None else place.read(context.store).data
        text = clean(data.decode("utf-8", "replace"))
        found.append(Log(stream, text, start, start + len(data), ended))
    return found


def _end_of_log(
    session: Session, row: schema.Experiment, stream: Stream
) -> tuple[int, telemetry.LogPlace | None]:
    """Where the end of a log begins, and where its bytes are; None without an attempt."""
    measurement = api.first_measurement(session, row)
    attempt = None if measurement is None else telemetry.latest_attempt(session, measurement)
    if measurement is None or attempt is None:
        return 0, None
    start = max(0, logs.stream_end(session, attempt, stream) - _LOG_BYTES)
    return start, telemetry.find_log(session, measurement, stream, start, _LOG_BYTES)


@router.post("/experiments/{experiment_id}/annotate")
def annotate(
    experiment_id: IdPath, context: ContextDep, owner: OwnerDep, fields: FormDep
) -> Response:
    """Change the tags and the note of an experiment."""
    api.annotate(experiment_id, annotation(fields), context, owner)
    return see(f"/experiments/{experiment_id}#annotation")


@router.post("/experiments/{experiment_id}/cancel")
def cancel(experiment_id: IdPath, context: ContextDep, owner: OwnerDep) -> Response:
    """Cancel an experiment."""
    api.cancel(experiment_id, context, owner)
    return see(f"/experiments/{experiment_id}")


@router.post("/experiments/{experiment_id}/retry")
def retry(experiment_id: IdPath, context: ContextDep, owner: OwnerDep) -> Response:
    """Measure a failed experiment again, and show the new one."""
    return see_made(api.retry(experiment_id, context, owner), "experiments")


@router.post("/experiments/{experiment_id}/reproduce")
def reproduce(experiment_id: IdPath, context: ContextDep, owner: OwnerDep) -> Response:
    """Measure a result again as it was, and show the new experiment."""
    return see_made(api.reproduce(experiment_id, context, owner), "experiments")


@router.post("/experiments/{experiment_id}/confirm")
def confirm(
    experiment_id: IdPath, context: ContextDep, owner: OwnerDep, fields: FormDep
) -> Response:
    """Measure a result again on fresh seeds, and show the batch that does."""
    seeds = fields.get("seeds", "")
    if not seeds.isdecimal() or len(seeds) > 2 or not 1 <= int(seeds) <= _MOST_SEEDS:
        raise InvalidInput.field(
            "/seeds", f"must be a number from 1 to {_MOST_SEEDS}", "invalid_parameter"
        )
    wanted = ConfirmRequest(seeds=int(seeds))
    key = fields.get("key") or None
    return see_made(api.confirm(experiment_id, wanted, context, owner, key), "batches")
