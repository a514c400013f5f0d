"""Ideas in nearly the words of earlier ones, found before anything is spent on them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from sqlalchemy import select

from assay.contracts.batch import BatchRequest
from assay.domain.similarity import Effort, earlier_alike
from assay.domain.states import ExperimentState, MeasurementKind
from assay.storage import schema
from assay.storage.bases import Base
from assay.storage.batches import Similar
from services.implementer.context import Context

#: So many of an owner's latest ideas for an environment are compared with.
MOST_EARLIER = 5_000
#: So many alike ideas are named.
MOST_NAMED = 5
_UNTRIED = (ExperimentState.CANCELLED.value, ExperimentState.FAILED.value)


def find(
    context: Context,
    request: BatchRequest,
    environment: str,
    owner: str,
    based_on: Sequence[Base | None],
) -> list[list[Similar]]:
    """For each idea of a batch, the earlier ones that are alike: of the owner, for the same
    environment (`environment`: its name) and base, in earlier batches or earlier in this one.

    The same words change something else on another base. `based_on`: for each idea its base.
    Ideas that failed or were cancelled do not count: they may be tried again.
    """
    options = request.options
    found: list[list[Similar]] = [[] for _ in request.ideas]
    if options.novelty == "allow":
        return found
    known = _earlier(context, environment, owner)
    places: dict[str | None, list[int]] = defaultdict(list)
    for place, base in enumerate(based_on):
        places[None if base is None else base.codebase].append(place)
    effort = Effort()
    for codebase, own in places.items():
        earlier = known.get(codebase, [])
        texts = [text for _, text in earlier] + [request.ideas[place].text for place in own]
        for number, alike in earlier_alike(
            texts,
            options.novelty_threshold,
            most=MOST_NAMED,
            first=len(earlier),
            passed_over=options.novelty == "skip",
            effort=effort,
        ):
            place = own[number - len(earlier)]
            if request.ideas[place].codebase is not None:
                continue  # its words are not implemented, so that nothing is done twice
            found[place] = [
                Similar(
                    round(one.similarity, 4),
                    experiment=earlier[one.place][0] if one.place < len(earlier) else None,
                    position=0 if one.place < len(earlier) else own[one.place - len(earlier)],
                )
                for one in alike
            ]
    return found


def _earlier(
    context: Context, environment: str, owner: str
) -> dict[str | None, list[tuple[str, str]]]:
    """Experiments and texts of an owner's ideas for an environment, oldest first, by the codebase
    of their base."""
    with context.db.read() as session:
        rows = session.execute(
            select(schema.Experiment.id, schema.Idea.text, schema.Idea.base_id)
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
    found: dict[str | None, list[tuple[str, str]]] = defaultdict(list)
    for row in reversed(rows):
        found[row.base_id].append((row.id, row.text))
    return found
