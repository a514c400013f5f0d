"""Answers of the fake service, and a way to serve them over real HTTP."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx2
from pydantic import BaseModel

from tests.support.local_server import LocalHandler, LocalServer


def ok(body: Any, status: int = 200) -> httpx2.Response:
    """A JSON answer."""
    plain = body.model_dump(mode="json") if isinstance(body, BaseModel) else body
    return httpx2.Response(status, json=plain)


def problem(
    status: int, code: str, detail: str = "", headers: dict[str, str] | None = None
) -> httpx2.Response:
    """An `application/problem+json` answer."""
    body = {"title": code, "status": status, "detail": detail, "code": code, "request_id": "req_1"}
    kind = {"content-type": "application/problem+json"}
    return httpx2.Response(
        status, content=json.dumps(body).encode(), headers={**kind, **(headers or {})}
    )


def page(items: Any, request: httpx2.Request) -> httpx2.Response:
    """Pages of at most three, so that clients have to walk."""
    listed = list(items)
    start = int(request.url.params.get("cursor", 0))
    size = min(3, int(request.url.params.get("limit", 3)))
    more = start + size < len(listed)
    return ok(
        {
            "object": "list",
            "data": listed[start : start + size],
            "next_cursor": str(start + size) if more else None,
        }
    )


def event_stream(events: list[dict[str, Any]]) -> Iterator[bytes]:
    yield b": hello\n\n"
    for event in events:
        # U+2028 is a line separator to some, and text to SSE and JSON.
        data = json.dumps({**event, "data": {**event["data"], "note": "a\u2028b"}},
                          ensure_ascii=False)  # fmt: skip
        yield f"id: {event['id']}\nevent: {event['type']}\ndata: {data}\n\n".encode()


@contextmanager
def serve(service: Callable[[httpx2.Request], httpx2.Response]) -> Iterator[str]:
    """Serve it over real HTTP on loopback; yields the base URL."""

    class Handler(LocalHandler):
        def _answer(self) -> None:
            length = int(self.headers.get("content-length", 0))
            request = httpx2.Request(
                self.command,
                f"http://test{self.path}",
                headers=list(self.headers.items()),
                content=self.rfile.read(length),
            )
            response = service(request)
            self.send_response(response.status_code)
            for name, value in response.headers.items():
                if name not in ("transfer-encoding", "content-length", "connection"):
                    self.send_header(name, value)
            self.send_header("connection", "close")
            self.end_headers()
            for chunk in response.iter_bytes():
                self.wfile.write(chunk)
                self.wfile.flush()

        do_DELETE = do_GET = do_PATCH = do_POST = do_PUT = _answer

    with LocalServer(Handler) as server:
        yield server.url
