"""GPT models, and everything else that speaks OpenAI's chat completions (vLLM, Ollama, …)."""

import json
import re
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any

import httpx2
import openai
from openai.types.chat import ChatCompletionMessageParam

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
from assay.llm.provider import Answer, ProviderModel, Question
from assay.llm.retry import KNOWN_KINDS, Progress, RetryPolicy, event_error, status_error

KEY = "OPENAI_API_KEY"
_ADDRESS = "https://api.openai.com/v1"
_STOPS: dict[str, Stop] = {"length": "truncated", "content_filter": "refused"}
_PARTS = ("content", "refusal", "reasoning_content", "reasoning")
_WITH_TEMPERATURE = ("gpt-3", "gpt-4", "chatgpt-4")
_THINK = re.compile(r"^\s*<think>(.*?)(?:</think>\s*|\Z)", re.DOTALL)


class OpenAIModel(ProviderModel[openai.AsyncOpenAI]):
    """`openai:<model>[@base_url]`."""

    request_id_header = "x-request-id"

    def __init__(
        self,
        name: ModelName,
        env: Mapping[str, str],
        *,
        policy: RetryPolicy | None = None,
        idle_s: float = 120.0,
        own_server: bool | None = None,
    ) -> None:
        """Raises MissingKey unless the key is set; a server named by address may need none.

        `own_server` says whether it may speak an older or smaller protocol than OpenAI itself; by
        default a server named by address may.
        """
        super().__init__(name, policy, idle_s)
        address = name.base_url or env.get("OPENAI_BASE_URL") or None
        self._key = env.get(KEY, "")
        if not self._key and address is None:
            raise MissingKey(name, KEY)
        self._own_server = address is not None if own_server is None else own_server
        self._address = self.who = address or _ADDRESS

    @property
    def takes_temperature(self) -> bool:
        """See `Model.takes_temperature`."""
        return self._own_server or self._name.model.startswith(_WITH_TEMPERATURE)

    def _connect(self) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(
            api_key=self._key or "none", base_url=self._address, max_retries=0
        )

    async def _send(
        self, question: Question, headers: dict[str, str], stack: AsyncExitStack
    ) -> httpx2.Response:
        # Reasoning models refuse a temperature; other servers know only the older limit's name.
        temperature = question.temperature if self.takes_temperature else None
        limit = openai.omit if question.max_tokens is None else question.max_tokens
        request = self._open().chat.completions.with_streaming_response.create(
            model=self._name.model,
            messages=_messages(question.prompt),
            max_tokens=limit if self._own_server else openai.omit,
            max_completion_tokens=openai.omit if self._own_server else limit,
            temperature=openai.omit if temperature is None else temperature,
            reasoning_effort=question.effort or openai.omit,
            stream=True,
            stream_options={"include_usage": True},
            timeout=question.timeout_s,
            extra_headers=headers,
        )
        try:
            return (await stack.enter_async_context(request)).http_response
        except openai.APIStatusError as error:
            raise status_error(
                "OpenAI", error.status_code, error.message, error.response.headers, KEY
            ) from error
        except (openai.APIConnectionError, httpx2.HTTPError) as error:
            raise ProviderUnavailable(f"{self._address} cannot be reached: {error}") from error
        except openai.OpenAIError as error:
            refused = f"OpenAI's SDK refused the request: {error}"
            raise BadRequest(refused, usage=Usage()) from error

    def _answer(self, question: Question, progress: Progress) -> Answer:
        return _Answer(question, progress, self._name.model, self._own_server)


class _Answer(Answer):
    """Puts the chunks together to the completion that the API answers when it does not stream."""

    def __init__(self, question: Question, progress: Progress, model: str, own: bool) -> None:
        super().__init__(question, progress)
        self._model = model
        self._own_server = own
        self._pieces: dict[str, list[str]] = {part: [] for part in _PARTS}
        self._finish_reason: str | None = None
        self._usage: dict[str, Any] = {}

    def take(self, data: str) -> bool:
        if data.startswith("[DONE]"):
            self.ended = True
            return False
        chunk = json.loads(data)
        if chunk.get("error"):
            usage = self.progress.so_far() if self.started else Usage()
            raise _chunk_error(chunk["error"], usage)
        self._model = chunk.get("model") or self._model
        content = False
        for choice in chunk.get("choices") or ():
            self._finish_reason = choice.get("finish_reason") or self._finish_reason
            content = self._extend(choice.get("delta") or {}) or content
        if chunk.get("usage"):
            self._usage = chunk["usage"]
            self.progress.usage = _usage(self._usage)
        self.progress.final = bool(self._usage) and self._finish_reason is not None
        return content

    def complete(self) -> bool:
        # After the reason only the usage comes and [DONE]; small servers leave out either.
        return self._finish_reason is not None and (self._own_server or bool(self._usage))

    def completion(self, request_id: str | None) -> Completion:
        message = {part: "".join(pieces) for part, pieces in self._pieces.items()}
        choice = {"message": message, "finish_reason": self._finish_reason}
        data = {"choices": [choice], "model": self._model}
        return self.whole({**data, "usage": self._usage} if self._usage else data, request_id)

    def whole(self, data: Any, request_id: str | None) -> Completion:
        choice = data["choices"][0]
        message = choice["message"]
        text = message.get("content") or ""
        stop = _STOPS.get(choice["finish_reason"], "end")
        if message.get("refusal"):
            text, stop = message["refusal"], "refused"
        thinking = message.get("reasoning_content") or message.get("reasoning") or ""
        usage = self._counted(data, text, thinking)
        inline = _THINK.match(text)
        if inline is not None:
            text = text[inline.end() :]
            thinking = thinking or inline[1].strip()
        return Completion(
            text, thinking, stop, usage, data.get("model") or self._model, request_id
        )

    def _counted(self, data: Mapping[str, Any], text: str, thinking: str) -> Usage:
        """Small servers may leave the usage out; OpenAI itself may not."""
        if self._own_server and not data.get("usage"):
            return self.estimate(text, thinking)
        return _usage(data["usage"])

    def _extend(self, delta: Mapping[str, Any]) -> bool:
        """Whether there was anything to add."""
        pieces = {part: delta[part] for part in _PARTS if delta.get(part)}
        for part, piece in pieces.items():
            self._pieces[part].append(piece)
        # Servers that know both names of reasoning send it under both.
        if "reasoning_content" in pieces:
            pieces.pop("reasoning", None)
        self.progress.characters += sum(map(len, pieces.values()))
        return bool(pieces)


def _chunk_error(error: Any, usage: Usage | None) -> ModelError:
    """Servers say what went wrong by a type, by a code, or by the HTTP status as a code."""
    if not isinstance(error, dict):
        return event_error("OpenAI", "", str(error), usage)
    message, code = str(error.get("message")), error.get("code")
    if isinstance(code, int) and 400 <= code < 600:
        failed = status_error("OpenAI", code, message, {}, KEY)
        failed.usage = usage
        return failed
    kinds = [str(kind) for kind in (error.get("type"), code) if kind]
    # Of two names the telling one: {"type": "tokens", "code": "rate_limit_exceeded"}.
    kind = next((kind for kind in kinds if kind in KNOWN_KINDS), kinds[0] if kinds else "")
    return event_error("OpenAI", kind, message, usage)


def _messages(prompt: Prompt) -> list[ChatCompletionMessageParam]:
    messages: list[ChatCompletionMessageParam] = []
    if prompt.system:
        messages.append({"role": "system", "content": prompt.system})
    prefix = "\n\n".join(prompt.cached_parts)
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
