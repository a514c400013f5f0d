"""Reproductions: an experiment that has a result is measured again, to see whether it agrees.

A reproduction is another experiment, in a batch of the kind `control`, on the same codebase, seeds
and conditions. Its measurements are made for it alone: none answers another request, and none
counts in a baseline, a fit, a report or a search. The API's routers call this.
"""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from assay.contracts.batch import IdeaRequest
from assay.domain.errors import Conflict, NotFound
from assay.domain.states import TERMINAL_EXPERIMENT, ExperimentState, MeasurementKind
from assay.storage import batches, caps, conditions, environments, schema
from assay.storage.bases import base_of, needs_sandbox
from assay.storage.database import Database
from assay.storage.retries import NOT_FINISHED, Retry
from assay.storage.rows import get

#: Codes of refusals.
NO_RESULT, NOT_REPRODUCIBLE = "no_result", "not_reproducible"
CONDITIONS_NOT_OFFERED = "conditions_not_offered"
_TERMINAL = {s.value for s in TERMINAL_EXPERIMENT}


def request(db: Database, session: Session, experiment_id: str, *, queue: bool = False) -> Retry:
    """Ask for the measurements of an experiment once more, or find those that were asked for.

    A reproduction that waits or runs is the answer to every later request; after it has ended, the
    next is made. `queue`: make it though no live worker measures under the experiment's
    conditions, so that it waits for one.

    Raises:
        NotFound: the experiment ended without a result.
        Conflict: it has not ended, or its result is not one that search sees; or no live worker
            measures under its conditions, and then it says which facts differ.
    """
    row = get(session, schema.Experiment, experiment_id, "experiment")
    batch = get(session, schema.Batch, row.batch_id, "batch")
    # Requests for the same experiment wait for one another here, as those of retries do.
    idea = session.get_one(schema.Idea, row.idea_id, with_for_update={"key_share": True})
    _check_has_result(row, batch, idea)
    latest = _latest(session, experiment_id)
    if latest is not None and latest.state not in _TERMINAL:
        return Retry(latest.id, is_new=False)
    if not queue:
        _check_offered(session, row, batch, idea)
    made = batches.repeat(
        db,
        session,
        batch,
        idea,
        IdeaRequest(text=idea.text, parents=[row.id]),
        {"baseline_seeds": 0, "novelty": "allow", "again": False},
        kind=MeasurementKind.CONTROL,
        reproduces=row.id,
    )
    return Retry(made, is_new=True)


def _check_has_result(row: schema.Experiment, batch: schema.Batch, idea: schema.Idea) -> None:
    if row.state not in _TERMINAL:
        raise Conflict(f"{row.id} is {row.state}; wait until it has ended", code=NOT_FINISHED)
    if row.state != ExperimentState.SUCCEEDED.value:
        raise NotFound(
            f"{row.id} is {row.state} and has no result to reproduce; "
            f"`assay experiment retry` measures what failed again",
            code=NO_RESULT,
        )
    if batch.kind != MeasurementKind.SCORE.value:
        instead = idea.reproduces or idea.confirms
        raise Conflict(
            f"{row.id} was measured as a {batch.kind}; reproduce {instead or 'its idea'} instead",
            code=NOT_REPRODUCIBLE,
        )


def _check_offered(
    session: Session, row: schema.Experiment, batch: schema.Batch, idea: schema.Idea
) -> None:
    on = conditions.of_batch(session, batch)
    isolated = needs_sandbox(
        session,
        batch.executor,
        batch.ideator,
        [base_of(idea)],
        allow_unisolated=caps.options_of(batch).allow_unisolated,
    )
    differ = conditions.not_offered(
        session,
        batch.environment_id,
        environments.manifest(session, batch.environment_id),
        batch.profile,
        on,
        isolated=isolated,
    )
    if differ is not None:
        raise Conflict(
            f"{row.id} was measured under {on.id or on.hardware_class}, and no live worker is: "
            f"{'; '.join(differ)}. Start one that is, or queue it for one that comes (--queue)",
            code=CONDITIONS_NOT_OFFERED,
        )


def _latest(session: Session, experiment_id: str) -> schema.Experiment | None:
    table = schema.Experiment
    return session.scalars(
        select(table)
        .join(schema.Idea, schema.Idea.id == table.idea_id)
        .where(schema.Idea.reproduces == experiment_id)
        .order_by(table.id.desc())
        .limit(1)
    ).first()
