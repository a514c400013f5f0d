"""Trying again: exponential pauses with jitter, and the provider's own word where it gives one."""

import asyncio
import email.utils
import random
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from assay.domain.ids import new_id
from assay.llm.interface import (
    CHARACTERS_PER_TOKEN,
    BadRequest,
    Completion,
    Gate,
    ModelError,
    OnTry,
    ProviderUnavailable,
    RateLimited,
    Try,
    Usage,
)

_RETRYABLE = frozenset({408, 409, 429})
#: A try that failed after so long without a word was no failure to connect.
READ_AFTER_S = 30.0
_MOST_DOUBLINGS = 40  # longer than any pause; a float ends at a thousand
# Kinds of error events, by the names that providers and their gateways give them.
_LIMITED = frozenset({"rate_limit_error", "rate_limit_exceeded"})
_REFUSED = frozenset(
    {
        "authentication_error",
        "billing_error",
        "invalid_request_error",
        "not_found_error",
        "permission_error",
        "request_too_large",
    }
)
KNOWN_KINDS = _LIMITED | _REFUSED


@dataclass(frozen=True)
class RetryPolicy:
    """How often and how patiently. `rng` and `sleep` can be replaced, so that tests do not wait.

    A provider that asks for more than `max_retry_after_s` is not waited for: the error is
    raised with that time in it, and the caller decides.

    With `patience_s`, a passing trouble is tried again however often, as long as less than that
    has passed on the loop's clock since the first try began; and a provider that asks for a
    longer pause gets it, if it ends within that time.
    """

    tries: int = 5
    first_pause_s: float = 1.0
    longest_pause_s: float = 30.0
    max_retry_after_s: float = 120.0
    rng: random.Random = field(default_factory=random.Random)
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    patience_s: float | None = None

    def pause(self, number: int, error: ModelError, elapsed_s: float = 0.0) -> float | None:
        """Seconds until the next try after try `number` failed; None to give up.

        `elapsed_s` have passed since the first try began.
        """
        left = None if self.patience_s is None else self.patience_s - elapsed_s
        goes_on = number < self.tries if left is None else left > 0
        if not error.retryable or not goes_on:
            return None
        if error.retry_after_s is not None:
            if error.retry_after_s > max(self.max_retry_after_s, left or 0.0):
                return None
            # Samples that were limited together must not all come back in the same instant.
            return error.retry_after_s + self.rng.random()
        doubled = self.first_pause_s * 2.0 ** min(number - 1, _MOST_DOUBLINGS)
        return min(self.longest_pause_s, doubled) * (0.5 + 0.5 * self.rng.random())


