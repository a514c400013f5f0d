"""Claude models through the official SDK."""

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, Literal

import anthropic
import httpx2
from anthropic.types import MessageParam, TextBlockParam

from assay.llm.interface import (
    BadRequest,
    Completion,
    Effort,
    MissingKey,
    Prompt,
    ProviderUnavailable,
    Stop,
    Usage,
)
from assay.llm.names import ModelName
from assay.llm.provider import Answer, ProviderModel, Question
from assay.llm.retry import Progress, RetryPolicy, event_error, status_error

KEY = "ANTHROPIC_API_KEY"
_ADDRESS = "https://api.anthropic.com"
# The last API version that knows `temperature`; later ones refuse requests that hold it.
_VERSION_WITH_TEMPERATURE = "2023-06-01"
_STOPS: dict[str, Stop] = {
    "max_tokens": "truncated",
    "model_context_window_exceeded": "truncated",
    "pause_turn": "truncated",
    "refusal": "refused",
}
Thinking = Literal["default", "summarized"]
#: Sent where the caller names no bound: the API wants one.
MAX_TOKENS = 24_000
#: Share of the bound that models before Claude 4.6 may think, and the least they can be told.
_THINKING_SHARE: dict[Effort, float] = {"low": 0.25, "medium": 0.5, "high": 0.75}
_LEAST_THINKING = 1_024
#: A request may mark so many ends of what to cache: the codebase, and the last parts of the log,
#: of which the next question shares all but the last.
_MARKED_PARTS = 2


class AnthropicModel(ProviderModel[anthropic.AsyncAnthropic]):
    """`anthropic:<model>[@base_url]`, or any server that speaks the Anthropic Messages API.

    `thinking="summarized"` asks models that decide themselves how much to think (Claude 4.6 and
    later) to show a summary of it; otherwise their default holds.
    """

    request_id_header = "request-id"
    who = "Anthropic"

    def __init__(
        self,
        name: ModelName,
        env: Mapping[str, str],
        *,
        thinking: Thinking = "default",
        policy: RetryPolicy | None = None,
        idle_s: float = 120.0,
    ) -> None:
        """Raises MissingKey unless the key is set; a server named by address may need none."""
        super().__init__(name, policy, idle_s)
        address = name.base_url or env.get("ANTHROPIC_BASE_URL") or None
        key = env.get(KEY, "")
        if not key and address is None:
            raise MissingKey(name, KEY)
        self._own_server = address is not None
        self._address = address or _ADDRESS
        self._key = key or "none"
        # Gateways built for the older API version read the key from this header.
        self._headers = {"x-api-key": self._key} if address else {}
        self._thinking = thinking

    @property
    def takes_temperature(self) -> bool:
        """See `Model.takes_temperature`."""
        version = _version(self._name.model)
        return version is None or version < (4, 7)

    def _connect(self) -> anthropic.AsyncAnthropic:
        return anthropic.AsyncAnthropic(
            api_key=self._key,
            base_url=self._address,
            max_retries=0,
            default_headers=self._headers,
        )

    async def _send(
        self, question: Question, headers: dict[str, str], stack: AsyncExitStack
    ) -> httpx2.Response:
        version, body = self._options(question)
        request = self._open().messages.with_streaming_response.create(
            model=self._name.model,
            max_tokens=question.max_tokens or MAX_TOKENS,
            system=question.prompt.system or anthropic.omit,
            messages=_messages(question.prompt),
            stream=True,
            timeout=question.timeout_s,
            extra_headers={**version, **headers},
            extra_body=body,
        )
        try:
            return (await stack.enter_async_context(request)).http_response
        except anthropic.APIStatusError as error:
            message = error.api_message or str(error)
            raise status_error(
                "Anthropic", error.status_code, message, error.response.headers, KEY
            ) from error
        except (anthropic.APIConnectionError, httpx2.HTTPError) as error:
            raise ProviderUnavailable(f"Anthropic cannot be reached: {error}") from error
        except anthropic.AnthropicError as error:
            refused = f"Anthropic's SDK refused the request: {error}"
            raise BadRequest(refused, usage=Usage()) from error

    def _answer(self, question: Question, progress: Progress) -> Answer:
        return _Answer(question, progress, self._name.model, self._own_server)

    def _options(self, question: Question) -> tuple[dict[str, str], dict[str, Any]]:
        """Headers and fields that depend on the model's version.

        Raises BadRequest for what no version of the API takes.
        """
        version = _version(self._name.model)
        if version is not None and version >= (4, 6):
            return self._options_of_46(question)
        temperature, effort = question.temperature, question.effort
        if effort is not None:
            if temperature is not None:
                raise _refused(f"{self._name} takes a temperature or an effort, not both")
            return {}, {"thinking": _thinking(question.max_tokens or MAX_TOKENS, effort)}
        if temperature is None:
            return {}, {}
        return {"anthropic-version": _VERSION_WITH_TEMPERATURE}, {"temperature": temperature}

    def _options_of_46(self, question: Question) -> tuple[dict[str, str], dict[str, Any]]:
        body: dict[str, Any] = {}
        if question.effort is not None:
            body["output_config"] = {"effort": question.effort}
        if self._thinking == "summarized":
            body["thinking"] = {"type": "adaptive", "display": "summarized"}
        if body or question.temperature is None or not self.takes_temperature:
            return {}, body
        header = {"anthropic-version": _VERSION_WITH_TEMPERATURE}
        return header, {"temperature": question.temperature}


