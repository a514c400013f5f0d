"""Epochs that measure codebases of earlier experiments on more seeds.

`routers/searches.py` asks before such an epoch is stored. Its ideas name codebases, which run with
the isolation of the search's own models: so they must be codebases that those models made.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy.orm import Session

from assay.contracts.batch import IdeaRequest
from assay.contracts.search import DecidedRemeasure
from assay.domain.errors import InvalidInput
from assay.domain.states import ExperimentState, MeasurementKind
from assay.storage import schema


def check(
    session: Session, search: schema.Search, number: int, ideas: Sequence[IdeaRequest]
) -> None:
    """Refuse codebases in epochs that are not decided to measure them, and any other codebase.

    Raises:
        InvalidInput: `executor_not_none`, an idea names a codebase that the decision does not, or
            names none where all must.
    """
    decided = _decided(session, search, number)
    for place, idea in enumerate(ideas):
        wrong = _wrong(session, search, decided, idea)
        if wrong:
            raise InvalidInput.field(f"/ideas/{place}/codebase", wrong, "executor_not_none")


def _decided(session: Session, search: schema.Search, number: int) -> DecidedRemeasure | None:
    epoch = session.get(schema.Epoch, (search.id, number))
    decision = None if epoch is None else epoch.decision
    again = None if decision is None else decision.get("remeasure")
    return None if again is None else DecidedRemeasure.model_validate(again)


def _wrong(
    session: Session,
    search: schema.Search,
    decided: DecidedRemeasure | None,
    idea: IdeaRequest,
) -> str:
    """What is wrong with the codebase of an idea; empty if nothing is."""
    if decided is None:
        if idea.codebase is None:
            return ""
        return (
            "an epoch holds ideas for its executor, unless it was decided to measure again; "
            "submit codebases as a batch of their own"
        )
    named = idea.parents[0] if len(idea.parents) == 1 else None
    if idea.operator != "remeasure" or named not in decided.experiments:
        listed = ", ".join(decided.experiments)
        return f"this epoch measures {listed} again: name one of them as `parents`, `remeasure`"
    row = session.get(schema.Experiment, named)
    batch = None if row is None else session.get(schema.Batch, row.batch_id)
    if row is None or batch is None or _terms(batch) != _terms_of(search):
        return f"{named} was not made by this search or one with the same models and profile"
    if row.state != ExperimentState.SUCCEEDED.value or row.codebase_id != idea.codebase:
        return f"send the codebase of {named}, which must have a result"
    return ""


def _terms(batch: schema.Batch) -> tuple[str | None, ...]:
    models = (batch.executor, batch.ideator)
    return (batch.owner, batch.environment_id, batch.profile, *models, batch.kind)


def _terms_of(search: schema.Search) -> tuple[str | None, ...]:
    models = (search.executor, search.ideator)
    kind = MeasurementKind.SCORE.value
    return (search.owner, search.environment_id, search.profile, *models, kind)
