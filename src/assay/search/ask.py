"""Put a strategy's questions to an ideator, in the ideator's terms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from assay.contracts.batch import MAX_IDEA_BYTES, MAX_THINKING, IdeaRequest
from assay.contracts.environment import EnvironmentBody, ProfileBody, RecipeSpec
from assay.contracts.search import MAX_EPOCH_BYTES, bytes_of
from assay.domain.errors import AssayError
from assay.domain.hashing import derive_seed
from assay.domain.metrics import Direction
from assay.llm.ideation import (
    Baseline,
    CallRecord,
    IdeationRequest,
    Ideator,
    ProposedIdea,
    UnreadableAnswer,
)
from assay.llm.interface import ModelError
from assay.llm.offline.knobs import Knob, Recipe, RecipeEdit
from assay.search.plan import Ask

#: An ideator that came back with too few is asked again, at most so many times per question.
ROUNDS = 3
_PARENTS = 64
_GOALS = {
    Direction.MINIMIZE: "lower is better",
    Direction.MAXIMIZE: "higher is better",
}


def storable(text: str) -> str:
    """The text without what a database cannot keep: NUL characters and lone surrogates."""
    return text.replace("\x00", "\ufffd").encode("utf-8", "replace").decode()


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
    seed: int = 0

    def request(
        self, ask: Ask, count: int, seed: int, baseline: Baseline | None = None
    ) -> IdeationRequest:
        """A question in the ideator's terms."""
        environment = self.environment
        profile = next((p for p in environment.profiles if p.name == self.profile), None)
        return IdeationRequest(
            operator=ask.operator,
            count=count,
            environment_title=environment.title,
            problem=environment.problem,
            metric_name=environment.metric,
            files=self.files,
            seed=seed,
            protected=tuple(environment.protected),
            budget=profile.in_words if profile else "",
            knobs=tuple(
                Knob(k.name, k.file, k.line, k.values, k.title) for k in environment.knobs
            ),
            recipes=tuple(recipe_of(declared) for declared in environment.recipes),
            trajectories=ask.known,
            parents=ask.parents,
            metric_goal=_GOALS[environment.direction],
            profile=_described(profile) if profile else self.profile,
            profile_notes=profile.notes if profile else "",
            rules=environment.rules,
            baseline=baseline,
            sample_seed=derive_seed(self.seed, "sample"),
        )


def _described(profile: ProfileBody) -> str:
    return f"{profile.name}: {profile.description}" if profile.description else profile.name


async def propose(
    ideator: Ideator,
    setting: Setting,
    ask: Ask,
    record: Callable[[int], CallRecord] | None = None,
    *,
    baseline: Baseline | None = None,
    hint: str = "",
) -> list[IdeaRequest]:
    """The ideas an ask is for; fewer only if the ideator has no more.

    An ideator that comes back with too few is asked for the others, in at most `ROUNDS` rounds.
    Ideas larger than a batch takes count as missing. `record` gives the record of a round, and
    `hint` says how to read its answers.

    Raises:
        SearchError: the model failed, or there is not a single idea.
    """
    ideas: list[IdeaRequest] = []
    for round_ in range(ROUNDS):
        missing = ask.count - len(ideas)
        seed = ask.seed if round_ == 0 else derive_seed(ask.seed, "again", round_)
        try:
            request = setting.request(ask, missing, seed, baseline)
            of_round = record(round_) if record is not None else None
            more = await ideator.propose(request, record=of_round)
        except UnreadableAnswer as error:
            if ideas:
                break
            message = f"{error}; {hint}" if hint else str(error)
            raise SearchError(message, code="unreadable_answer") from error
        except ModelError as error:
            raise SearchError(f"{ideator.name}: {error}", code="model_failed") from error
        fitting = [idea for idea in more if len(storable(idea.text).encode()) <= MAX_IDEA_BYTES]
        ideas += [_as_request(idea) for idea in fitting[:missing]]
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
        text=storable(idea.text),
        operator=idea.operator,
        parents=list(idea.parents[:_PARENTS]),
        thinking=storable(idea.thinking)[:MAX_THINKING] or None,
    )
