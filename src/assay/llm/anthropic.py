"""Claude models through the official SDK."""

import json
import re
from collections.abc import Mapping
from typing import Any, Literal

import anthropic
from anthropic.types import MessageParam, TextBlockParam

from assay.llm.interface import (
    BadRequest,
    Completion,
    MissingKey,
    ModelError,
    Prompt,
    ProviderUnavailable,
    Stop,
    Usage,
)
from assay.llm.names import ModelName
from assay.llm.provider import ProviderModel
from assay.llm.retry import RetryPolicy, status_error

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


class AnthropicModel(ProviderModel[anthropic.AsyncAnthropic]):
    """`anthropic:<model>[@base_url]`, or any server that speaks the Anthropic Messages API.

    `thinking="summarized"` asks models that decide themselves how much to think (Claude 4.6 and
    later) to show a summary of it; otherwise their default holds.
    """

    def __init__(
        self,
        name: ModelName,
        env: Mapping[str, str],
        *,
        thinking: Thinking = "default",
        policy: RetryPolicy | None = None,
    ) -> None:
        """Raises MissingKey unless the key is set; a server named by address may need none."""
        super().__init__(name, policy)
        address = name.base_url or env.get("ANTHROPIC_BASE_URL") or None
        key = env.get(KEY, "")
        if not key and address is None:
            raise MissingKey(name, KEY)
        self._address = address or _ADDRESS
        self._key = key or "none"
        # Gateways built for the older API version read the key from this header.
        self._headers = {"x-api-key": self._key} if address else {}
        self._thinking = thinking

    def _connect(self) -> anthropic.AsyncAnthropic:
        return anthropic.AsyncAnthropic(
            api_key=self._key,
            base_url=self._address,
            max_retries=0,
            default_headers=self._headers,
        )

    async def _once(
        self, prompt: Prompt, max_tokens: int, temperature: float | None, timeout_s: float
    ) -> Completion:
        headers, body = self._options(temperature)
        try:
            answer = await self._open().messages.with_raw_response.create(
                model=self._name.model,
                max_tokens=max_tokens,
                system=prompt.system or anthropic.omit,
                messages=_messages(prompt),
                timeout=timeout_s,
                extra_headers=headers,
                extra_body=body,
            )
            text = await answer.text()
        except anthropic.APIStatusError as error:
            message = error.api_message or str(error)
            raise status_error(
                "Anthropic", error.status_code, message, error.response.headers, KEY
            ) from error
        except anthropic.APIConnectionError as error:
            raise ProviderUnavailable(f"Anthropic cannot be reached: {error}") from error
        except anthropic.AnthropicError as error:
            raise BadRequest(f"Anthropic's SDK refused the request: {error}") from error
        return _completion(text, self._name.model, answer.headers.get("request-id"))

    def _options(self, temperature: float | None) -> tuple[dict[str, str], dict[str, Any]]:
        version = _version(self._name.model)
        if self._thinking == "summarized" and version is not None and version >= (4, 6):
            return {}, {"thinking": {"type": "adaptive", "display": "summarized"}}
        if temperature is None or (version is not None and version >= (4, 7)):
            return {}, {}
        header = {"anthropic-version": _VERSION_WITH_TEMPERATURE}
        return header, {"temperature": temperature}


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
        if index == 0 and prompt.cache_prefix:
            prefix: TextBlockParam = {
                "type": "text",
                "text": prompt.cache_prefix,
                "cache_control": {"type": "ephemeral"},
            }
            blocks.insert(0, prefix)
        if message.role == "user":
            messages.append({"role": "user", "content": blocks})
        else:
            messages.append({"role": "assistant", "content": blocks})
    return messages


def _completion(body: str, model: str, request_id: str | None) -> Completion:
    try:
        data = json.loads(body)
        blocks = data["content"]
        text = "".join(block["text"] for block in blocks if block["type"] == "text")
        thinking = "\n\n".join(
            block["thinking"] for block in blocks if block["type"] == "thinking"
        )
        usage = _usage(data["usage"])
        stop = _STOPS.get(data["stop_reason"], "end")
        return Completion(text, thinking, stop, usage, data.get("model") or model, request_id)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _unreadable(error) from error


def _usage(data: Mapping[str, Any]) -> Usage:
    return Usage(
        input_tokens=int(data["input_tokens"]),
        output_tokens=int(data["output_tokens"]),
        cached_input_tokens=int(data.get("cache_read_input_tokens") or 0),
        cache_write_tokens=int(data.get("cache_creation_input_tokens") or 0),
    )


def _unreadable(error: Exception) -> ModelError:
    return ProviderUnavailable(
        f"Anthropic's answer cannot be read: {type(error).__name__}: {error}"
    )
