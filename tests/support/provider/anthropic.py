"""Replies in the Anthropic Messages wire format."""

from __future__ import annotations

import json
from typing import Any

from tests.support.provider.reply import Reply, split

PATH = "/v1/messages"
_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}


def message(
    text: str = "Hello.",
    *,
    thinking: str | None = None,
    stop_reason: str = "end_turn",
    usage: dict[str, Any] | None = None,
) -> Reply:
    """Return an answer, with events for a client that asks for a stream.

    Events: message_start, then for each block its start, (a ping after the first,) deltas and
    stop, then message_delta and message_stop.
    """
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
    return Reply(200, body, {"request-id": "req_1"}, events=tuple(_events(body)))


def event(kind: str, **data: Any) -> str:
    """Return a server-sent event."""
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **data}, ensure_ascii=False)}\n\n"


def error_event(kind: str, text: str = "no") -> str:
    """Return the event that breaks off a stream."""
    return event("error", error={"type": kind, "message": text, "details": None}, request_id="r")


def error(status: int, text: str = "no", **headers: str) -> Reply:
    """Return a refusal; `retry_after="3"` is the header `retry-after: 3`."""
    kind = _KINDS.get(status, "api_error" if status >= 500 else "invalid_request_error")
    body = {"type": "error", "error": {"type": kind, "message": text}, "request_id": "req_9"}
    return Reply(status, body, {k.replace("_", "-"): v for k, v in headers.items()})


def _events(body: dict[str, Any]) -> list[str]:
    usage = body["usage"]
    first = {**usage, "output_tokens": min(1, usage["output_tokens"]), "service_tier": "standard"}
    empty = {**body, "content": [], "stop_reason": None, "usage": first}
    events = [event("message_start", message=empty)]
    for index, block in enumerate(body["content"]):
        kind = block["type"]
        start = {**block, kind: "", "signature": ""} if kind == "thinking" else block
        start = {**block, "text": ""} if kind == "text" else start
        events.append(event("content_block_start", index=index, content_block=start))
        if index == 0:
            events.append(event("ping"))
        events += [
            event("content_block_delta", index=index, delta=delta) for delta in _deltas(block)
        ]
        events.append(event("content_block_stop", index=index))
    end = {"stop_reason": body["stop_reason"], "stop_sequence": None, "stop_details": None}
    last = {name: count for name, count in usage.items() if isinstance(count, int)}
    events.append(event("message_delta", delta=end, usage=last))
    return [*events, event("message_stop")]


def _deltas(block: dict[str, Any]) -> list[dict[str, Any]]:
    kind = block["type"]
    if kind == "redacted_thinking":
        return []
    deltas = [{"type": f"{kind}_delta", kind: piece} for piece in split(block[kind], 2)]
    if kind == "thinking":
        deltas.append({"type": "signature_delta", "signature": block["signature"]})
    return deltas
