"""Executors that answer from a function, through the retries that models go through."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from assay.llm import Completion, Gate, ImplementRequest, ModelError, OnTry, RetryPolicy, Usage
from assay.llm.executors import RequestId
from assay.llm.retry import Progress, with_retries
from services.implementer.judging import Judgement, judge

Answer = Callable[[ImplementRequest], Any]


async def _at_once(_seconds: float) -> None:
    """No real waiting between tries."""


@dataclass
class Scripted:
    """Remembers what it was asked. An answer may be a text, a completion, an error to raise, or
    a coroutine that gives one of them."""

    answer: Answer
    name: str = "anthropic:claude-opus-4-5"
    policy: RetryPolicy = field(default_factory=lambda: RetryPolicy(tries=1, sleep=_at_once))
    usage: Usage = field(default_factory=lambda: Usage(1000, 100))
    asked: list[ImplementRequest] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    cancelled: int = 0

    def prompt_version(self, request: ImplementRequest) -> str:
        return "v1"

    def identify(self, request: ImplementRequest) -> RequestId:
        asked = f"{request.idea_text}\0{request.revision}\0{request.patch_log}"
        return RequestId(hashlib.sha256(asked.encode()).hexdigest(), "prefix", 1000)

    async def implement(
        self,
        request: ImplementRequest,
        *,
        on_try: OnTry | None = None,
        gate: Gate | None = None,
    ) -> Completion:
        async def call(progress: Progress) -> Completion:
            return await self._once(request, progress)

        return await with_retries(
            call, self.policy, timeout_s=60, on_try=on_try, gate=gate, tokens=1000
        )

    async def _once(self, request: ImplementRequest, progress: Progress) -> Completion:
        self.asked.append(request)
        self.ids.append(progress.id)
        progress.usage = Usage(1000)
        answer = self.answer(request)
        try:
            if asyncio.iscoroutine(answer):
                answer = await answer
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if isinstance(answer, ModelError):
            raise answer
        await progress.answers()
        if isinstance(answer, Completion):
            return answer
        return Completion(answer, "", "end", self.usage, self.name)

    async def aclose(self) -> None:
        """Nothing to close."""


async def judge_here(
    batch: str,
    answer: str,
    baseline: dict[str, str],
    protected: tuple[str, ...],
    *,
    compiles: bool,
) -> Judgement:
    """Judge an answer in a thread of the test: it is known to be quick."""
    return await asyncio.to_thread(judge, answer, baseline, protected, compiles=compiles)
