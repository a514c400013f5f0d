"""Ideas in nearly the words of earlier ones, found before anything is spent on them."""

from __future__ import annotations

from sqlalchemy import select

from assay.contracts.batch import BatchRequest
from assay.domain.similarity import earlier_alike
from assay.domain.states import ExperimentState, MeasurementKind
from assay.storage import schema
from assay.storage.batches import Similar
from services.implementer.context import Context

#: So many of an owner's latest ideas for an environment are compared with.
MOST_EARLIER = 5_000
#: So many alike ideas are named.
MOST_NAMED = 5
_UNTRIED = (ExperimentState.CANCELLED.value, ExperimentState.FAILED.value)


def find(
    context: Context, request: BatchRequest, environment: str, owner: str
) -> list[list[Similar]]:
    """For each idea of a batch, the earlier ones that are alike: of the owner, for the same
    environment (`environment`: its name), in earlier batches or earlier in this one.

    Ideas that failed or were cancelled do not count: they may be tried again.
    """
    options = request.options
    if options.novelty == "allow":
        return [[] for _ in request.ideas]
    earlier = _earlier(context, environment, owner)
    texts = [text for _, text in earlier] + [idea.text for idea in request.ideas]
    found: list[list[Similar]] = []
    for _, alike in earlier_alike(
        texts,
        options.novelty_threshold,
        most=MOST_NAMED,
        first=len(earlier),
        passed_over=options.novelty == "skip",
    ):
        idea = request.ideas[len(found)]
        found.append(
            []  # its words are not implemented, so that nothing is done twice
            if idea.codebase is not None
            else [
                Similar(
                    round(one.similarity, 4),
                    experiment=earlier[one.place][0] if one.place < len(earlier) else None,
                    position=one.place - len(earlier),
                )
                for one in alike
            ]
        )
    return found


def _earlier(context: Context, environment: str, owner: str) -> list[tuple[str, str]]:
    """Experiments and texts of an owner's ideas for an environment, oldest first."""
    with context.db.read() as session:
        rows = session.execute(
            select(schema.Experiment.id, schema.Idea.text)
            .join(schema.Idea, schema.Idea.id == schema.Experiment.idea_id)
            .join(schema.Batch, schema.Batch.id == schema.Experiment.batch_id)
            .join(schema.Environment, schema.Environment.id == schema.Batch.environment_id)
            .where(
                schema.Batch.owner == owner,
                schema.Environment.name == environment,
                schema.Batch.kind != MeasurementKind.CONTROL.value,
                schema.Experiment.state.not_in(_UNTRIED),
            )
            .order_by(schema.Experiment.id.desc())
            .limit(MOST_EARLIER)
        ).all()
    return [(row.id, row.text) for row in reversed(rows)]
