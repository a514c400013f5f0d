"""Who may call a model when: windows, minutes, refusals, fairness, warm prompts."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from statistics import fmean
from typing import Any

import pytest

from assay.llm import RateLimited, Usage
from services.implementer.limits import (
    TOO_MANY,
    CallGate,
    Line,
    ModelLimits,
    Warmth,
    limits_for,
)
from tests.support.virtual_clock import run

DONE = Usage(10, 10)


async def call(line: Line, batch: str, seconds: float = 1.0, tokens: int = 10) -> None:
    ticket = await line.enter(batch, tokens)
    try:
        await asyncio.sleep(seconds)
    finally:
        line.leave(ticket, None, DONE)


async def together(*calls: Awaitable[Any]) -> float:
    """Seconds until all of them are done."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    await asyncio.gather(*calls)
    return loop.time() - began


def test_no_more_calls_are_under_way_than_allowed() -> None:
    async def main() -> float:
        line = Line(ModelLimits(concurrent_calls=4))
        return await together(*(call(line, "a") for _ in range(12)))

    assert run(main()) == pytest.approx(3.0)


def test_a_batch_of_few_ideas_is_not_kept_waiting_by_a_crowd() -> None:
    async def main() -> tuple[float, float]:
        line = Line(ModelLimits(concurrent_calls=4))
        async with asyncio.TaskGroup() as tasks:
            crowd = tasks.create_task(together(*(call(line, "crowd") for _ in range(400))))
            await asyncio.sleep(0.5)
            few = await together(*(call(line, "few") for _ in range(4)))
        return few, crowd.result()

    few, crowd = run(main())
    assert few <= 3.0, "it gets half of the slots as they get free"
    assert crowd == pytest.approx(101, abs=1.1)


def test_requests_and_tokens_of_a_minute() -> None:
    async def main(limits: ModelLimits) -> float:
        line = Line(limits)
        return await together(*(call(line, "a", 0.0, tokens=100) for _ in range(120)))

    assert run(main(ModelLimits(concurrent_calls=200, requests_per_minute=60))) == pytest.approx(
        114, abs=1
    )  # a burst of six seconds first
    slow = ModelLimits(concurrent_calls=200, tokens_per_minute=6000)
    assert run(main(slow)) < 60, "what was expected and not used is given back"


def test_tokens_that_came_from_the_cache_do_not_count() -> None:
    async def main(usage: Usage) -> float:
        line = Line(ModelLimits(tokens_per_minute=6000))

        async def one() -> None:
            line.leave(await line.enter("a", 100), None, usage)

        return await together(*(one() for _ in range(120)))

    assert run(main(Usage(100))) == pytest.approx(114, abs=2)
    assert run(main(Usage(0, 0, cached_input_tokens=100))) < 1


class Provider:
    """Refuses what goes beyond so many calls at once, or every so-manieth."""

    def __init__(self, line: Line, most: int = 10_000, every: int = 0) -> None:
        self.line, self.most, self.every = line, most, every
        self.now = self.refused = self.made = self.highest = 0

    async def ask(self, batch: str = "a") -> None:
        while True:
            ticket = await self.line.enter(batch, 10)
            self.made += 1
            full = self.now >= self.most or (self.every and self.made % self.every == 0)
            if full:
                self.refused += 1
                self.line.leave(ticket, RateLimited("slower", retry_after_s=2.0), Usage())
                await asyncio.sleep(2.0)
                continue
            self.now += 1
            self.highest = max(self.highest, self.now)
            await asyncio.sleep(20.0)
            self.now -= 1
            self.line.leave(ticket, None, DONE)
            return


def test_the_window_comes_down_to_what_a_provider_allows() -> None:
    async def main() -> tuple[float, Provider]:
        provider = Provider(Line(ModelLimits(concurrent_calls=64)), most=10)
        return await together(*(provider.ask() for _ in range(300))), provider

    seconds, provider = run(main())
    assert provider.refused < 0.35 * provider.made
    assert seconds < 1.25 * 300 / 10 * 20


def test_single_refusals_do_not_narrow_it() -> None:
    async def main() -> tuple[float, Provider]:
        provider = Provider(Line(ModelLimits(concurrent_calls=64)), every=10)
        return await together(*(provider.ask() for _ in range(640))), provider

    seconds, _ = run(main())
    assert seconds < 1.15 * 640 / 64 * 20


