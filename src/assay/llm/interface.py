"""What every model offers, and how it fails.

ModelError
├── MissingKey            no key in the environment
├── MissingPackage        the provider's SDK is not installed
├── RateLimited           429; retryable
├── ProviderUnavailable   no connection, time out, 408/409/5xx, an answer that cannot be read,
│                         breaks off or stalls; retryable
└── BadRequest            every other refusal of the request
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

from assay.domain.failure_codes import FailureCode
from assay.llm.names import ModelName

#: For estimates, where a provider does not say.
CHARACTERS_PER_TOKEN = 4

#: How hard a model should think, as both providers can be told.
Effort = Literal["low", "medium", "high"]


@dataclass(frozen=True)
class Message:
    role: Literal["user", "assistant"]
    text: str


@dataclass(frozen=True)
class Prompt:
    """A question to a model; `messages` starts and ends with the user.

    `cache_prefix` (the codebase) goes in front of the first message, then `log`, part by part.
    They are kept apart because many questions begin with the same parts, so that a provider can
    be told to cache them: a later question repeats them byte for byte and adds parts at the end.
    """

    system: str
    messages: tuple[Message, ...]
    cache_prefix: str = ""
    log: tuple[str, ...] = ()

    @property
    def cached_parts(self) -> tuple[str, ...]:
        """What goes in front of the first message, in order."""
        return tuple(part for part in (self.cache_prefix, *self.log) if part)

    @property
    def content(self) -> list[object]:
        """All of it that decides an answer, as JSON values. Where parts end decides nothing."""
        messages = [[message.role, message.text] for message in self.messages]
        return [self.system, "".join(self.cached_parts), messages]

    @property
    def characters(self) -> int:
        cached = sum(map(len, self.cached_parts))
        return len(self.system) + cached + sum(len(m.text) for m in self.messages)

    @property
    def tokens(self) -> int:
        """About how many tokens it has."""
        return self.characters // CHARACTERS_PER_TOKEN


@dataclass(frozen=True)
class Usage:
    """Tokens by the kind of price they have, without overlap: the input is the sum of three kinds.

    `input_tokens` were read at the full price, `cached_input_tokens` came from the provider's
    cache, `cache_write_tokens` were read and put there. Thinking counts as output.

    `estimated`: counted here, four characters to a token, because the provider did not get to
    report it (or never does).
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cached_input_tokens: int = 0
    cache_write_tokens: int = 0
    estimated: bool = False

    @property
    def all_input_tokens(self) -> int:
        return self.input_tokens + self.cached_input_tokens + self.cache_write_tokens


Stop = Literal["end", "truncated", "refused"]


@dataclass(frozen=True)
class Completion:
    """An answer. `thinking` is kept for the record and never carried out.

    `streamed`: whether the server sent it as a stream, which is what it is always asked for.
    """

    text: str
    thinking: str
    stop: Stop
    usage: Usage
    model: str
    request_id: str | None = None
    streamed: bool = True


class ModelError(Exception):
    """A call failed. `retryable`: it may succeed later, after `retry_after_s` if that is known.

    `usage` is what the last try may be billed for: zeros where the provider answered with an
    error instead, an estimate where the answer broke off, None where nothing is known.
    """

    code: ClassVar[FailureCode] = FailureCode.MODEL_ERROR

    def __init__(
        self,
        message: str,
        *,
        retryable: bool = False,
        retry_after_s: float | None = None,
        usage: Usage | None = None,
    ) -> None:
        super().__init__(message)
        self.retryable = retryable
        self.retry_after_s = retry_after_s
        self.usage = usage


class MissingKey(ModelError):
    """The environment has no key for the provider; `variable` names what to set."""

    code = FailureCode.MISSING_KEY

    def __init__(self, name: ModelName, variable: str) -> None:
        super().__init__(
            f"{name} needs a key: set the environment variable {variable} for this process "
            f"(export {variable}=…), or choose the model `offline`, which needs none."
        )
        self.variable = variable


