"""Executors: whatever turns an idea into an answer that holds a diff."""

import functools
import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Protocol, Self

from assay.llm import prompts
from assay.llm.interface import Completion, Effort, Gate, Model, OnTry, Prompt

_TEMPLATES = ("codebase", "profile", "executor_system", "executor_idea", "executor_revision")


@dataclass(frozen=True)
class Limits:
    """How a model is asked; what is None is not sent.

    `max_tokens` bounds each answer, thinking included.
    """

    max_tokens: int | None = None
    temperature: float | None = None
    effort: Effort | None = None

    def under(self, asked: Self) -> Self:
        """Return these limits with those that `asked` names in their place."""
        return type(self)(
            self.max_tokens if asked.max_tokens is None else asked.max_tokens,
            self.temperature if asked.temperature is None else asked.temperature,
            self.effort if asked.effort is None else asked.effort,
        )


#: The provider decides on everything.
NO_LIMITS = Limits()
#: An executor's answer is one edit with a short plan.
DEFAULT_LIMITS = Limits(max_tokens=16_000)


@dataclass(frozen=True)
class ImplementRequest:
    """One call for one sample of one idea.

    `revision` counts from 0; from 1 on, `previous_answer` and `patch_log` (the patcher's log, a
    traceback, or what was wrong with the answer) say what failed. `protected` are globs; `rules`,
    `example` and `profile_notes` are the environment's own texts. `profile` names and describes
    the size it runs at, `budget` is in words. `limits` take the place of the executor's own.
    """

    environment_title: str
    files: dict[str, str]
    protected: tuple[str, ...]
    idea_text: str
    sample: int = 0
    revision: int = 0
    previous_answer: str | None = None
    patch_log: str | None = None
    problem: str = ""
    budget: str = ""
    rules: str = ""
    example: str = ""
    profile: str = ""
    profile_notes: str = ""
    limits: Limits = NO_LIMITS


@dataclass(frozen=True)
class RequestId:
    """What a call asks, without asking it.

    `hash` names the question: equal for equal texts, model and limits. `prefix` names the part
    that a provider may cache. `tokens` is about the length of all of it.
    """

    hash: str
    prefix: str = ""
    tokens: int = 0


class Executor(Protocol):
    """Answers implement requests. The answer is text; patching decides what it is worth."""

    @property
    def name(self) -> str: ...

    def prompt_version(self, request: ImplementRequest) -> str:
        """Changes when the same request would be asked in other words."""
        ...

    def identify(self, request: ImplementRequest) -> RequestId:
        """Which question a request is."""
        ...

    async def implement(
        self,
        request: ImplementRequest,
        *,
        on_try: OnTry | None = None,
        gate: Gate | None = None,
    ) -> Completion:
        """The answer to a request. Raises ModelError."""
        ...

    async def aclose(self) -> None: ...


def implement_prompt(request: ImplementRequest) -> Prompt:
    """The request as a question to a model."""
    block = _block(
        request.environment_title,
        request.problem,
        request.budget,
        request.protected,
        request.rules,
        request.example,
        request.profile,
        request.profile_notes,
        tuple(sorted(request.files.items())),
    )
    first = prompts.executor_prompt(block, request.idea_text)
    if request.revision == 0:
        return first
    return prompts.revision_prompt(first, request.previous_answer or "", request.patch_log or "")


@functools.lru_cache(maxsize=32)
def _block(
    title: str,
    problem: str,
    budget: str,
    protected: tuple[str, ...],
    rules: str,
    example: str,
    profile: str,
    profile_notes: str,
    files: tuple[tuple[str, str], ...],
) -> str:
    """The part that is the same for all ideas of a batch: made once, and cached by providers."""
    return prompts.environment_block(
        title=title,
        problem=problem,
        budget=budget,
        protected=protected,
        files=dict(files),
        rules=rules,
        example=example,
        profile=profile,
        profile_notes=profile_notes,
    )


def prompt_version(request: ImplementRequest) -> str:
    """Twelve hex digits of the prompt files, the environment's own among them."""
    own = (request.rules, request.example, request.profile_notes)
    return prompts.version(*_TEMPLATES, more="\0".join(own) if any(own) else "")


def identify(model: str, request: ImplementRequest, limits: Limits) -> RequestId:
    """Which question a request is to a model: its hash is of all that decides an answer, but
    chance. What the request asks for wins over `limits`."""
    prompt = implement_prompt(request)
    limits = limits.under(request.limits)
    messages = [[m.role, m.text] for m in prompt.messages]
    content = [model, prompt.system, prompt.cache_prefix, messages, asdict(limits)]
    prefix = f"{prompt.system}\0{prompt.cache_prefix}"
    return RequestId(
        hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest(),
        hashlib.sha256(prefix.encode()).hexdigest(),
        prompt.tokens,
    )


@dataclass
class ModelExecutor:
    """An executor that asks a model. `timeout_s` bounds each try."""

    model: Model
    limits: Limits = DEFAULT_LIMITS
    timeout_s: float = 600.0

    @property
    def name(self) -> str:
        return str(self.model.name)

    def prompt_version(self, request: ImplementRequest) -> str:
        """See `Executor.prompt_version`."""
        return prompt_version(request)

    def identify(self, request: ImplementRequest) -> RequestId:
        """See `Executor.identify`."""
        return identify(self.name, request, self.limits)

    async def implement(
        self,
        request: ImplementRequest,
        *,
        on_try: OnTry | None = None,
        gate: Gate | None = None,
    ) -> Completion:
        """Ask the model. Raises ModelError."""
        limits = self.limits.under(request.limits)
        return await self.model.complete(
            implement_prompt(request),
            max_tokens=limits.max_tokens,
            temperature=limits.temperature,
            effort=limits.effort,
            timeout_s=self.timeout_s,
            on_try=on_try,
            gate=gate,
        )

    async def aclose(self) -> None:
        """Close the model's connections."""
        await self.model.aclose()
