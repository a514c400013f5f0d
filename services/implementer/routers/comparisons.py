"""Two codebases side by side."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from assay.contracts.base import ShortName
from assay.contracts.batch import PairBody
from services.implementer.dependencies import ContextDep, NameQuery, OwnerDep
from services.implementer.views.comparisons import pair_body, setting_of

router = APIRouter(tags=["comparisons"])
_SIDE = "An experiment, a codebase by its hash, or `baseline`."
_WHERE = "Needed where neither side is an experiment."


@router.get("/comparison")
def compare(
    a: Annotated[ShortName, Query(description=_SIDE)],
    b: Annotated[ShortName, Query(description=_SIDE)],
    context: ContextDep,
    owner: OwnerDep,
    environment: Annotated[NameQuery, Query(description=_WHERE)] = None,
    profile: Annotated[NameQuery, Query(description=_WHERE)] = None,
) -> PairBody:
    """Two codebases, on the seeds that both were measured on under the same conditions.

    Only stored results count. To measure, submit both as one batch whose ideas name their
    `codebase`.
    """
    known = None if environment is None else context.environments.get(environment).id
    with context.db.read() as session:
        setting = setting_of(session, owner, (a, b), known, profile)
        return pair_body(session, owner, setting, a, b)
