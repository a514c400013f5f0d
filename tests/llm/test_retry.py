"""Tries, slots and reports, without a provider."""

import asyncio
import random

import pytest

from assay.llm import (
    BadRequest,
    Completion,
    ModelError,
    ProviderUnavailable,
    RateLimited,
    RetryPolicy,
    Usage,
)
from assay.llm.retry import with_retries
from tests.llm.calls import RecordingGate

DONE = Completion("yes", "", "end", Usage(1, 2), "m")


class Log(RecordingGate):
    """A gate, a ledger and a clock in one: what happened in which order."""

    def __init__(self, raise_at=None):
        super().__init__()
        self.lines = []
        self.tries = []
        self.slept = 0.0
        self._raise_at = raise_at

    async def enter(self, tokens):
        await super().enter(tokens)
        self.lines.append("enter")

    def leave(self, error, usage):
        super().leave(error, usage)
        self.lines.append("leave")

    async def on_try(self, event):
        await asyncio.sleep(0)
        self.lines.append(event.phase)
        self.tries.append(event)
        if event.phase == self._raise_at:
            raise RuntimeError("no")

    async def sleep(self, seconds):
        self.slept += seconds
        self.lines.append("pause")


def run(call, log, *, timeout_s=10.0, **policy):
    """Make the calls on a clock that goes on by what is slept."""

    async def main():
        loop = asyncio.get_running_loop()
        real = loop.time
        loop.time = lambda: real() + log.slept
        rules = RetryPolicy(rng=random.Random(0), sleep=log.sleep, **policy)
        return await with_retries(
            call, rules, timeout_s=timeout_s, on_try=log.on_try, gate=log, tokens=7
        )

    return asyncio.run(main())


def failing(*errors):
    left = list(errors)

    async def call(progress):
        if left:
            raise left.pop(0)
        return DONE

    return call


def test_pauses_hold_no_slot():
    log = Log()
    error = ProviderUnavailable("busy", usage=Usage(3, estimated=True))
    assert run(failing(error), log) == DONE
    assert log.lines == [
        *("enter", "started", "leave", "failed", "pause"),
        *("enter", "started", "leave", "returned"),
    ]
    assert log.entered == [7, 7]
    assert log.left == [(error, Usage(3, estimated=True)), (None, Usage(1, 2))]
    assert [event.usage for event in log.tries if event.usage] == [error.usage, DONE.usage]


@pytest.mark.parametrize("phase", ["started", "answering", "returned", "failed"])
def test_a_slot_is_given_back_though_on_try_raises(phase):
    async def call(progress):
        await progress.answers()
        if phase == "failed":
            raise BadRequest("no")
        return DONE

    log = Log(raise_at=phase)
    with pytest.raises(RuntimeError):
        run(call, log)
    assert (log.lines.count("enter"), log.lines.count("leave")) == (1, 1)
    assert log.tries[-1].phase == phase


@pytest.mark.parametrize("error", [TimeoutError("db"), RateLimited("not the provider's")])
def test_errors_of_on_try_are_not_the_providers(error):
    async def on_try(event):
        if event.phase == "answering":
            raise error

    async def call(progress):
        await progress.answers()
        return DONE

    log = Log()
    log.on_try = on_try
    with pytest.raises(type(error)) as raised:
        run(call, log)
    assert raised.value is error
    assert log.lines == ["enter", "leave"]


def cancelled(call, log, when):
    """Run `call` and cancel it, again and again, once `when` was reported."""

    async def main():
        rules = RetryPolicy(sleep=log.sleep)
        task = asyncio.create_task(
            with_retries(call, rules, timeout_s=10.0, on_try=log.on_try, gate=log)
        )
        while when not in log.lines:
            await asyncio.sleep(0)
        while not task.done():
            task.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError) as raised:
            await task
        return raised.value

    return asyncio.run(main())


async def hang_while_answering(progress):
    progress.usage = Usage(100, 1)
    progress.characters = 9
    await progress.answers()
    await asyncio.Event().wait()


def test_a_cancelled_try_is_reported_to_the_end():
    log = Log()
    cancelled(hang_while_answering, log, "answering")
    assert log.lines == ["enter", "started", "answering", "leave", "cancelled"]
    assert log.tries[-1].usage == Usage(100, 3, estimated=True)
    assert log.left == [(None, Usage(100, 3, estimated=True))]


def test_a_cancellation_wins_over_an_error_of_its_report():
    log = Log(raise_at="cancelled")
    assert isinstance(cancelled(hang_while_answering, log, "answering").__cause__, RuntimeError)


def test_an_outcome_is_reported_though_the_task_is_cancelled_meanwhile():
    log = Log()
    cancelled(failing(), log, "leave")
    assert log.lines == ["enter", "started", "leave", "returned"]


def test_what_was_not_sent_costs_nothing():
    log = Log()
    cancelled(failing(), log, "enter")
    # It had begun to be reported: its end comes after its start, whatever is in between.
    assert log.lines == ["enter", "started", "leave", "cancelled"]
    assert log.tries[-1].usage == Usage()


def test_who_waits_for_a_slot_has_none_to_give_back():
    log = Log()

    async def enter(tokens):
        log.lines.append("waiting")
        await asyncio.Event().wait()

    log.enter = enter
    cancelled(failing(), log, "waiting")
    assert log.lines == ["waiting"]


def test_a_try_that_takes_too_long_has_an_estimate():
    log = Log()
    with pytest.raises(ProviderUnavailable, match=r"within 0\.01 s") as raised:
        run(hang_while_answering, log, timeout_s=0.01, tries=1)
    assert raised.value.usage == Usage(100, 3, estimated=True)


def test_patience_goes_on_for_its_time_whatever_the_tries():
    log = Log()
    errors = [ProviderUnavailable("busy") for _ in range(5000)]
    with pytest.raises(ProviderUnavailable):
        run(failing(*errors), log, tries=2, patience_s=36_000.0, longest_pause_s=30.0)
    # What the tries themselves take, seconds on a busy machine, counts as well.
    assert 35_900 <= log.slept < 36_030
    assert 1200 <= log.tries[-1].number < 2500  # 2.0**1200 would be too much for a float
    assert log.tries[-1].wait_s is None
    assert max(event.wait_s or 0.0 for event in log.tries) <= 30.0


def test_patience_waits_for_a_long_retry_after_that_fits():
    log = Log()
    assert run(failing(RateLimited("", retry_after_s=600.0)), log, patience_s=1000.0) == DONE
    assert 600 <= log.slept <= 601
    log = Log()
    errors = [RateLimited("", retry_after_s=600.0) for _ in range(2)]
    with pytest.raises(RateLimited):
        run(failing(*errors), log, patience_s=1000.0)
    assert 600 <= log.slept <= 601


def test_no_patience_for_what_does_not_pass():
    log = Log()
    with pytest.raises(BadRequest):
        run(failing(BadRequest("no")), log, patience_s=1000.0)
    assert log.slept == 0
    assert RetryPolicy().pause(1, ModelError("no")) is None