def test_refusals_by_chance_hardly_narrow_it() -> None:
    async def one(line: Line, chance: random.Random) -> None:
        while True:
            ticket = await line.enter("a", 10)
            if chance.random() < 0.1:
                line.leave(ticket, RateLimited("slower", retry_after_s=2.0), Usage())
                await asyncio.sleep(2.0)
                continue
            await asyncio.sleep(20 * chance.lognormvariate(0, 0.5))
            return line.leave(ticket, None, DONE)

    async def main(seed: int) -> float:
        line, chance = Line(ModelLimits(concurrent_calls=64)), random.Random(seed)
        await together(*(one(line, chance) for _ in range(1280)))
        return line.window

    windows = [run(main(seed)) for seed in range(12)]
    assert fmean(windows) > 0.9 * 64, windows


def test_a_refusal_of_many_holds_all_back_for_as_long_as_was_asked() -> None:
    async def main() -> float:
        line = Line(ModelLimits(concurrent_calls=64))
        tickets = [await line.enter("a", 1) for _ in range(TOO_MANY)]
        for ticket in tickets:
            line.leave(ticket, RateLimited("slower", retry_after_s=7.0), Usage())
        return await together(call(line, "a", 0.0))

    assert run(main()) == pytest.approx(7.0)


def test_a_call_that_is_cancelled_in_line_leaves_no_trace() -> None:
    async def main() -> Counter[str]:
        line = Line(ModelLimits(concurrent_calls=1))
        first = asyncio.create_task(call(line, "a", 5.0))
        await asyncio.sleep(0)
        waiting = [asyncio.create_task(call(line, "a")) for _ in range(3)]
        await asyncio.sleep(1)
        for task in waiting[:2]:
            task.cancel()
        await first
        waiting[2].cancel()  # under way since then
        await asyncio.gather(*waiting, return_exceptions=True)
        await call(line, "a")
        return line.under_way

    assert run(main()) == Counter()


def test_a_call_that_is_cancelled_as_it_gets_its_slot_gives_it_back() -> None:
    async def main() -> float:
        line = Line(ModelLimits(concurrent_calls=1))
        ticket = await line.enter("a", 1)
        next_ = asyncio.create_task(line.enter("b", 1))
        await asyncio.sleep(0)
        line.leave(ticket, None, DONE)  # the slot is given to the next one, which is still to wake
        next_.cancel()
        with pytest.raises(asyncio.CancelledError):
            await next_
        assert line.under_way == Counter()
        async with asyncio.timeout(10):
            return await together(call(line, "c"))

    assert run(main()) == pytest.approx(1.0)


def gate(line: Line, warmth: Warmth) -> CallGate:
    return CallGate(line, warmth, "a")


def crowd(
    first: Callable[[CallGate], Awaitable[None]], number: int = 10
) -> Coroutine[Any, Any, list[float]]:
    """When the calls of a crowd got in, if the first of them goes as `first` says."""

    async def main() -> list[float]:
        line, warmth = Line(ModelLimits()), Warmth()
        loop, entered = asyncio.get_running_loop(), []

        async def one(number: int) -> None:
            own = gate(line, warmth)
            await own.enter(1)
            entered.append(loop.time())
            if number == 0:
                await first(own)
            else:
                own.answering()
            own.leave(None, DONE)

        await asyncio.gather(*(one(n) for n in range(number)))
        return entered

    return main()


def test_one_call_goes_ahead_until_its_answer_begins() -> None:
    async def slowly(own: CallGate) -> None:
        await asyncio.sleep(5)
        own.answering()
        await asyncio.sleep(5)

    assert run(crowd(slowly)) == [0.0] + [5.0] * 9


def test_another_goes_ahead_when_the_first_comes_to_nothing() -> None:
    async def fails(_own: CallGate) -> None:
        await asyncio.sleep(3)

    assert run(crowd(fails)) == [0.0] + [3.0] * 9


def test_the_crowd_does_not_wait_for_ever() -> None:
    async def hangs(_own: CallGate) -> None:
        await asyncio.sleep(500)

    assert run(crowd(hangs)) == [0.0] + [20.0] * 9


def test_the_most_exact_name_says_the_limits() -> None:
    exact, model, provider = (ModelLimits(concurrent_calls=n) for n in (1, 2, 3))
    configured = {"openai:a@http://x/v1": exact, "openai:a": model, "openai": provider}
    for name, expected in [
        ("openai:a@http://x/v1", 1),
        ("openai:a@http://y/v1", 2),
        ("openai:b", 3),
        ("anthropic:c", 64),
    ]:
        assert limits_for(name, configured).concurrent_calls == expected
