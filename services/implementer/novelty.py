"""Ideas in nearly the words of earlier ones, found before anything is spent on them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from assay.contracts.batch import BatchRequest
from assay.domain.similarity import Corpus, Effort, read
from assay.storage.bases import Base
from assay.storage.batches import Similar
from services.implementer.context import Context
from services.implementer.earlier import Earlier

#: So many alike ideas are named.
MOST_NAMED = 5


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
    if request.options.novelty == "allow":
        return [[] for _ in request.ideas]
    bases = [None if base is None else base.codebase for base in based_on]
    # Comparing takes long where a request is made for it, and holds no connection meanwhile.
    with context.db.read() as session:
        earlier = context.earlier.of(session, owner, environment)
    found = _compare(request, bases, earlier)
    named = {one.experiment for alike in found for one in alike if one.experiment is not None}
    if named:
        with context.db.read() as session:
            is_changed = earlier.forget_untried(session, named)
        if is_changed:
            found = _compare(request, bases, earlier)
    return found


def _compare(
    request: BatchRequest, bases: Sequence[str | None], earlier: Earlier
) -> list[list[Similar]]:
    options, effort = request.options, Effort()
    split = read([idea.text for idea in request.ideas], effort)
    #: Ideas of this batch by base, and the position of each.
    corpora: dict[str | None, Corpus] = defaultdict(Corpus)
    positions: dict[str | None, list[int]] = defaultdict(list)
    found: list[list[Similar]] = []
    for position, (idea, base) in enumerate(zip(request.ideas, bases, strict=True)):
        own, words = corpora[base], split[idea.text]
        asked = (idea.text, words, options.novelty_threshold, MOST_NAMED, effort)
        alike = [
            *((one.similarity, name, 0) for name, one in earlier.alike(base, *asked)),
            *((one.similarity, None, positions[base][one.place]) for one in own.alike(*asked)),
        ]
        alike.sort(key=lambda one: -one[0])  # of equal ones, those of earlier batches first
        if not alike or options.novelty != "skip":
            own.add(idea.text, words)
            positions[base].append(position)
        # The words of a codebase are not implemented, so that nothing is done twice.
        named = alike[:MOST_NAMED] if idea.codebase is None else []
        found.append(
            [
                Similar(round(similarity, 4), experiment=experiment, position=at)
                for similarity, experiment, at in named
            ]
        )
    return found
