"""The provider server: records every request and sends what one function answers to it."""

from __future__ import annotations

import json
import select
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from tests.support.local_server import LocalHandler, LocalServer
from tests.support.provider import anthropic, openai
from tests.support.provider.reply import Reply

#: How long a held request waits for its release, and a stream that does not end for its client.
PATIENCE_S = 60.0
_FORMATS: dict[str, Callable[[str], Reply]] = {
    openai.PATH: openai.completion,
    anthropic.PATH: anthropic.message,
}


@dataclass(eq=False)
class Request:
    """A request as it came in; the names of its headers are in lower case."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    client: tuple[str, int]
    asked_at: datetime
    answered_at: datetime | None = None
    """When the last byte of a complete response was sent."""
    client_left: bool = False
    """Whether the client closed the connection before that."""

    @property
    def id(self) -> str:
        """The id that the client gave this try."""
        return self.headers["x-client-request-id"]

    def texts(self, *roles: str) -> list[str]:
        """Return the texts of the messages in order, of all roles if none is named."""
        messages = self.body["messages"]
        return [_text(m["content"]) for m in messages if not roles or m["role"] in roles]


#: Called for one request at a time. A text is sent as a successful answer, in the wire format of
#: the request's path.
Answer = Callable[[Request], Reply | str]


class ProviderServer(LocalServer):
    """A provider of models whose answers a function gives."""

    def __init__(self, answer: Answer) -> None:
        self.requests: list[Request] = []
        self.requested = threading.Event()
        """Set with every request; clear it to wait for the next."""
        self.client_left = threading.Event()
        """Set when a client closes its connection before the response is complete."""
        self._answer = answer
        self._lock = threading.Lock()
        self._may_respond = threading.Event()
        self._may_respond.set()
        served_by = self

        class Handler(_Handler):
            provider = served_by

        super().__init__(Handler)

    @property
    def openai_url(self) -> str:
        """What OPENAI_BASE_URL is set to; ANTHROPIC_BASE_URL is set to `url`."""
        return f"{self.url}/v1"

    def hold(self) -> None:
        """Keep clients waiting for their responses until `release`."""
        self._may_respond.clear()

    def release(self) -> None:
        self._may_respond.set()

    def close(self) -> None:
        self.release()
        super().close()

    def reply_to(self, request: Request) -> Reply:
        """Record a request; return the reply to it as soon as nothing holds it."""
        with self._lock:
            self.requests.append(request)
            answer = self._answer(request)
            self.requested.set()
        self._may_respond.wait(PATIENCE_S)
        return _FORMATS[request.path](answer) if isinstance(answer, str) else answer


def serve(*replies: Reply) -> ProviderServer:
    """Start a provider that sends these replies, one per request, and refuses any request more."""
    left = iter(replies)
    # Not an error that passes: a client would try again.
    too_many = openai.error(400, "not scripted")
    return ProviderServer(lambda request: next(left, too_many))


def _text(content: str | list[dict[str, Any]]) -> str:
    """Return the text of a message, which both formats may give in blocks."""
    return content if isinstance(content, str) else "".join(b.get("text", "") for b in content)


class _Handler(LocalHandler):
    provider: ProviderServer

    def do_POST(self) -> None:
        size = int(self.headers["content-length"])
        data = self.rfile.read(size)
        if len(data) < size:
            raise ConnectionAbortedError("the client left before its request was complete")
        if self.path not in _FORMATS:
            self.send_error(404)
            return
        request = Request(
            self.path,
            {name.lower(): value for name, value in self.headers.items()},
            json.loads(data),
            self.client_address,
            datetime.now(UTC),
        )
        reply = self.provider.reply_to(request)
        try:
            if self._send(reply, streams=bool(request.body.get("stream"))):
                request.answered_at = datetime.now(UTC)
            else:
                self.close_connection = True
        except ConnectionError:
            self.close_connection = True
            request.client_left = True
            self.provider.client_left.set()

    def _send(self, reply: Reply, *, streams: bool) -> bool:
        """Return whether the response is complete."""
        self._pause(reply.delay_s)
        if reply.drop:
            return False
        if reply.events is not None and streams:
            return self._stream(reply, reply.events)
        text = reply.body if isinstance(reply.body, str) else json.dumps(reply.body)
        data = text.encode()
        self._head(reply, {"content-length": str(len(data))}, "application/json")
        self.wfile.write(data)
        return True

    def _head(self, reply: Reply, more: dict[str, str], kind: str) -> None:
        self.send_response(reply.status)
        for name, value in {"content-type": kind, **reply.headers, **more}.items():
            self.send_header(name, value)
        self.end_headers()

    def _stream(self, reply: Reply, events: tuple[str, ...]) -> bool:
        self._head(reply, {"transfer-encoding": "chunked"}, "text/event-stream; charset=utf-8")
        for number, event in enumerate(events):
            self._pause(reply.pause_s if number else 0)
            data = event.encode()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        if reply.then == "end":
            self.wfile.write(b"0\r\n\r\n")
        elif reply.then == "wait":
            self._pause(PATIENCE_S)
        return reply.then == "end"

    def _pause(self, seconds: float) -> None:
        """Let time pass. Raises ConnectionError when the client leaves."""
        if seconds and select.select([self.connection], [], [], seconds)[0]:
            assert not self.connection.recv(1, socket.MSG_PEEK), "a request during a response"
            raise ConnectionAbortedError("the client left")
