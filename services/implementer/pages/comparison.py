"""Two to six experiments side by side, and the curves of experiments."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Query, Request, Response
from fastapi.responses import JSONResponse
from sqlalchemy.orm import Session

from assay.analysis.text import idea_title
from assay.contracts.base import ShortName
from assay.contracts.batch import CurvePoint, ExperimentBody, PairBody
from assay.domain.errors import AssayError
from assay.storage import environments, schema
from assay.storage.rows import get
from services.implementer import telemetry
from services.implementer.dependencies import ContextDep, OwnerDep
from services.implementer.owned import owned_experiment
from services.implementer.pages.rendering import HEADERS, render
from services.implementer.pages.routing import page_router
from services.implementer.problems import BadParameter
from services.implementer.routers.experiments import first_measurement
from services.implementer.views.comparisons import pair_body, setting_of
from services.implementer.views.confirmations import experiment_bodies
from services.implementer.views.verdicts import BaselineStats

router = page_router()
MOST = 6
_POINTS = 500
Chosen = Annotated[list[ShortName], Query(alias="experiment", max_length=50)]


@dataclass(frozen=True)
class Beside:
    """An experiment beside the first one; `why_not` says why they cannot be compared."""

    body: ExperimentBody
    environment: str
    profile: str
    pair: PairBody | None
    why_not: str


@router.get("/compare")
def compare(
    request: Request, context: ContextDep, owner: OwnerDep, experiment: Chosen
) -> Response:
    """Show experiments side by side, each compared with the first."""
    chosen = _distinct(experiment)
    with context.db.read() as session:
        rows = [owned_experiment(session, id_, owner) for id_ in chosen]
        bodies = {body.id: body for body in experiment_bodies(session, rows)}
        beside = [_beside(session, owner, chosen[0], bodies[id_]) for id_ in chosen]
        first = get(session, schema.Batch, rows[0].batch_id, "batch")
        metric = environments.manifest(session, first.environment_id).metric
    return render(request, "compare.html", owner=owner, beside=beside, metric=metric, ids=chosen)


def _distinct(ids: Sequence[str]) -> list[str]:
    chosen = list(dict.fromkeys(ids))
    if not 1 <= len(chosen) <= MOST:
        raise BadParameter.field(
            "experiment", f"name two to {MOST} experiments, not {len(chosen)}", "invalid_parameter"
        )
    return chosen


def _beside(session: Session, owner: str, first: str, body: ExperimentBody) -> Beside:
    batch = get(session, schema.Batch, body.batch, "batch")
    pair, why_not = None, ""
    if body.id != first:
        try:
            setting = setting_of(session, owner, (body.id, first), None, None)
            pair = pair_body(session, owner, setting, body.id, first)
        except AssayError as error:
            why_not = str(error)
    return Beside(body, batch.environment_id, batch.profile, pair, why_not)


@router.get("/compare/curves", response_model=None)
def curves(context: ContextDep, owner: OwnerDep, experiment: Chosen) -> Response:
    """Return the curves of experiments on their first seed, and that of the first one's baseline.

    Of each metric the points in two lists, `x` (step) and `y`; what is not finite is null.
    """
    runs = []
    with context.db.read() as session:
        for number, id_ in enumerate(_distinct(experiment)):
            row = owned_experiment(session, id_, owner)
            measurement = first_measurement(session, row)
            text = get(session, schema.Idea, row.idea_id, "idea").text
            if number == 0 and measurement is not None:
                runs += _baseline(session, row, measurement)
            if measurement is not None:
                points = telemetry.read_curves(session, measurement, _POINTS)
                runs.append({"label": idea_title(text, 60), "id": id_, **_series(points)})
    return JSONResponse({"runs": runs}, headers=HEADERS)


def _baseline(session: Session, row: schema.Experiment, measurement: str) -> list[dict[str, Any]]:
    """The baseline on the same seed, or on another if it has no result there."""
    batch = get(session, schema.Batch, row.batch_id, "batch")
    seed = get(session, schema.Measurement, measurement, "measurement").seed
    scores = BaselineStats.of_environment(session, batch).scores
    if not scores:
        return []
    chosen = seed if seed in scores else min(scores)
    points = telemetry.read_curves(session, scores[chosen].measurement, _POINTS)
    return [{"label": f"baseline, seed {chosen}", "id": None, **_series(points)}]


def _series(points: Sequence[CurvePoint]) -> dict[str, Any]:
    series: dict[str, dict[str, list[float | None]]] = {}
    unfit = 0
    for point in points:
        at = point.seq if point.step is None or not math.isfinite(point.step) else point.step
        for name, value in point.values.items():
            of = series.setdefault(name, {"x": [], "y": []})
            is_finite = math.isfinite(value)
            unfit += not is_finite
            of["x"].append(at)
            of["y"].append(value if is_finite else None)
    return {"series": series, "not_finite": unfit}