def _thinking(max_tokens: int, effort: Effort) -> dict[str, Any]:
    budget = max(_LEAST_THINKING, int(_THINKING_SHARE[effort] * max_tokens))
    if budget >= max_tokens:
        raise _refused(
            f"an effort needs max tokens of at least {2 * _LEAST_THINKING}, not {max_tokens}"
        )
    return {"type": "enabled", "budget_tokens": budget}


def _refused(why: str) -> BadRequest:
    return BadRequest(f"The request was not sent: {why}.", usage=Usage())


def _version(model: str) -> tuple[int, int] | None:
    """(4, 6) for claude-opus-4-6; None for names that are not a Claude's."""
    found = re.match(r"claude-[a-z]+-(\d{1,2})(?:-(\d{1,2}))?(?!\d)", model)
    if found is not None:
        return int(found[1]), int(found[2] or 0)
    return (0, 0) if model.startswith("claude-") else None


def _messages(prompt: Prompt) -> list[MessageParam]:
    messages: list[MessageParam] = []
    for index, message in enumerate(prompt.messages):
        blocks: list[TextBlockParam] = [{"type": "text", "text": message.text}]
        if index == 0:
            blocks = [*_cached(prompt.cached_parts), *blocks]
        if message.role == "user":
            messages.append({"role": "user", "content": blocks})
        else:
            messages.append({"role": "assistant", "content": blocks})
    return messages


def _cached(parts: Sequence[str]) -> list[TextBlockParam]:
    """A block for each part: what is cached up to one is found by requests that add more."""
    blocks: list[TextBlockParam] = [{"type": "text", "text": part} for part in parts]
    for block in [*blocks[:1], *blocks[1:][-_MARKED_PARTS:]]:
        block["cache_control"] = {"type": "ephemeral"}
    return blocks


class _Answer(Answer):
    """Puts the events together to the message that the API answers when it does not stream."""

    def __init__(self, question: Question, progress: Progress, model: str, own: bool) -> None:
        super().__init__(question, progress)
        self._model = model
        self._own_server = own
        self._blocks: dict[int, tuple[str, list[str]]] = {}  # type, and the text in pieces
        self._stop_reason: str | None = None
        self._usage: dict[str, Any] = {}

    def take(self, data: str) -> bool:
        event = json.loads(data)
        kind = event["type"]
        if kind == "message_start":
            self._model = event["message"].get("model") or self._model
            self._reported(event["message"].get("usage") or {})
        elif kind == "content_block_start":
            block = event["content_block"]
            self._blocks[event["index"]] = (block["type"], [])
            self._extend(event["index"], block)
            return True
        elif kind == "content_block_delta":
            self._extend(event["index"], event["delta"])
            return True
        elif kind == "message_delta":
            self._stop_reason = event["delta"].get("stop_reason") or self._stop_reason
            self._reported(event.get("usage") or {})
            told = "output_tokens" in (event.get("usage") or {}) and "input_tokens" in self._usage
            self.progress.final = told and self._stop_reason is not None
        elif kind == "message_stop":
            self.ended = True
        elif kind == "error":
            error = event["error"]
            usage = self.progress.so_far() if self.started else Usage()
            raise event_error("Anthropic", error["type"], str(error.get("message")), usage)
        return False  # pings, ends of blocks, and kinds of the future

    def complete(self) -> bool:
        return self.ended and self._stop_reason is not None

    def completion(self, request_id: str | None) -> Completion:
        message = {
            "content": [
                {"type": kind, kind: "".join(pieces)}
                for _, (kind, pieces) in sorted(self._blocks.items())
            ],
            "stop_reason": self._stop_reason,
            "usage": self._usage,
            "model": self._model,
        }
        return self.whole(message, request_id)

    def whole(self, data: Any, request_id: str | None) -> Completion:
        blocks = data["content"]
        text = "".join(block["text"] for block in blocks if block["type"] == "text")
        thinking = "\n\n".join(
            block["thinking"] for block in blocks if block["type"] == "thinking"
        )
        stop = _STOPS.get(data["stop_reason"], "end")
        if self._own_server and "input_tokens" not in (data.get("usage") or {}):
            usage = self.estimate(text, thinking)
        else:
            usage = _usage(data["usage"])
        return Completion(
            text, thinking, stop, usage, data.get("model") or self._model, request_id
        )

    def _extend(self, index: int, piece: Mapping[str, Any]) -> None:
        """Add to a block; signatures, citations and the like are not kept."""
        kind, pieces = self._blocks[index]
        if text := piece.get(kind):
            pieces.append(text)
            self.progress.characters += len(text)

    def _reported(self, usage: Mapping[str, Any]) -> None:
        """The last word on each kind of token counts; some gateways repeat the input as zeros."""
        for name, count in usage.items():
            if count or (name == "output_tokens" and count is not None):
                self._usage[name] = count
            else:
                self._usage.setdefault(name, count)
        if "input_tokens" in self._usage:
            self.progress.usage = _usage({"output_tokens": 0, **self._usage})


def _usage(data: Mapping[str, Any]) -> Usage:
    return Usage(
        input_tokens=int(data["input_tokens"]),
        output_tokens=int(data["output_tokens"]),
        cached_input_tokens=int(data.get("cache_read_input_tokens") or 0),
        cache_write_tokens=int(data.get("cache_creation_input_tokens") or 0),
    )
