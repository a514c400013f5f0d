"""An ideator that asks a model."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import partial

from assay.llm import prompts
from assay.llm.executors import NO_LIMITS, Limits
from assay.llm.idea_answers import ReadAnswer, read_answer
from assay.llm.ideas import IdeaText, format_idea, read_idea
from assay.llm.ideation import (
    BUILDING,
    CallRecord,
    IdeationRequest,
    IdeatorCall,
    ProposedIdea,
    Trajectory,
    UnreadableAnswer,
)
from assay.llm.ideator_context import Shown, build, repair
from assay.llm.interface import Completion, Model, Prompt
from assay.llm.together import all_ended
from assay.llm.windows import context_of

_PARENTS = re.compile(r"^[ \t*_]*Parents:[ \t*_]*(.+)$", re.MULTILINE | re.IGNORECASE)
#: Tokens kept for an answer that has no bound: eight ideas, and the thinking before them.
_ANSWER_TOKENS, _ANSWER_SHARE = 24_000, 3 / 8
#: About the tokens of an idea in an answer, with the thinking for it.
_IDEA_TOKENS = 1_500
#: Characters of an idea that another call is told of, so that it proposes others.
_MOST_ALREADY = 300


class ModelIdeator:
    """Asks a model for ideas, in calls of at most `ideas_per_call`.

    `context_tokens` is what prompt and answer of a call may have together; None: what
    `assay.llm.windows` says of the model. `spare_calls` is how many calls more than needed are
    made for ideas that are missing, `at_once` how many are under way at the same time.

    Raises ValueError if the model's window is smaller than `context_tokens`.
    """

    def __init__(
        self,
        model: Model,
        *,
        ideas_per_call: int = 8,
        spare_calls: int = 2,
        at_once: int = 4,
        context_tokens: int | None = None,
        limits: Limits = NO_LIMITS,
        timeout_s: float = 600.0,
    ) -> None:
        self._model = model
        self._per_call = ideas_per_call
        self._spare_calls = spare_calls
        self._at_once = at_once
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
        self, request: IdeationRequest, *, record: CallRecord | None = None
    ) -> list[ProposedIdea]:
        """See `Ideator.propose`.

        The first call is made alone, so that the provider has its prompt in the cache; then up to
        `at_once` together, which are told of the ideas before them and not of each other's. Calls
        and their prompts follow from the request and the answers alone, so that a record can give
        the same answers again.

        An answer with passages that cannot be read is repaired once: a further call shows it to
        the model and asks for the same ideas in the required form.
        """
        question = _Question(request, build(request, self._context, self._answer_tokens()))
        calls = -(-request.count // self._per_call) + self._spare_calls
        number, stop = 0, None
        while number < calls and len(question.ideas) < request.count:
            missing = request.count - len(question.ideas)
            width = min(self._at_once if number else 1, calls - number)
            counts = _split(missing, self._per_call, width)
            asked = [
                self._ask(question, number + place, count, record)
                for place, count in enumerate(counts)
            ]
            answers, before = await all_ended(asked), len(question.ideas)
            for answer, count in zip(answers, counts, strict=True):
                question.ideas += question.new(answer)[:count]
            stop = answers[-1][-1].stop
            number += len(counts)
            if len(question.ideas) == before and any(len(answer) > 1 for answer in answers):
                break  # repaired, and unreadable still
        if stop is not None and not question.ideas:
            raise UnreadableAnswer(self.name, stop)
        return question.ideas

    async def _ask(
        self, question: _Question, number: int, count: int, record: CallRecord | None
    ) -> list[Completion]:
        """The answer to one call, and its repair if it needs one."""
        prompt = _prompt(question.request, question.context, count, question.ideas)
        first = await self._complete(prompt, number, count, record, is_repair=False)
        answer = _read(first)
        if not answer.unread or first.stop != "end" or len(question.new([first])) >= count:
            return [first]
        room = self._context - self._answer_tokens()
        again = repair(prompt, first.text, answer.unread, room)
        return [first, await self._complete(again, number, count, record, is_repair=True)]

    async def _complete(
        self,
        prompt: Prompt,
        number: int,
        asked: int,
        record: CallRecord | None,
        *,
        is_repair: bool,
    ) -> Completion:
        call = IdeatorCall(
            number=number,
            is_repair=is_repair,
            asked=asked,
            prompt=prompt,
            request_hash=self._hash(prompt),
            output_tokens=min(asked * _IDEA_TOKENS, self._answer_tokens()),
        )
        known = await record.answered(call) if record is not None else None
        if known is not None:
            return known
        return await self._model.complete(
            prompt,
            max_tokens=self._limits.max_tokens,
            temperature=self._limits.temperature,
            effort=self._limits.effort,
            timeout_s=self._timeout_s,
            on_try=None if record is None else partial(record.on_try, call),
        )

    def _hash(self, prompt: Prompt) -> str:
        content = [self.name, prompt.content, asdict(self._limits)]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

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


def _split(missing: int, per_call: int, most: int) -> list[int]:
    """How many ideas each of at most `most` calls is asked for: full calls, then the rest."""
    full, rest = divmod(missing, per_call)
    return ([per_call] * full + [rest] * bool(rest))[:most]


@dataclass
class _Question:
    """A request while it is asked: what it is preceded by, and the ideas it has brought."""

    request: IdeationRequest
    context: Shown
    ideas: list[ProposedIdea] = field(default_factory=list)

    def new(self, answers: Sequence[Completion]) -> list[ProposedIdea]:
        """The ideas of an answer and its repair that are not among those had already."""
        known = {idea.text for idea in self.ideas}
        found: list[ProposedIdea] = []
        for read in (read for answer in answers for read in _read(answer).ideas):
            text = format_idea(read.idea)
            if text in known:
                continue
            known.add(text)
            parents = _parents(read.idea, self.request, self.context.shown)
            found.append(ProposedIdea(text, self.request.operator, parents, read.thinking))
        return found


def _parents(
    idea: IdeaText, request: IdeationRequest, shown: Sequence[Trajectory]
) -> tuple[str, ...]:
    """The ids an idea names as its parents, as far as it was shown them; of one that names none,
    the only one there was to build on."""
    if request.operator not in BUILDING:
        return ()
    line = _PARENTS.search(idea.experiment)
    named = set(re.findall(r"[\w\-]+", line[1])) if line else set()
    found = tuple(past.id for past in shown if past.id in named)
    return found if found or len(request.parents) != 1 else (request.parents[0].id,)
