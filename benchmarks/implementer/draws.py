"""What calls come to, drawn beforehand: the same for every policy that makes them.

An answer's worth hangs on the idea, the sample and the revision; a request's latency and faults
on the number of its try as well. Nothing hangs on when a call is made, or on what else is.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from dataclasses import dataclass
from typing import Literal

from assay.domain.ids import new_id
from assay.llm import (
    Completion,
    Gate,
    ImplementRequest,
    OnTry,
    ProviderUnavailable,
    RateLimited,
    RetryPolicy,
    Usage,
)
from assay.llm.executors import RequestId
from assay.llm.retry import Progress, with_retries

MODEL = "anthropic:claude-opus-4-5"
MEDIAN_S, SIGMA = 20.0, 0.5
RATE_LIMITED, DROPPED = 0.10, 0.02
#: Share of ideas, and of their answers that are malformed: 20 % of all answers.
HARDNESS = ((0.80, 0.10), (0.16, 0.50), (0.04, 1.00))
#: A refusal comes at once; an answer begins after this share of its time.
REFUSAL_S, FIRST_TOKEN = 0.3, 0.1
RETRY_AFTER_S = 1.0
PREFIX_TOKENS, IDEA_TOKENS, ANSWER_TOKENS = 12_000, 500, 1_500
Fault = Literal["refused", "dropped"] | None


@dataclass(frozen=True)
class Draws:
    """Everything that chance decides. `faults`: whether requests fail at all."""

    seed: int
    faults: bool = True

    def is_good(self, idea: int, sample: int, revision: int) -> bool:
        """Whether an answer's diff applies."""
        kind, hardness = self._rng("idea", idea).random(), 1.0
        for share, malformed in HARDNESS:
            if kind < share:
                hardness = malformed
                break
            kind -= share
        return self._rng("answer", idea, sample, revision).random() >= hardness

    def request(self, idea: int, sample: int, revision: int, number: int) -> tuple[float, Fault]:
        """Seconds of a request, and how it fails, if it does."""
        rng = self._rng("request", idea, sample, revision, number)
        seconds = MEDIAN_S * rng.lognormvariate(0.0, SIGMA)
        kind = rng.random() if self.faults else 1.0
        if kind < RATE_LIMITED:
            return REFUSAL_S, "refused"
        if kind < RATE_LIMITED + DROPPED:
            return seconds * rng.random(), "dropped"
        return seconds, None

    def _rng(self, *what: str | int) -> random.Random:
        digest = hashlib.sha256(repr((self.seed, *what)).encode()).digest()
        return random.Random(digest)


def idea_text(number: int) -> str:
    """An idea, by its number."""
    return f"[Experiment] Idea {number}: take other steps.\n[Code Changes] Set STEP.\n[End]"


def idea_number(text: str) -> int:
    """The number of an idea."""
    return int(text.partition("Idea ")[2].partition(":")[0])


def answer_text(idea: int, *, good: bool) -> str:
    """A diff for the environment `toy`: one that applies, or one whose context is invented."""
    old = "STEP = 0.6" if good else "STEP = 0.06  # as tuned"
    return (
        f"Take other steps.\n\n```diff\n--- a/search.py\n+++ b/search.py\n@@ -12 +12 @@\n-{old}\n"
        f"+STEP = {0.6 + (idea + 1) / 1000:.3f}\n```\n"
    )


class DrawnExecutor:
    """Answers as drawn, through the retries, the limits and the ledger of the real one.

    Like a provider, it keeps the prefix of a prompt in a cache once it has read it.
    """

    name = MODEL

    def __init__(self, draws: Draws, policy: RetryPolicy) -> None:
        self._draws = draws
        self._policy = policy
        self._is_cached = False
        self.requests = 0

    def prompt_version(self, request: ImplementRequest) -> str:
        """It has no prompt."""
        return "drawn"

    def identify(self, request: ImplementRequest) -> RequestId:
        """See `Executor.identify`."""
        number = idea_number(request.idea_text)
        asked = f"{number}-{request.sample}-{request.revision}"
        return RequestId(
            hashlib.sha256(asked.encode()).hexdigest(), "prefix", PREFIX_TOKENS + IDEA_TOKENS
        )

    async def implement(
        self,
        request: ImplementRequest,
        *,
        on_try: OnTry | None = None,
        gate: Gate | None = None,
    ) -> Completion:
        """The drawn answer, after the drawn time. Raises ModelError."""
        number = 0

        async def call(progress: Progress) -> Completion:
            nonlocal number
            number += 1
            return await self._once(request, number, progress)

        tokens = PREFIX_TOKENS + IDEA_TOKENS
        return await with_retries(
            call, self._policy, timeout_s=600, on_try=on_try, gate=gate, tokens=tokens
        )

    async def _once(
        self, request: ImplementRequest, number: int, progress: Progress
    ) -> Completion:
        self.requests += 1
        idea = idea_number(request.idea_text)
        key = (idea, request.sample, request.revision)
        seconds, fault = self._draws.request(*key, number)
        if fault == "refused":
            await asyncio.sleep(seconds)
            raise RateLimited("slower", retry_after_s=RETRY_AFTER_S, usage=Usage())
        first = min(seconds, MEDIAN_S * FIRST_TOKEN)
        await asyncio.sleep(first)
        progress.usage = self._read(request)
        await progress.answers()
        await asyncio.sleep(seconds - first)
        if fault == "dropped":
            raise ProviderUnavailable("the connection was lost", usage=progress.so_far())
        text = answer_text(idea, good=self._draws.is_good(*key))
        read = progress.usage
        usage = Usage(
            read.input_tokens, ANSWER_TOKENS, read.cached_input_tokens, read.cache_write_tokens
        )
        return Completion(text, "", "end", usage, MODEL, new_id("req"))

    def _read(self, request: ImplementRequest) -> Usage:
        own = IDEA_TOKENS + (ANSWER_TOKENS if request.revision else 0)
        was_cached, self._is_cached = self._is_cached, True
        if was_cached:
            return Usage(own, cached_input_tokens=PREFIX_TOKENS)
        return Usage(own, cache_write_tokens=PREFIX_TOKENS)

    async def aclose(self) -> None:
        """Nothing to close."""
