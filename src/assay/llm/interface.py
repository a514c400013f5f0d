"""What every model offers, and how it fails.

ModelError
├── MissingKey            no key in the environment
├── MissingPackage        the provider's SDK is not installed
├── RateLimited           429; retryable
├── ProviderUnavailable   no connection, time out, 408/409/5xx, unreadable answer; retryable
└── BadRequest            every other refusal of the request
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from assay.llm.names import ModelName


@dataclass(frozen=True)
class Message:
    role: Literal["user", "assistant"]
    text: str


@dataclass(frozen=True)
class Prompt:
    """A question to a model; `messages` starts and ends with the user.

    `cache_prefix` (the codebase) goes in front of the first message. It is kept apart because it
    is the same for many questions, so that a provider can be told to cache it.
    """

    system: str
    messages: tuple[Message, ...]
    cache_prefix: str = ""

    @property
    def characters(self) -> int:
        return len(self.system) + len(self.cache_prefix) + sum(len(m.text) for m in self.messages)


@dataclass(frozen=True)
class Usage:
    """Tokens by the kind of price they have, without overlap: the input is the sum of three kinds.

    `input_tokens` were read at the full price, `cached_input_tokens` came from the provider's
    cache, `cache_write_tokens` were read and put there. Thinking counts as output.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cached_input_tokens: int = 0
    cache_write_tokens: int = 0

    @property
    def all_input_tokens(self) -> int:
        return self.input_tokens + self.cached_input_tokens + self.cache_write_tokens


Stop = Literal["end", "truncated", "refused"]


@dataclass(frozen=True)
class Completion:
    """An answer. `thinking` is kept for the record and never carried out."""

    text: str
    thinking: str
    stop: Stop
    usage: Usage
    model: str
    request_id: str | None = None


class ModelError(Exception):
    """A call failed. `retryable`: it may succeed later, after `retry_after_s` if that is known."""

    def __init__(
        self, message: str, *, retryable: bool = False, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.retryable = retryable
        self.retry_after_s = retry_after_s


class MissingKey(ModelError):
    """The environment has no key for the provider; `variable` names what to set."""

    def __init__(self, name: ModelName, variable: str) -> None:
        super().__init__(
            f"{name} needs a key: set the environment variable {variable} for this process "
            f"(export {variable}=…), or choose the model `offline`, which needs none."
        )
        self.variable = variable


class MissingPackage(ModelError):
    """The provider's SDK is not installed."""

    def __init__(self, name: ModelName, package: str) -> None:
        super().__init__(f"{name} needs the package {package}: pip install 'assay[llm]'.")


class RateLimited(ModelError):
    """The provider asks to slow down."""

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message, retryable=True, retry_after_s=retry_after_s)


class ProviderUnavailable(ModelError):
    """The provider cannot be reached, is overloaded, or answered something unreadable."""

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message, retryable=True, retry_after_s=retry_after_s)


class BadRequest(ModelError):
    """The provider refuses this request (wrong key, unknown model, too long …) for good."""


@dataclass(frozen=True)
class Try:
    """One event of a call, for a ledger: every try is reported before it is made and after it.

    A `started` without a later event with the same `number` was cancelled or died on the way: it
    may have been billed. `wait_s` is the pause before the next try, None when there is none.
    """

    number: int  # from 1
    phase: Literal["started", "returned", "failed"]
    completion: Completion | None = None
    error: ModelError | None = None
    wait_s: float | None = None


OnTry = Callable[[Try], Awaitable[None]]


class Model(Protocol):
    """A model behind a provider. Its connections belong to one event loop; close with `aclose`."""

    @property
    def name(self) -> ModelName: ...

    async def complete(
        self,
        prompt: Prompt,
        *,
        max_tokens: int,
        temperature: float | None = None,
        timeout_s: float = 600.0,
        on_try: OnTry | None = None,
    ) -> Completion:
        """Ask once, trying again where that may help.

        `max_tokens` bounds the output, thinking included; `temperature` None leaves it to the
        provider, and it is not sent to models that refuse it; `timeout_s` holds for each try.

        Raises ModelError: one of the classes above. An exception of `on_try` goes through, so that
        a call that cannot be recorded is not made.
        """
        ...

    async def aclose(self) -> None:
        """Close connections. A closed model opens new ones when it is asked again."""
        ...
