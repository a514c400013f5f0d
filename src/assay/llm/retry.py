"""Trying again: exponential pauses with jitter, and the provider's own word where it gives one."""

import asyncio
import email.utils
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from assay.llm.interface import (
    BadRequest,
    Completion,
    ModelError,
    OnTry,
    ProviderUnavailable,
    RateLimited,
    Try,
)

_RETRYABLE = frozenset({408, 409, 429})


@dataclass(frozen=True)
class RetryPolicy:
    """How often and how patiently. `rng` and `sleep` can be replaced, so that tests do not wait.

    A provider that asks for more than `max_retry_after_s` is not waited for: the error is
    raised with that time in it, and the caller decides.
    """

    tries: int = 5
    first_pause_s: float = 1.0
    longest_pause_s: float = 30.0
    max_retry_after_s: float = 120.0
    rng: random.Random = field(default_factory=random.Random)
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep

    def pause(self, number: int, error: ModelError) -> float | None:
        """Seconds until the next try after try `number` failed; None to give up."""
        if not error.retryable or number >= self.tries:
            return None
        if error.retry_after_s is not None:
            if error.retry_after_s > self.max_retry_after_s:
                return None
            # Samples that were limited together must not all come back in the same instant.
            return error.retry_after_s + self.rng.random()
        bound = min(self.longest_pause_s, self.first_pause_s * 2.0 ** (number - 1))
        return bound * (0.5 + 0.5 * self.rng.random())


async def with_retries(
    call: Callable[[], Awaitable[Completion]],
    policy: RetryPolicy,
    *,
    timeout_s: float,
    on_try: OnTry | None,
) -> Completion:
    """Make `call` until it returns or trying again does not help; `on_try` hears of every try."""
    number = 0
    while True:
        number += 1
        await _report(on_try, Try(number, "started"))
        try:
            async with asyncio.timeout(timeout_s):
                completion = await call()
        except TimeoutError:
            error: ModelError = ProviderUnavailable(f"No answer within {timeout_s:g} s.")
        except ModelError as failed:
            error = failed
        else:
            await _report(on_try, Try(number, "returned", completion=completion))
            return completion
        pause = policy.pause(number, error)
        await _report(on_try, Try(number, "failed", error=error, wait_s=pause))
        if pause is None:
            raise error
        await policy.sleep(pause)


async def _report(on_try: OnTry | None, event: Try) -> None:
    if on_try is not None:
        await on_try(event)


def status_error(
    provider: str, status: int, message: str, headers: Mapping[str, str], key_variable: str
) -> ModelError:
    """The error for an HTTP status, by the provider's documented meaning of it."""
    text = f"{provider} answered {status}: {message[:500]}"
    retry_after = retry_after_s(headers)
    refused = headers.get("x-should-retry") == "false"
    if status == 429:
        limited = RateLimited(text, retry_after_s=retry_after)
        limited.retryable = not refused
        return limited
    if (status in _RETRYABLE or status >= 500) and not refused:
        return ProviderUnavailable(text, retry_after_s=retry_after)
    if status in (401, 403):
        text += f" (check the key in {key_variable})"
    return BadRequest(text)


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
