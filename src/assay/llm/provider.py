"""What the models behind a provider's SDK have in common: answers are streamed."""

import asyncio
import json
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

import httpx2

from assay.llm.interface import (
    CHARACTERS_PER_TOKEN,
    Completion,
    Effort,
    Gate,
    ModelError,
    OnTry,
    Prompt,
    ProviderUnavailable,
    Usage,
)
from assay.llm.names import ModelName
from assay.llm.retry import Progress, RetryPolicy, with_retries

CALL_ID_HEADER = "X-Client-Request-Id"
_DRAIN_S = 0.1
_MALFORMED = (ValueError, LookupError, TypeError, AttributeError, RecursionError)


class Closing(Protocol):
    """An SDK's client."""

    async def close(self) -> None: ...


Client = TypeVar("Client", bound=Closing)


@dataclass(frozen=True)
class Question:
    """The arguments of one call."""

    prompt: Prompt
    max_tokens: int | None
    temperature: float | None
    effort: Effort | None
    timeout_s: float

    @property
    def tokens(self) -> int:
        """About how many tokens the prompt has."""
        return self.prompt.tokens


class Answer(ABC):
    """An answer while it comes. Writes into `progress` what the try would cost if it ended here.

    Its methods may raise what reading unexpected data raises (ValueError, KeyError …).
    """

    def __init__(self, question: Question, progress: Progress) -> None:
        self.question = question
        self.progress = progress
        self.started = False  # an event came
        self.ended = False  # the last one came

    @abstractmethod
    def take(self, data: str) -> bool:
        """Add one event of the stream; whether it holds content. Raises ModelError for errors."""

    @abstractmethod
    def complete(self) -> bool:
        """Whether the stream may end here."""

    @abstractmethod
    def completion(self, request_id: str | None) -> Completion:
        """The answer that the events were."""

    @abstractmethod
    def whole(self, data: Any, request_id: str | None) -> Completion:
        """The answer of a server that does not stream."""

    def estimate(self, text: str, thinking: str) -> Usage:
        """The usage of an answer whose server does not report it."""
        written = -(-len(text + thinking) // CHARACTERS_PER_TOKEN)
        return Usage(self.question.tokens, written, estimated=True)


class EventDecoder:
    """The data of server-sent events, from bytes as they come."""

    def __init__(self) -> None:
        self._rest = b""
        self._lines: list[str] = []

    def feed(self, chunk: bytes) -> list[str]:
        """The data of the events that end in `chunk`. Raises ValueError for what is not UTF-8."""
        # Only line feeds end lines here: others (U+2028 …) stand unescaped in JSON strings.
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        found = []
        for line in lines:
            text = line.removesuffix(b"\r").decode()
            if text.startswith("data:"):
                self._lines.append(text[5:].removeprefix(" "))
            elif not text and self._lines:
                found.append("\n".join(self._lines))
                self._lines = []
        return found


class ProviderModel(ABC, Generic[Client]):
    """A model that is asked through a client, which belongs to one event loop.

    Once the answer has begun, `idle_s` without an event ends the try: the stream has stalled.
    Before that only the call's `timeout_s` does, because models think in silence.
    """

    request_id_header: str
    who: str  # the provider, as errors call it

    def __init__(self, name: ModelName, policy: RetryPolicy | None, idle_s: float) -> None:
        self._name = name
        self._policy = policy or RetryPolicy()
        self._idle_s = idle_s
        self._client: Client | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def name(self) -> ModelName:
        return self._name

    @property
    @abstractmethod
    def takes_temperature(self) -> bool:
        """See `Model.takes_temperature`."""

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
        """See `Model.complete`."""
        question = Question(prompt, max_tokens, temperature, effort, timeout_s)

        async def call(progress: Progress) -> Completion:
            return await self._once(question, progress)

        return await with_retries(
            call,
            self._policy,
            timeout_s=timeout_s,
            on_try=on_try,
            gate=gate,
            tokens=question.tokens,
        )

    async def aclose(self) -> None:
        """Close connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    def _open(self) -> Client:
        """The client of the running event loop."""
        loop = asyncio.get_running_loop()
        if self._client is None or self._loop is not loop:
            self._loop = loop
            self._client = self._connect()
        return self._client

    @abstractmethod
    def _connect(self) -> Client:
        """A new client, with the SDK's own retries off: ours are recorded."""

    @abstractmethod
    async def _send(
        self, question: Question, headers: dict[str, str], stack: AsyncExitStack
    ) -> httpx2.Response:
        """Ask for a stream; `stack` closes it. Raises ModelError unless it is granted."""

    @abstractmethod
    def _answer(self, question: Question, progress: Progress) -> Answer:
        """An empty answer."""

    async def _once(self, question: Question, progress: Progress) -> Completion:
        """One request. Raises ModelError. The connection is closed when this ends early."""
        answer = self._answer(question, progress)
        async with AsyncExitStack() as stack:
            response = await self._send(question, {CALL_ID_HEADER: progress.id}, stack)
            request_id = response.headers.get(self.request_id_header)
            if "json" in response.headers.get("content-type", ""):
                return await self._read_whole(response, answer, request_id)
            chunks = await stack.enter_async_context(aclosing(response.aiter_bytes()))
            await self._read_events(chunks, answer)
            if not answer.complete():
                raise self._broken_off(answer)
            try:
                completion = answer.completion(request_id)
            except _MALFORMED as error:
                raise self._unreadable(error) from error
            await _drain(chunks)
            return completion

    async def _read_whole(
        self, response: httpx2.Response, answer: Answer, request_id: str | None
    ) -> Completion:
        try:
            body = await response.aread()
        except httpx2.HTTPError as error:
            raise ProviderUnavailable(f"{self.who} broke off its answer: {error}") from error
        try:
            completion = replace(answer.whole(json.loads(body), request_id), streamed=False)
        except _MALFORMED as error:
            raise self._unreadable(error) from error
        answer.progress.usage, answer.progress.final = completion.usage, True
        await answer.progress.answers()
        return completion

    async def _read_events(self, chunks: AsyncIterator[bytes], answer: Answer) -> None:
        """Until the answer says that it has ended, or the stream does."""
        decoder = EventDecoder()
        clock = asyncio.get_running_loop().time
        idle = asyncio.timeout(None)
        try:
            async with idle:
                while not answer.ended and (chunk := await self._next(chunks, answer)):
                    events = self._decoded(decoder, chunk)
                    for data in events:
                        if not answer.ended and self._take(answer, data):
                            await answer.progress.answers()
                    if events and answer.progress.answering:
                        idle.reschedule(clock() + self._idle_s)
        except TimeoutError as late:
            if not idle.expired() or late is answer.progress.on_try_error:
                raise
            if answer.complete():
                return
            raise ProviderUnavailable(
                f"{self.who} stalled in the middle of its answer: nothing for {self._idle_s:g} s."
            ) from None

    async def _next(self, chunks: AsyncIterator[bytes], answer: Answer) -> bytes:
        """The next bytes; none at the end."""
        try:
            return await anext(chunks, b"")
        except httpx2.HTTPError as error:
            if answer.complete():
                return b""
            raise ProviderUnavailable(
                f"{self.who} broke off its answer: {type(error).__name__}: {error}"
            ) from error

    def _decoded(self, decoder: EventDecoder, chunk: bytes) -> list[str]:
        try:
            return decoder.feed(chunk)
        except ValueError as error:
            raise self._unreadable(error) from error

    def _take(self, answer: Answer, data: str) -> bool:
        """Whether the event holds content."""
        try:
            content = answer.take(data)
        except _MALFORMED as error:
            raise self._unreadable(error) from error
        answer.started = True
        if answer.progress.usage is None:
            answer.progress.usage = Usage(answer.question.tokens, estimated=True)
        return content

    def _broken_off(self, answer: Answer) -> ModelError:
        if not answer.started:
            return ProviderUnavailable(f"{self.who}: the answer cannot be read: it is no stream.")
        return ProviderUnavailable(f"{self.who} broke off its answer: the stream has no end.")

    def _unreadable(self, error: Exception) -> ModelError:
        return ProviderUnavailable(
            f"{self.who}: the answer cannot be read: {type(error).__name__}: {error}"
        )


async def _drain(chunks: AsyncIterator[bytes]) -> None:
    """Read to the end of a stream whose last event came: only then its connection can be used
    again. One that stays open nevertheless is not waited for.
    """
    try:
        async with asyncio.timeout(_DRAIN_S):
            async for _ in chunks:
                pass
    except (TimeoutError, httpx2.HTTPError):
        pass
