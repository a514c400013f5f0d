"""An ideator that asks a model."""

import re
from collections.abc import Sequence

from assay.llm import prompts
from assay.llm.executors import NO_LIMITS, Limits
from assay.llm.idea_answers import ReadAnswer, read_answer
from assay.llm.ideas import IdeaText, format_idea, read_idea
from assay.llm.ideation import IdeationRequest, ProposedIdea, Trajectory, UnreadableAnswer
from assay.llm.ideator_context import Shown, build, repair
from assay.llm.interface import Completion, Model, OnTry, Prompt
from assay.llm.windows import context_of

_PARENTS = re.compile(r"^[ \t*_]*Parents:[ \t*_]*(.+)$", re.MULTILINE | re.IGNORECASE)
#: Tokens kept for an answer that has no bound: eight ideas, and the thinking before them.
_ANSWER_TOKENS, _ANSWER_SHARE = 24_000, 3 / 8
#: Characters of an idea that another call is told of, so that it proposes others.
_MOST_ALREADY = 300


class ModelIdeator:
    """Asks a model for ideas, in calls of at most `ideas_per_call`.

    `context_tokens` is what prompt and answer of a call may have together; None: what
    `assay.llm.windows` says of the model. `spare_calls` is how many calls more than needed are
    made for ideas that are missing.

    Raises ValueError if the model's window is smaller than `context_tokens`.
    """

    def __init__(
        self,
        model: Model,
        *,
        ideas_per_call: int = 8,
        spare_calls: int = 2,
        context_tokens: int | None = None,
        limits: Limits = NO_LIMITS,
        timeout_s: float = 600.0,
    ) -> None:
        self._model = model
        self._per_call = ideas_per_call
        self._spare_calls = spare_calls
        self._context = context_of(model.name, context_tokens)
        self._limits = limits
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
        """See `Ideator.propose`.

        An answer with passages that cannot be read is repaired once: a further call shows it to
        the model and asks for the same ideas in the required form.
        """
        context = build(request, self._context, self._answer_tokens())
        shown = context.shown
        ideas: list[ProposedIdea] = []
        calls = -(-request.count // self._per_call) + self._spare_calls
        for _ in range(calls):
            missing = min(self._per_call, request.count - len(ideas))
            if missing <= 0:
                break
            prompt = _prompt(request, context, missing, ideas)
            completion = await self._complete(prompt, on_try)
            answer = _read(completion)
            found = _new_ideas(answer, request, shown, ideas)
            if answer.unread and completion.stop == "end" and len(found) < missing:
                room = self._context - self._answer_tokens()
                again = repair(prompt, completion.text, answer.unread, room)
                repaired = _read(await self._complete(again, on_try))
                found += _new_ideas(repaired, request, shown, [*ideas, *found])
                if not found:
                    break
            ideas += found[:missing]
        if not ideas and request.count > 0:
            raise UnreadableAnswer(self.name, completion.stop)
        return ideas

    async def _complete(self, prompt: Prompt, on_try: OnTry | None) -> Completion:
        return await self._model.complete(
            prompt,
            max_tokens=self._limits.max_tokens,
            temperature=self._limits.temperature,
            effort=self._limits.effort,
            timeout_s=self._timeout_s,
            on_try=on_try,
        )

    async def aclose(self) -> None:
        """Close the model's connections."""
        await self._model.aclose()

    def _answer_tokens(self) -> int:
        unbounded = min(_ANSWER_TOKENS, int(_ANSWER_SHARE * self._context))
        return self._limits.max_tokens or unbounded


def _prompt(
    request: IdeationRequest, context: Shown, count: int, ideas: Sequence[ProposedIdea]
) -> Prompt:
    experiments = [read_idea(idea.text).experiment for idea in ideas]
    goal = f" ({request.metric_goal})" if request.metric_goal else ""
    return prompts.ideator_prompt(
        request.operator if context.log else "seed",
        context.block,
        count=count,
        metric=f"{request.metric_name}{goal}",
        log=context.log,
        already=[experiment[:_MOST_ALREADY] for experiment in experiments],
    )


def _read(completion: Completion) -> ReadAnswer:
    return read_answer(completion.text, truncated=completion.stop == "truncated")


def _new_ideas(
    answer: ReadAnswer,
    request: IdeationRequest,
    shown: Sequence[Trajectory],
    ideas: Sequence[ProposedIdea],
) -> list[ProposedIdea]:
    """The ideas of an answer that are not among those had already."""
    known = {idea.text for idea in ideas}
    found: list[ProposedIdea] = []
    for read in answer.ideas:
        text = format_idea(read.idea)
        if text in known:
            continue
        known.add(text)
        parents = _parents(read.idea, shown) if request.operator == "exploit" else ()
        found.append(ProposedIdea(text, request.operator, parents, read.thinking))
    return found


def _parents(idea: IdeaText, shown: Sequence[Trajectory]) -> tuple[str, ...]:
    """The ids an idea names as its parents, as far as it was shown them."""
    line = _PARENTS.search(idea.experiment)
    named = set(re.findall(r"[\w\-]+", line[1])) if line else set()
    return tuple(past.id for past in shown if past.id in named)
