"""A receiver of webhooks on this machine, whose answers a test decides."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.support.local_server import LocalHandler, LocalServer

#: In place of a status: no answer until the receiver closes.
HANG = 0


@dataclass(frozen=True)
class Received:
    """A request to the receiver."""

    path: str
    headers: dict[str, str]
    content: bytes

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    @property
    def body(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.content)
        return found


@dataclass
class Receiver:
    """What came in. `answers` are the statuses of the next answers, then 204 for ever."""

    url: str
    answers: list[int] = field(default_factory=list)
    received: list[Received] = field(default_factory=list)
    closing: threading.Event = field(default_factory=threading.Event)

    @property
    def types(self) -> list[str]:
        return [each.body["type"] for each in self.received]


@contextmanager
def receiver(*answers: int) -> Iterator[Receiver]:
    """Yield a receiver that listens."""
    lock = threading.Lock()

    class Handler(LocalHandler):
        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers["Content-Length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            with lock:
                made.received.append(Received(self.path, headers, content))
                status = made.answers.pop(0) if made.answers else 204
            if status == HANG:
                made.closing.wait(60)
                self.close_connection = True
                return
            self.send_response(status)
            self.send_header("Location", f"{made.url}/elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()

    with LocalServer(Handler) as server:
        made = Receiver(server.url, list(answers))
        try:
            yield made
        finally:
            made.closing.set()
