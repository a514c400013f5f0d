"""Policies without a service: who makes which calls when, and nothing else takes time.

`replay` is what the implement loop's own policies would take if recording, patching, pauses and
limits cost nothing. `repository` is what the paper's released code does: 20 ideas at a time, each
tried up to ten times one after the other, every failure told to the next try.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator
from dataclasses import dataclass, field

from benchmarks.implementer.draws import (
    ANSWER_TOKENS,
    FIRST_TOKEN,
    IDEA_TOKENS,
    MEDIAN_S,
    PREFIX_TOKENS,
    Draws,
)
from services.implementer.loop import REFUSED_ALIKE

SAMPLES, REVISIONS = 10, 2
STAGES = {"staged": (1, 3, 6), "paper": (SAMPLES,)}
REPOSITORY_IDEAS, REPOSITORY_TRIES = 20, 10


@dataclass
class Tally:
    """What a policy did."""

    seconds: float = 0.0
    requests: int = 0
    refused: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    patched: set[int] = field(default_factory=set)


async def replay(draws: Draws, ideas: int, sampling: str, slots: int) -> Tally:
    """The staged or the paper's policy with `slots` requests at once.

    A stage is begun after fewer than `REFUSED_ALIKE` answers: those drawn all fail for one cause.
    """
    run = _Run(draws, asyncio.Semaphore(slots))

    async def idea(number: int) -> None:
        for stage in _stages(STAGES[sampling]):
            if stage.start * (REVISIONS + 1) >= REFUSED_ALIKE:
                return
            if await _first([run.sample(number, sample) for sample in stage]):
                run.tally.patched.add(number)
                return

    return await run.all([idea(number) for number in range(ideas)])


async def repository(draws: Draws, ideas: int) -> Tally:
    """The released code's policy."""
    run = _Run(draws, asyncio.Semaphore(REPOSITORY_IDEAS))
    at_once = asyncio.Semaphore(REPOSITORY_IDEAS)

    async def idea(number: int) -> None:
        async with at_once:
            for attempt in range(REPOSITORY_TRIES):
                key = (number, attempt // (REVISIONS + 1), attempt % (REVISIONS + 1))
                # A request that fails is a try that failed.
                if await run.request(*key, 1, is_revision=attempt > 0) is True:
                    run.tally.patched.add(number)
                    return

    return await run.all([idea(number) for number in range(ideas)])


@dataclass
class _Run:
    draws: Draws
    slots: asyncio.Semaphore
    tally: Tally = field(default_factory=Tally)

    async def all(self, work: list[Awaitable[None]]) -> Tally:
        loop = asyncio.get_running_loop()
        began = loop.time()
        await asyncio.gather(*work)
        self.tally.seconds = loop.time() - began
        return self.tally

    async def sample(self, idea: int, sample: int) -> bool:
        for revision in range(REVISIONS + 1):
            number, is_good = 1, None
            while is_good is None:
                is_revision = revision > 0
                is_good = await self.request(
                    idea, sample, revision, number, is_revision=is_revision
                )
                number += 1
            if is_good:
                return True
        return False

    async def request(
        self, idea: int, sample: int, revision: int, number: int, *, is_revision: bool
    ) -> bool | None:
        """Whether the answer applies; None if the request failed."""
        seconds, fault = self.draws.request(idea, sample, revision, number)
        async with self.slots:
            self.tally.requests += 1
            if fault == "refused":
                self.tally.refused += 1
                await asyncio.sleep(seconds)
                return None
            began = asyncio.get_running_loop().time()
            try:
                await asyncio.sleep(seconds)
            finally:
                self._count(asyncio.get_running_loop().time() - began, seconds, is_revision)
        return None if fault else self.draws.is_good(idea, sample, revision)

    def _count(self, passed: float, seconds: float, is_revision: bool) -> None:
        first = min(seconds, MEDIAN_S * FIRST_TOKEN)
        if passed < first:
            return
        share = (passed - first) / (seconds - first) if seconds > first else 1.0
        self.tally.input_tokens += PREFIX_TOKENS + IDEA_TOKENS + is_revision * ANSWER_TOKENS
        self.tally.output_tokens += round(ANSWER_TOKENS * share)


def _stages(sizes: tuple[int, ...]) -> Iterator[range]:
    start = 0
    for size in sizes:
        yield range(start, start + size)
        start += size


async def _first(samples: list[Awaitable[bool]]) -> bool:
    """Whether one of them comes to something; the others are cancelled."""
    tasks = [asyncio.ensure_future(sample) for sample in samples]
    try:
        for done in asyncio.as_completed(tasks):
            if await done:
                return True
        return False
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
