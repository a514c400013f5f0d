"""An ideator that asks a model."""

import random
import re
from collections.abc import Sequence

from assay.llm import prompts
from assay.llm.ideas import IdeaText, format_idea, parse_ideas
from assay.llm.ideation import IdeationRequest, ProposedIdea, Trajectory
from assay.llm.interface import CHARACTERS_PER_TOKEN, Completion, Model, ModelError, OnTry, Prompt

_PARENTS = re.compile(r"^[ \t*_]*Parents:[ \t*_]*(.+)$", re.MULTILINE | re.IGNORECASE)
_MAX_DIFF = 4_000  # characters of a diff shown with a positive trajectory


class ModelIdeator:
    """Asks a model for ideas, in calls of at most `ideas_per_call`.

    `context_tokens` bounds the trajectories shown (four characters are taken for a token);
    `spare_calls` is how many calls more than needed are made for ideas that are missing.
    """

    def __init__(
        self,
        model: Model,
        *,
        ideas_per_call: int = 8,
        spare_calls: int = 2,
        context_tokens: int = 60_000,
        max_tokens: int = 24_000,
        temperature: float | None = None,
        timeout_s: float = 600.0,
    ) -> None:
        self._model = model
        self._per_call = ideas_per_call
        self._spare_calls = spare_calls
        self._context_characters = context_tokens * CHARACTERS_PER_TOKEN
        self._max_tokens = max_tokens
        self._temperature = temperature
        self._timeout_s = timeout_s

    @property
    def name(self) -> str:
        return str(self._model.name)

    @property
    def prompt_version(self) -> str:
        return prompts.version(*(name for name in prompts.NAMES if "executor" not in name))

    async def propose(
        self, request: IdeationRequest, *, on_try: OnTry | None = None
    ) -> list[ProposedIdea]:
        """See `Ideator.propose`. Raises ModelError also when no answer holds an idea."""
        shown = self._shown(request)
        operator = request.operator if shown else "seed"
        text = "\n\n".join(_describe(past, with_diff=operator == "exploit") for past in shown)
        trajectories = prompts.fenced("EXPERIMENTS", text) if shown else ""
        ideas: list[ProposedIdea] = []
        calls = -(-request.count // self._per_call) + self._spare_calls
        for _ in range(calls):
            missing = min(self._per_call, request.count - len(ideas))
            if missing <= 0:
                break
            prompt = _prompt(request, operator, missing, trajectories, ideas)
            completion = await self._model.complete(
                prompt,
                max_tokens=self._max_tokens,
                temperature=self._temperature,
                timeout_s=self._timeout_s,
                on_try=on_try,
            )
            ideas += _new_ideas(completion, request, shown, ideas)[:missing]
        if not ideas and request.count > 0:
            raise ModelError(
                f"{self.name} was asked {calls} times and wrote no idea in the form "
                "[Experiment] … [Code Changes] … [End].",
                retryable=True,
            )
        return ideas

    async def aclose(self) -> None:
        """Close the model's connections."""
        await self._model.aclose()

    def _shown(self, request: IdeationRequest) -> list[Trajectory]:
        """Which trajectories the model sees: the best positives, or a random sample of all."""
        if request.operator == "seed":
            return []
        if request.operator == "exploit":
            pool = sorted(request.positives, key=lambda t: (-t.reward, t.id))
            return self._fitting(pool, with_diff=True)
        pool = sorted(request.trajectories, key=lambda t: t.id)
        random.Random(request.seed).shuffle(pool)
        chosen = self._fitting(pool, with_diff=False)
        return sorted(chosen, key=lambda t: (t.epoch, t.position, t.id))

    def _fitting(self, pool: list[Trajectory], *, with_diff: bool) -> list[Trajectory]:
        """As many as fit into the context, in the order given (SUBSAMPLETOCONTEXT)."""
        chosen: list[Trajectory] = []
        left = self._context_characters
        for past in pool:
            left -= len(_describe(past, with_diff=with_diff)) + 2
            if left < 0:
                break
            chosen.append(past)
        return chosen


def _prompt(
    request: IdeationRequest,
    operator: str,
    count: int,
    trajectories: str,
    ideas: Sequence[ProposedIdea],
) -> Prompt:
    block = prompts.environment_block(
        title=request.environment_title,
        problem=request.problem,
        budget=request.budget,
        protected=request.protected,
        files=request.files,
    )
    experiments = [parse_ideas(idea.text)[0].experiment for idea in ideas]
    return prompts.ideator_prompt(
        operator,
        block,
        count=count,
        metric=request.metric_name,
        trajectories=trajectories,
        already=experiments,
    )


def _describe(past: Trajectory, *, with_diff: bool) -> str:
    metric = "no valid result" if past.metric is None else f"metric {past.metric:.6g}"
    result = f"{metric}, reward {past.reward:.6g}"
    lines = [f"--- id {past.id} (epoch {past.epoch}): {past.state}, {result}"]
    if past.failure:
        lines.append(f"Failure: {past.failure[:1000]}")
    lines.append(past.idea_text.strip())
    if with_diff and past.diff:
        lines.append(f"Diff that was executed:\n{past.diff[:_MAX_DIFF]}")
    return "\n".join(lines)


def _new_ideas(
    completion: Completion,
    request: IdeationRequest,
    shown: Sequence[Trajectory],
    ideas: Sequence[ProposedIdea],
) -> list[ProposedIdea]:
    """The ideas of an answer that are not among those had already."""
    known = {idea.text for idea in ideas}
    found: list[ProposedIdea] = []
    for idea in parse_ideas(completion.text, truncated=completion.stop == "truncated"):
        text = format_idea(idea)
        if text in known:
            continue
        known.add(text)
        parents = _parents(idea, shown) if request.operator == "exploit" else ()
        found.append(ProposedIdea(text, request.operator, parents, completion.thinking))
    return found


def _parents(idea: IdeaText, shown: Sequence[Trajectory]) -> tuple[str, ...]:
    """The ids an idea names as its parents, as far as it was shown them."""
    line = _PARENTS.search(idea.experiment)
    named = set(re.findall(r"[\w\-]+", line[1])) if line else set()
    return tuple(past.id for past in shown if past.id in named)
