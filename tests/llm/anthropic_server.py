"""Replies in the Anthropic Messages wire format, for `http_server.serve`."""

from typing import Any

from tests.llm.http_server import Reply


def message(
    text: str = "Hello.",
    *,
    thinking: str | None = None,
    stop_reason: str = "end_turn",
    usage: dict[str, Any] | None = None,
) -> Reply:
    content: list[dict[str, Any]] = []
    if thinking is not None:
        content.append({"type": "thinking", "thinking": thinking, "signature": "c2ln"})
        content.append({"type": "redacted_thinking", "data": "xx"})
    content.append({"type": "text", "text": text})
    body = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-test-1",
        "content": content,
        "stop_reason": stop_reason,
        "stop_sequence": None,
        "usage": usage or {"input_tokens": 12, "output_tokens": 5},
    }
    return Reply(200, body, {"request-id": "req_1"})


def error(status: int, kind: str, text: str = "no", **headers: str) -> Reply:
    body = {"type": "error", "error": {"type": kind, "message": text}, "request_id": "req_9"}
    return Reply(status, body, {k.replace("_", "-"): v for k, v in headers.items()})
