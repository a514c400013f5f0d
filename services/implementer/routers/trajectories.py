"""The experiments of a batch as flat records, for people and programs outside of Assay."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from sqlalchemy import select

from assay.contracts.base import Page
from assay.contracts.trajectory import TrajectoryBody
from assay.domain.states import MeasurementKind
from assay.storage import schema
from assay.storage.rows import get
from services.implementer.dependencies import ContextDep, IdPath, OwnerDep, PageDep, PageRequest
from services.implementer.owned import owned_batch
from services.implementer.paging import after, page_within, position_of
from services.implementer.problems import BadParameter
from services.implementer.views.trajectories import trajectory_bodies, with_diffs

router = APIRouter(tags=["batches"])
#: Records of a page together, at most; the first one may be larger.
MAX_BYTES = 16 << 20
#: Records that are made at once. A record may hold an idea, its thinking, a diff and a curve.
MAX_RECORDS = 50


@router.get("/batches/{batch_id}/trajectories")
def trajectories(
    batch_id: IdPath,
    context: ContextDep,
    owner: OwnerDep,
    page: PageDep,
    curves: Annotated[bool, Query(description="With the training curve of each.")] = False,
    max_points: Annotated[
        int, Query(ge=1, le=20_000, description="Of a curve, thinned evenly.")
    ] = 500,
    confirmations: Annotated[
        bool, Query(description="Also if the batch confirms results: see docs/export.md.")
    ] = False,
) -> Page[TrajectoryBody]:
    """The experiments of a batch as flat records, in the order of their ideas.

    Each has its idea, diff, result, verdict and cost. A page may end before the limit. Results on
    the sealed split are for people, never for a search, and given with `confirmations` alone.
    """
    filters = {"batch": batch_id, "curves": curves, "max_points": max_points}
    last = after(page, filters)
    table = schema.Experiment
    query = select(table).where(table.batch_id == batch_id).order_by(table.position)
    if last is not None:
        query = query.where(table.position > position_of(last))
    page = PageRequest(min(page.limit, MAX_RECORDS), page.cursor)
    with context.db.read() as session:
        batch = owned_batch(session, batch_id, owner)
        if batch.kind == MeasurementKind.CONFIRM.value and not confirmations:
            raise BadParameter.field(
                "confirmations",
                f"{batch_id} confirms results, some of them on the sealed split, which no search "
                "may learn from; set `confirmations` to true to read it",
                "invalid_parameter",
            )
        rows = session.scalars(query.limit(page.limit + 1)).all()
        environment = get(session, schema.Environment, batch.environment_id, "environment")
        records = trajectory_bodies(
            session, batch, rows, curve_points=max_points if curves else None
        )
    bodies = with_diffs(context.store, environment, records)
    return page_within(
        bodies,
        page,
        filters,
        lambda record: record.position,
        lambda record: len(record.model_dump_json()),
        MAX_BYTES,
    )