class Progress:
    """One try while it lasts: its id, and what the provider's module notes of the answer."""

    def __init__(self, number: int, on_try: OnTry | None) -> None:
        self.id = new_id("call")
        self.usage: Usage | None = None  # what is known so far of tokens; None: nothing
        self.final = False  # `usage` is the provider's last word
        self.characters = 0  # of text and thinking that came
        self.answering = False
        self.on_try_error: Exception | None = None
        self._sent = False
        self._number = number
        self._on_try = on_try
        self._clock = asyncio.get_running_loop().time
        self._began = self._clock()

    async def answers(self) -> None:
        """Note that content came; the first time, it is reported."""
        if self.answering:
            return
        self.answering = True
        try:
            await self._report(self.event("answering"))
        except Exception as error:
            self.on_try_error = error
            raise

    async def starts(self) -> None:
        """Report that the request is about to be sent; a cancellation in the meantime is kept
        until that is done, so that its end is reported after its start."""
        if self._on_try is not None:
            await _to_its_end(self._report(self.event("started")))
        self._sent = True

    async def ends(self, event: Try) -> None:
        """Report how the try ended; a cancellation in the meantime is kept until that is done."""
        if self._on_try is not None:
            await _to_its_end(self._report(event))

    def event(
        self,
        phase: Literal["started", "answering", "returned", "failed", "cancelled"],
        **known: Any,
    ) -> Try:
        """What to report now."""
        return Try(self.id, self._number, phase, seconds=self._clock() - self._began, **known)

    def so_far(self) -> Usage | None:
        """What the try is billed for if it ends here; None where nothing is known."""
        if not self._sent:
            return Usage()
        if self.usage is None or self.final:
            return self.usage
        written = max(self.usage.output_tokens, -(-self.characters // CHARACTERS_PER_TOKEN))
        return replace(self.usage, output_tokens=written, estimated=True)

    async def _report(self, event: Try) -> None:
        if self._on_try is not None:
            await self._on_try(event)


async def with_retries(
    call: Callable[[Progress], Awaitable[Completion]],
    policy: RetryPolicy,
    *,
    timeout_s: float,
    on_try: OnTry | None = None,
    gate: Gate | None = None,
    tokens: int = 0,
) -> Completion:
    """Make `call` until it returns or trying again does not help; `on_try` hears of every try.

    `call` gets a `Progress` of its own for each try, whose id the request must carry. `tokens` is
    about the size of the prompt, for `gate`.
    """
    clock = asyncio.get_running_loop().time
    began: float | None = None
    number = 0
    while True:
        number += 1
        if gate is not None:
            await gate.enter(tokens)
        began = clock() if began is None else began
        progress = Progress(number, on_try)
        outcome = await _one_try(call, progress, timeout_s, gate)
        if isinstance(outcome, Completion):
            done = progress.event("returned", completion=outcome, usage=outcome.usage)
            await progress.ends(done)
            return outcome
        pause = policy.pause(number, outcome, clock() - began)
        failed = progress.event("failed", error=outcome, wait_s=pause, usage=outcome.usage)
        await progress.ends(failed)
        if pause is None:
            raise outcome
        await policy.sleep(pause)


async def _one_try(
    call: Callable[[Progress], Awaitable[Completion]],
    progress: Progress,
    timeout_s: float,
    gate: Gate | None,
) -> Completion | ModelError:
    """One try in the slot it has. A cancellation is reported and goes on."""
    try:
        error: ModelError | None = None
        usage: Usage | None = None
        try:
            await progress.starts()
            outcome = await _in_time(call, progress, timeout_s)
            error = outcome if isinstance(outcome, ModelError) else None
            usage = outcome.usage
            return outcome
        except BaseException:
            usage = progress.so_far()
            raise
        finally:
            if gate is not None:
                gate.leave(error, usage)
    except asyncio.CancelledError as cancelled:
        try:
            await progress.ends(progress.event("cancelled", usage=progress.so_far()))
        except Exception as failure:
            raise cancelled from failure
        raise


async def _in_time(
    call: Callable[[Progress], Awaitable[Completion]], progress: Progress, timeout_s: float
) -> Completion | ModelError:
    limit = asyncio.timeout(timeout_s)
    try:
        async with limit:
            return await call(progress)
    except TimeoutError as late:
        if not limit.expired() or late is progress.on_try_error:
            raise
        error: ModelError = ProviderUnavailable(f"No answer within {timeout_s:g} s.")
    except ModelError as failed:
        if failed is progress.on_try_error:
            raise
        error = failed
    if error.usage is None:
        error.usage = progress.so_far()
    return error


async def _to_its_end(report: Coroutine[Any, Any, None]) -> None:
    """Await `report`; where the caller is cancelled meanwhile, that goes on afterwards."""
    task = asyncio.ensure_future(report)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled from (None if task.cancelled() else task.exception())
    task.result()


def billed(event: Try, tokens: int) -> Usage:
    """What a try that ended is taken to be billed for; its prompt has about so many `tokens`.

    Of some nothing is known. One that was cancelled, or waited for long, has probably been read by
    a provider; else there was no connection that lasted.
    """
    if event.usage is not None:
        return event.usage
    was_read = event.phase == "cancelled" or event.seconds >= READ_AFTER_S
    return Usage(tokens if was_read else 0, estimated=True)


def status_error(
    provider: str, status: int, message: str, headers: Mapping[str, str], key_variable: str
) -> ModelError:
    """The error for an HTTP status, by the provider's documented meaning of it."""
    text = f"{provider} answered {status}: {message[:500]}"
    retry_after = retry_after_s(headers)
    refused = headers.get("x-should-retry") == "false"
    if status == 429:
        limited = RateLimited(text, retry_after_s=retry_after, usage=Usage())
        limited.retryable = not refused
        return limited
    if (status in _RETRYABLE or status >= 500) and not refused:
        return ProviderUnavailable(text, retry_after_s=retry_after, usage=Usage())
    if status in (401, 403):
        text += f" (check the key in {key_variable})"
    return BadRequest(text, usage=Usage())


def event_error(provider: str, kind: str, message: str, usage: Usage | None) -> ModelError:
    """The error for an error event in a stream, by its kind; one nobody knows may pass."""
    text = f"{provider} broke off its answer with {kind or 'an error'}: {message[:500]}"
    if kind in _LIMITED:
        return RateLimited(text, usage=usage)
    if kind in _REFUSED:
        return BadRequest(text, usage=usage)
    return ProviderUnavailable(text, usage=usage)


def retry_after_s(headers: Mapping[str, str], *, now: float | None = None) -> float | None:
    """The pause the headers ask for, in seconds: a number, or a date compared with `now`."""
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            seconds = float(headers.get(name, "")) * unit
        except ValueError:
            continue
        return seconds if 0 <= seconds < float("inf") else None
    date = email.utils.parsedate_tz(headers.get("retry-after", ""))
    if date is None:
        return None
    return max(0.0, email.utils.mktime_tz(date) - (time.time() if now is None else now))
