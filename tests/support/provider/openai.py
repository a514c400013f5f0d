"""Replies in OpenAI's chat completions wire format."""

from __future__ import annotations

import json
from typing import Any

from tests.support.provider.reply import Reply, split

PATH = "/v1/chat/completions"
DONE = "data: [DONE]\n\n"


def completion(
    text: str | None = "Hello.",
    *,
    finish_reason: str = "stop",
    usage: dict[str, Any] | None = None,
    pieces: int = 2,
    **message: Any,
) -> Reply:
    """Return an answer, with events for a client that asks for a stream.

    Events: the role, each text in `pieces`, the reason of the end, the usage, [DONE].
    """
    body = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "gpt-test-1",
        "choices": [
            {
                "index": 0,
                "finish_reason": finish_reason,
                "message": {"role": "assistant", "content": text, **message},
            }
        ],
        "usage": usage or {"prompt_tokens": 12, "completion_tokens": 5, "total_tokens": 17},
    }
    return Reply(200, body, {"x-request-id": "req_1"}, events=tuple(_events(body, pieces)))


def event(data: dict[str, Any]) -> str:
    """Return a server-sent event."""
    return f"data: {json.dumps(data, ensure_ascii=False)}\n\n"


def error_event(kind: str, text: str = "no", code: Any = None) -> str:
    """Return the event that breaks off a stream."""
    return event({"error": {"message": text, "type": kind, "param": None, "code": code}})


def error(status: int, text: str = "no", **headers: str) -> Reply:
    """Return a refusal; `retry_after="3"` is the header `retry-after: 3`."""
    body = {"error": {"message": text, "type": "x", "code": None}}
    return Reply(status, body, {k.replace("_", "-"): v for k, v in headers.items()})


def _events(body: dict[str, Any], pieces: int) -> list[str]:
    (choice,) = body["choices"]
    deltas = [{"role": "assistant", "content": "", "refusal": None}]
    for part in ("reasoning", "reasoning_content", "content", "refusal"):
        text = choice["message"].get(part) or ""
        deltas += [{part: piece} for piece in split(text, pieces)]
    events = [_chunk(body, delta, None) for delta in deltas]
    events.append(_chunk(body, {}, choice["finish_reason"]))
    last = {**body, "object": "chat.completion.chunk", "choices": []}
    return [*events, event(last), DONE]


def _chunk(body: dict[str, Any], delta: dict[str, Any], reason: str | None) -> str:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
    chunk = {**body, "object": "chat.completion.chunk", "choices": [choice], "usage": None}
    return event(chunk)
