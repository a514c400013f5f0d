"""The pages of environments: problem, baselines, leaderboard."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from fastapi import Query, Request, Response

from assay.analysis.rows import rank
from assay.analysis.text import worn_note
from assay.contracts.base import Name
from assay.contracts.environment import BaselineBody, ProfileBody
from assay.domain.errors import AssayError
from services.implementer.context import Context
from services.implementer.dependencies import ContextDep, NamePath, OwnerDep
from services.implementer.pages.rendering import render
from services.implementer.pages.routing import page_router
from services.implementer.routers import environments as api
from services.implementer.views.confirmations import experiment_bodies
from services.implementer.views.dashboard import leading_experiments

router = page_router()
#: Places of a leaderboard.
PLACES = 25


@dataclass(frozen=True)
class Measured:
    """A profile with its baseline; `why_not` says why that is unknown."""

    profile: ProfileBody
    baseline: BaselineBody | None
    why_not: str = ""

    @property
    def places(self) -> Sequence[float]:
        """Where the baseline's seeds are between its lowest and highest, from 0 to 1."""
        values = self.baseline.values if self.baseline else []
        low, high = min(values, default=0.0), max(values, default=0.0)
        return [(value - low) / (high - low) if high > low else 0.5 for value in values]


@router.get("/environments")
def environments(request: Request, context: ContextDep, owner: OwnerDep) -> Response:
    """Show the environments that this service knows."""
    return render(request, "environments.html", owner=owner, rows=api.list_(context).data)


@router.get("/environments/{name}")
def environment(
    name: NamePath,
    request: Request,
    context: ContextDep,
    owner: OwnerDep,
    profile: Annotated[Name | None, Query()] = None,
) -> Response:
    """Show an environment with the leaderboard of a profile, by default the first."""
    body = api.read(name, context)
    chosen = profile or body.profiles[0].name
    context.environments.get(name).profile(chosen)
    with context.db.read() as session:
        found = leading_experiments(session, owner, body.id, chosen, PLACES)
        rows = rank(experiment_bodies(session, found), body.direction)
    return render(
        request,
        "environment.html",
        owner=owner,
        env=body,
        chosen=chosen,
        rows=rows,
        measured=[_measured(context, name, each) for each in body.profiles],
        worn=worn_note(body),
    )


def _measured(context: Context, name: str, profile: ProfileBody) -> Measured:
    try:
        return Measured(profile, api.baseline(name, context, profile.name, None, None))
    except AssayError as error:  # no live worker tells under which conditions
        return Measured(profile, None, str(error))
