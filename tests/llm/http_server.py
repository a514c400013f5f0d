"""A local HTTP server that answers with scripted responses and keeps what it was asked."""

from __future__ import annotations

import contextlib
import json
import select
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal


@dataclass(frozen=True)
class Reply:
    """One scripted answer; `drop` closes the connection without one.

    With `events` (server-sent events as they are on the wire) a request for a stream gets those;
    all others get `body`. After the last event the stream ends as it should, the connection is
    closed instead, or the server waits until the client leaves.
    """

    status: int = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    drop: bool = False
    events: tuple[str, ...] | None = None
    then: Literal["end", "close", "wait"] = "end"

    def plain(self) -> Reply:
        """The same from a server that does not stream."""
        return replace(self, events=None)

    def until(self, count: int, then: Literal["end", "close", "wait"]) -> Reply:
        """The same, with the first events only."""
        return replace(self, events=(self.events or ())[:count], then=then)

    def put(self, at: int, event: str) -> Reply:
        """The same, with one more event."""
        events = list(self.events or ())
        events.insert(at, event)
        return replace(self, events=tuple(events))


@dataclass
class Script:
    """What the server will say (in order) and what it heard. `left`: a client went away.

    Whoever asks more often is refused for good.
    """

    url: str
    replies: list[Reply]
    paths: list[str] = field(default_factory=list)
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    clients: set[tuple[str, int]] = field(default_factory=set)
    left: threading.Event = field(default_factory=threading.Event)


# For good, so that whoever asks more often than scripted does not go on.
_TOO_MANY = Reply(400, {"error": {"type": "invalid_request_error", "message": "not scripted"}})


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    script: Script

    def do_POST(self) -> None:
        size = int(self.headers["content-length"])
        asked = json.loads(self.rfile.read(size))
        self.script.requests.append(asked)
        self.script.paths.append(self.path)
        self.script.headers.append({k.lower(): v for k, v in self.headers.items()})
        self.script.clients.add(self.client_address)
        reply = self.script.replies.pop(0) if self.script.replies else _TOO_MANY
        if reply.drop:
            self.close_connection = True
        elif reply.events is not None and asked.get("stream"):
            try:
                self._stream(reply, reply.events)
            except ConnectionError:
                self.close_connection = True
                self.script.left.set()
        else:
            text = reply.body if isinstance(reply.body, str) else json.dumps(reply.body)
            self._head(reply, {"content-length": str(len(text.encode()))}, "application/json")
            self.wfile.write(text.encode())

    def _head(self, reply: Reply, more: dict[str, str], kind: str) -> None:
        self.send_response(reply.status)
        for name, value in {"content-type": kind, **reply.headers, **more}.items():
            self.send_header(name, value)
        self.end_headers()

    def _stream(self, reply: Reply, events: tuple[str, ...]) -> None:
        self._head(reply, {"transfer-encoding": "chunked"}, "text/event-stream; charset=utf-8")
        for event in events:
            data = event.encode()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        if reply.then == "end":
            self.wfile.write(b"0\r\n\r\n")
            return
        self.close_connection = True
        if reply.then == "wait" and select.select([self.connection], [], [], 30.0)[0]:
            assert self.connection.recv(1) == b""
            self.script.left.set()

    def log_message(self, *args: Any) -> None:
        return


@contextlib.contextmanager
def serve(*replies: Reply) -> Iterator[Script]:
    """Serve the replies, one per request, on a free local port."""
    script = Script("", list(replies))
    handler = type("Handler", (_Handler,), {"script": script})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    script.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield script
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
