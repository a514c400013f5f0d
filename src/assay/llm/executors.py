"""Executors: whatever turns an idea into an answer that holds a diff."""

from dataclasses import dataclass
from typing import Protocol

from assay.llm import prompts
from assay.llm.interface import Completion, Model, OnTry, Prompt


@dataclass(frozen=True)
class ImplementRequest:
    """One call for one sample of one idea.

    `revision` counts from 0; from 1 on, `previous_answer` and `patch_log` (the patcher's log or a
    traceback) say what failed. `protected` are globs.
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


class Executor(Protocol):
    """Answers implement requests. The answer is text; patching decides what it is worth."""

    @property
    def name(self) -> str: ...

    @property
    def prompt_version(self) -> str:
        """Changes when the same request would be asked in other words."""
        ...

    async def implement(
        self, request: ImplementRequest, *, on_try: OnTry | None = None
    ) -> Completion:
        """The answer to a request. Raises ModelError."""
        ...

    async def aclose(self) -> None: ...


def implement_prompt(request: ImplementRequest) -> Prompt:
    """The request as a question to a model."""
    block = prompts.environment_block(
        title=request.environment_title,
        problem=request.problem,
        budget=request.budget,
        protected=request.protected,
        files=request.files,
    )
    first = prompts.executor_prompt(block, request.idea_text)
    if request.revision == 0:
        return first
    return prompts.revision_prompt(first, request.previous_answer or "", request.patch_log or "")


class ModelExecutor:
    """An executor that asks a model. `max_tokens` bounds each answer, thinking included."""

    def __init__(
        self,
        model: Model,
        *,
        max_tokens: int = 16_000,
        temperature: float | None = None,
        timeout_s: float = 600.0,
    ) -> None:
        self._model = model
        self._max_tokens = max_tokens
        self._temperature = temperature
        self._timeout_s = timeout_s

    @property
    def name(self) -> str:
        return str(self._model.name)

    @property
    def prompt_version(self) -> str:
        return prompts.version("codebase", "executor_system", "executor_idea", "executor_revision")

    async def implement(
        self, request: ImplementRequest, *, on_try: OnTry | None = None
    ) -> Completion:
        """Ask the model. Raises ModelError."""
        return await self._model.complete(
            implement_prompt(request),
            max_tokens=self._max_tokens,
            temperature=self._temperature,
            timeout_s=self._timeout_s,
            on_try=on_try,
        )

    async def aclose(self) -> None:
        """Close the model's connections."""
        await self._model.aclose()