class MissingPackage(ModelError):
    """The provider's SDK is not installed."""

    code = FailureCode.MISSING_PACKAGE

    def __init__(self, name: ModelName, package: str) -> None:
        super().__init__(f"{name} needs the package {package}: pip install 'assay[llm]'.")


class RateLimited(ModelError):
    """The provider asks to slow down."""

    code = FailureCode.RATE_LIMITED

    def __init__(
        self, message: str, *, retry_after_s: float | None = None, usage: Usage | None = None
    ) -> None:
        super().__init__(message, retryable=True, retry_after_s=retry_after_s, usage=usage)


class ProviderUnavailable(ModelError):
    """The provider cannot be reached, is overloaded, or answered something unreadable."""

    code = FailureCode.PROVIDER_UNAVAILABLE

    def __init__(
        self, message: str, *, retry_after_s: float | None = None, usage: Usage | None = None
    ) -> None:
        super().__init__(message, retryable=True, retry_after_s=retry_after_s, usage=usage)


class BadRequest(ModelError):
    """The provider refuses this request (wrong key, unknown model, too long …) for good."""

    code = FailureCode.BAD_REQUEST


@dataclass(frozen=True)
class Try:
    """One event of a try, for a ledger. The events of one try have the same `id`, in this order:

    started     before the request is sent; it carries `id` in the header X-Client-Request-Id
    answering   at the first piece of the answer: the provider has read the prompt, so that its
                cache holds it; not reported for an answer without content
    returned    with `completion`
    failed      with `error`; `wait_s` is the pause before the next try, None when there is none
    cancelled   the task was cancelled meanwhile; the connection is closed

    The last three end a try, and have its `usage`: None where nothing is known. A try that was
    started and never ended died on the way: it may be billed.
    """

    id: str
    number: int  # from 1, in one call
    phase: Literal["started", "answering", "returned", "failed", "cancelled"]
    completion: Completion | None = None
    error: ModelError | None = None
    wait_s: float | None = None
    usage: Usage | None = None
    seconds: float = 0.0  # since it started


OnTry = Callable[[Try], Awaitable[None]]


class Gate(Protocol):
    """Decides who may ask when. Every try takes a slot; pauses between tries hold none."""

    async def enter(self, tokens: int) -> None:
        """Wait for a slot for a prompt of about `tokens`: its characters divided by four.

        An exception, or a cancellation, means that no slot was taken.
        """
        ...

    def leave(self, error: ModelError | None, usage: Usage | None) -> None:
        """Give the slot back: once for every `enter` that returned, before the try is reported.

        `error` is how the try failed. It is None when it returned, and also when it was cancelled
        or `on_try` raised; `usage` is as in `Try.usage`.
        """
        ...


class Model(Protocol):
    """A model behind a provider. Its connections belong to one event loop; close with `aclose`."""

    @property
    def name(self) -> ModelName: ...

    @property
    def takes_temperature(self) -> bool:
        """Whether a temperature is sent: the model is not known to refuse it."""
        ...

    async def complete(
        self,
        prompt: Prompt,
        *,
        max_tokens: int | None = None,
        temperature: float | None = None,
        effort: Effort | None = None,
        timeout_s: float = 600.0,
        on_try: OnTry | None = None,
        gate: Gate | None = None,
    ) -> Completion:
        """Ask once, trying again where that may help.

        `max_tokens` bounds the output, thinking included. Of it, `temperature` and `effort`, None
        is not sent and leaves the choice to the provider; Anthropic's API wants a bound and gets
        one. A temperature is not sent to models that are known to refuse it. `timeout_s` holds
        for each try, from when `gate` let it in.

        Raises ModelError: one of the classes above. An exception of `on_try` goes through, so that
        a call that cannot be recorded is not made. A cancellation closes the connection, so that
        the provider stops; a report of how a try ended completes though the task is cancelled.
        """
        ...

    async def aclose(self) -> None:
        """Close connections. A closed model opens new ones when it is asked again."""
        ...
