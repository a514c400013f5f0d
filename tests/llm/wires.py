"""Both providers under one interface, for tests of what they have in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from assay.llm import ModelName
from assay.llm.anthropic import AnthropicModel
from assay.llm.openai import OpenAIModel
from tests.llm.calls import Outcome, call
from tests.support.provider import anthropic, openai
from tests.support.provider.reply import Reply
from tests.support.provider.server import ProviderServer

THINKING = "6 * 7"


@dataclass(frozen=True)
class Wire:
    """A provider: the client for it, and what its server sends."""

    name: str
    open: Callable[..., Any]  # (address, **options)
    answer: Callable[..., Reply]
    thoughtful: Callable[[str], Reply]  # an answer after THINKING
    failure: Callable[..., Reply]  # (status, **headers)
    failed: Callable[[str], str]  # an error event of a kind
    overloaded: str  # the kind of an error that passes
    truncated: Reply
    refused: Reply
    cached: Reply  # its prompt: 10 tokens read, 900 cached, 40 written to the cache; 3 answered
    head: int  # events before the first content
    prompt_tokens: int  # known after the head: told by the provider, or estimated
    told: int  # output tokens told with the head

    def ask(
        self, provider: ProviderServer, *, model: dict[str, Any] | None = None, **options: Any
    ) -> Outcome:
        """Make one call and return its outcome; `model` are options of the model."""
        return call(lambda p: self.open(provider.url, policy=p, **model or {}), **options)


def _anthropic(address: str, **options: Any) -> AnthropicModel:
    name = ModelName.parse(f"anthropic:claude-opus-4-5@{address}")
    return AnthropicModel(name, {"ANTHROPIC_API_KEY": "k"}, **options)


def _openai(address: str, **options: Any) -> OpenAIModel:
    return OpenAIModel(ModelName.parse(f"openai:qwen3@{address}/v1"), {}, **options)


ANTHROPIC = Wire(
    name="anthropic",
    open=_anthropic,
    answer=anthropic.message,
    thoughtful=lambda text: anthropic.message(text, thinking=THINKING),
    failure=anthropic.error,
    failed=anthropic.error_event,
    overloaded="overloaded_error",
    truncated=anthropic.message("half", stop_reason="max_tokens"),
    refused=anthropic.message("", stop_reason="refusal"),
    cached=anthropic.message(
        usage={
            "input_tokens": 10,
            "output_tokens": 3,
            "cache_read_input_tokens": 900,
            "cache_creation_input_tokens": 40,
            "cache_creation": {"ephemeral_5m_input_tokens": 40, "ephemeral_1h_input_tokens": 0},
        }
    ),
    head=1,
    prompt_tokens=12,
    told=1,
)
OPENAI = Wire(
    name="openai",
    open=_openai,
    answer=openai.completion,
    thoughtful=lambda text: openai.completion(text, reasoning_content=THINKING),
    failure=openai.error,
    failed=openai.error_event,
    overloaded="server_error",
    truncated=openai.completion("half", finish_reason="length"),
    refused=openai.completion(None, refusal="I will not."),
    cached=openai.completion(
        usage={
            "prompt_tokens": 950,
            "completion_tokens": 3,
            "prompt_tokens_details": {"cached_tokens": 900, "cache_write_tokens": 40},
        }
    ),
    head=1,
    prompt_tokens=6,  # 24 characters
    told=0,
)
WIRES = (ANTHROPIC, OPENAI)
