"""GPT models, and everything else that speaks OpenAI's chat completions (vLLM, Ollama, …)."""

import json
import re
from collections.abc import Mapping
from typing import Any

import openai
from openai.types.chat import ChatCompletionMessageParam

from assay.llm.interface import (
    BadRequest,
    Completion,
    MissingKey,
    Prompt,
    ProviderUnavailable,
    Stop,
    Usage,
)
from assay.llm.names import ModelName
from assay.llm.provider import ProviderModel
from assay.llm.retry import RetryPolicy, status_error

KEY = "OPENAI_API_KEY"
_ADDRESS = "https://api.openai.com/v1"
_STOPS: dict[str, Stop] = {"length": "truncated", "content_filter": "refused"}
_WITH_TEMPERATURE = ("gpt-3", "gpt-4", "chatgpt-4")
_THINK = re.compile(r"^\s*<think>(.*?)</think>\s*", re.DOTALL)


class OpenAIModel(ProviderModel[openai.AsyncOpenAI]):
    """`openai:<model>[@base_url]`."""

    def __init__(
        self, name: ModelName, env: Mapping[str, str], *, policy: RetryPolicy | None = None
    ) -> None:
        """Raises MissingKey unless the key is set; a server named by address may need none."""
        super().__init__(name, policy)
        address = name.base_url or env.get("OPENAI_BASE_URL") or None
        self._key = env.get(KEY, "")
        if not self._key and address is None:
            raise MissingKey(name, KEY)
        self._own_server = address is not None
        self._address = address or _ADDRESS

    def _connect(self) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(
            api_key=self._key or "none", base_url=self._address, max_retries=0
        )

    async def _once(
        self, prompt: Prompt, max_tokens: int, temperature: float | None, timeout_s: float
    ) -> Completion:
        # Reasoning models refuse a temperature; other servers know only the older limit's name.
        with_temperature = self._own_server or self._name.model.startswith(_WITH_TEMPERATURE)
        try:
            answer = await self._open().chat.completions.with_raw_response.create(
                model=self._name.model,
                messages=_messages(prompt),
                max_tokens=max_tokens if self._own_server else openai.omit,
                max_completion_tokens=openai.omit if self._own_server else max_tokens,
                temperature=temperature if with_temperature else openai.omit,
                timeout=timeout_s,
            )
            text = answer.text
        except openai.APIStatusError as error:
            raise status_error(
                "OpenAI", error.status_code, error.message, error.response.headers, KEY
            ) from error
        except openai.APIConnectionError as error:
            raise ProviderUnavailable(f"{self._address} cannot be reached: {error}") from error
        except openai.OpenAIError as error:
            raise BadRequest(f"OpenAI's SDK refused the request: {error}") from error
        return self._completion(text, answer.headers.get("x-request-id"))

    def _completion(self, body: str, request_id: str | None) -> Completion:
        try:
            data = json.loads(body)
            choice = data["choices"][0]
            message = choice["message"]
            text = message.get("content") or ""
            stop = _STOPS.get(choice["finish_reason"], "end")
            if message.get("refusal"):
                text, stop = message["refusal"], "refused"
            thinking = message.get("reasoning_content") or message.get("reasoning") or ""
            inline = _THINK.match(text)
            if inline is not None:
                text = text[inline.end() :]
                thinking = thinking or inline[1].strip()
            # Small servers may leave the usage out; OpenAI itself may not.
            usage = _usage(data.get("usage") or {} if self._own_server else data["usage"])
            name = data.get("model") or self._name.model
        except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
            raise ProviderUnavailable(
                f"{self._address}: the answer cannot be read: {type(error).__name__}: {error}"
            ) from error
        return Completion(text, thinking, stop, usage, name, request_id)


def _messages(prompt: Prompt) -> list[ChatCompletionMessageParam]:
    messages: list[ChatCompletionMessageParam] = []
    if prompt.system:
        messages.append({"role": "system", "content": prompt.system})
    prefix = prompt.cache_prefix
    for message in prompt.messages:
        if message.role == "assistant":
            messages.append({"role": "assistant", "content": message.text})
            continue
        text = f"{prefix}\n\n{message.text}" if prefix else message.text
        messages.append({"role": "user", "content": text})
        prefix = ""
    return messages


def _usage(data: Mapping[str, Any]) -> Usage:
    """OpenAI counts cached tokens among the prompt's; here the kinds do not overlap."""
    details = data.get("prompt_tokens_details") or {}
    cached = int(details.get("cached_tokens") or 0)
    written = int(details.get("cache_write_tokens") or 0)
    return Usage(
        input_tokens=max(0, int(data.get("prompt_tokens") or 0) - cached - written),
        output_tokens=int(data.get("completion_tokens") or 0),
        cached_input_tokens=cached,
        cache_write_tokens=written,
    )
