"""Put a strategy's questions to an ideator, in the ideator's terms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from assay.contracts.batch import MAX_THINKING, IdeaRequest
from assay.contracts.environment import EnvironmentBody, RecipeSpec
from assay.contracts.search import MAX_EPOCH_BYTES, bytes_of
from assay.domain.errors import AssayError
from assay.domain.hashing import derive_seed
from assay.llm.ideation import IdeationRequest, Ideator, ProposedIdea
from assay.llm.interface import ModelError, OnTry
from assay.llm.offline.knobs import Knob, Recipe, RecipeEdit
from assay.search.plan import Ask

#: An ideator that came back with too few is asked again, at most so many times per question.
ROUNDS = 3
_PARENTS = 64


class SearchError(AssayError):
    """A search cannot go on. It can be resumed once the cause is gone."""

    code = "search_stopped"


def recipe_of(declared: RecipeSpec) -> Recipe:
    """A recipe of a manifest in the offline ideator's terms."""
    edits = tuple(RecipeEdit(e.file, e.search, e.replace) for e in declared.edits)
    return Recipe(declared.name, declared.title, declared.kind, edits)


@dataclass(frozen=True)
class Setting:
    """What every question of a search has in common."""

    environment: EnvironmentBody
    profile: str
    files: dict[str, str]

    def request(self, ask: Ask, count: int, seed: int) -> IdeationRequest:
        """A question in the ideator's terms."""
        environment = self.environment
        exploiting = ask.operator == "exploit"
        return IdeationRequest(
            operator=ask.operator,
            count=count,
            environment_title=environment.title,
            problem=environment.problem,
            metric_name=environment.metric,
            files=self.files,
            seed=seed,
            protected=tuple(environment.protected),
            budget=self._budget(),
            knobs=tuple(
                Knob(k.name, k.file, k.line, k.values, k.title) for k in environment.knobs
            ),
            recipes=tuple(recipe_of(declared) for declared in environment.recipes),
            trajectories=ask.tried if exploiting else ask.context,
            positives=ask.context if exploiting else (),
        )

    def _budget(self) -> str:
        for profile in self.environment.profiles:
            if profile.name == self.profile:
                given = {k: v for k, v in profile.budget.items() if v is not None}
                return ", ".join(f"{name} {value}" for name, value in given.items())
        return ""


async def propose(
    ideator: Ideator, setting: Setting, ask: Ask, on_try: OnTry | None = None
) -> list[IdeaRequest]:
    """The ideas an ask is for; fewer only if the ideator has no more.

    Raises:
        SearchError: the model failed, or there is not a single idea.
    """
    ideas: list[IdeaRequest] = []
    for round_ in range(ROUNDS):
        missing = ask.count - len(ideas)
        seed = ask.seed if round_ == 0 else derive_seed(ask.seed, "again", round_)
        try:
            more = await ideator.propose(setting.request(ask, missing, seed), on_try=on_try)
        except ModelError as error:
            raise SearchError(f"{ideator.name}: {error}", code="model_failed") from error
        ideas += [_as_request(idea) for idea in more[:missing]]
        if len(ideas) >= ask.count:
            break
    if not ideas:
        raise SearchError(f"{ideator.name} proposed nothing ({ask.operator}); try another model")
    return ideas


def fit_epoch(ideas: Sequence[IdeaRequest]) -> list[IdeaRequest]:
    """The ideas, with `thinking` cut to the same length in all so that one epoch holds them.

    That changes no result: `thinking` is only kept for the record.
    """
    fitted, most = list(ideas), MAX_THINKING
    while most and bytes_of(fitted) > MAX_EPOCH_BYTES:
        most //= 2
        fitted = [
            idea.model_copy(update={"thinking": (idea.thinking or "")[:most] or None})
            for idea in fitted
        ]
    return fitted


def _as_request(idea: ProposedIdea) -> IdeaRequest:
    return IdeaRequest(
        text=idea.text,
        operator=idea.operator,
        parents=list(idea.parents[:_PARENTS]),
        thinking=idea.thinking[:MAX_THINKING] or None,
    )
