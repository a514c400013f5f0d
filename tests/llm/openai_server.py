"""Replies in OpenAI's chat completions wire format, for `http_server.serve`."""

from typing import Any

from tests.llm.http_server import Reply


def completion(
    text: str | None = "Hello.",
    *,
    finish_reason: str = "stop",
    usage: dict[str, Any] | None = None,
    **message: Any,
) -> Reply:
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
    return Reply(200, body, {"x-request-id": "req_1"})


def error(status: int, text: str = "no", **headers: str) -> Reply:
    body = {"error": {"message": text, "type": "x", "code": None}}
    return Reply(status, body, {k.replace("_", "-"): v for k, v in headers.items()})
