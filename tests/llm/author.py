"""A local server in OpenAI's wire format that answers by what it is asked, not in an order."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.llm import openai_server
from tests.support.local_server import LocalServer


@dataclass(frozen=True)
class Asked:
    """What a request asks. `number`: how often it was asked before."""

    first: str
    last: str
    revision: int
    number: int


@dataclass
class Author:
    """Answers with `answer(asked)`: the text and the seconds until it is there."""

    answer: Callable[[Asked], tuple[str, float]]
    url: str = ""
    asked: list[Asked] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    seen: Counter[str] = field(default_factory=Counter)

    def hear(self, body: dict[str, Any], request_id: str) -> Asked:
        """Note a request."""
        messages = [m["content"] for m in body["messages"] if m["role"] == "user"]
        with self.lock:
            key = json.dumps(body["messages"])
            asked = Asked(messages[0], messages[-1], len(messages) - 1, self.seen[key])
            self.seen[key] += 1
            self.asked.append(asked)
            self.ids.append(request_id)
        return asked


@contextlib.contextmanager
def author(answer: Callable[[Asked], tuple[str, float]]) -> Iterator[Author]:
    """Serve such answers on a free local port, streamed."""
    found = Author(answer)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            asked = found.hear(body, self.headers["x-client-request-id"])
            text, seconds = answer(asked)
            reply = openai_server.completion(text)
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.send_header("connection", "close")
            self.end_headers()
            assert reply.events is not None
            with contextlib.suppress(OSError):  # cancelled meanwhile
                for event in reply.events:
                    self.wfile.write(event.encode())
                    self.wfile.flush()
                    time.sleep(seconds / len(reply.events))

        def log_message(self, *args: Any) -> None:
            return

    server = LocalServer(Handler)
    found.url = f"{server.url}/v1"
    try:
        yield found
    finally:
        server.close()
