"""The scripted author: an HTTP server that answers with the texts of the cases. It is no LLM.

It speaks OpenAI's chat completions wire format, streamed, so that the service asks it as it asks
a model. Which case is meant stands in the idea's last line, `(case <name>)`; the feedback is the
last message of the user, if it is not the first one.
"""

from __future__ import annotations

import json
import re
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from benchmarks.execution_rate.corpus import Case

NAME = "scripted-author"
_CASE = re.compile(r"^\(case ([a-z]+/[a-z0-9-]+)\)$", re.MULTILINE)
#: Characters of a piece of an answer.
_PIECE = 400


class UnknownCase(Exception):
    """A request that is about no case of the author's."""


def idea_of(case: Case) -> str:
    """A case's idea as it is submitted."""
    return f"{case.idea}\n(case {case.name})"


class Author:
    """Plays the authors of cases, and counts how often each was asked."""

    def __init__(self, cases: Iterable[Case]) -> None:
        self._cases = {case.name: case for case in cases}
        self._lock = threading.Lock()
        self.asked: Counter[str] = Counter()
        self.url = ""

    @property
    def executor(self) -> str:
        """What a batch names to be implemented by it."""
        return f"openai:{NAME}@{self.url}"

    def answer(self, messages: list[dict[str, str]]) -> str:
        """The answer to a conversation.

        Raises:
            UnknownCase: it is about none of the cases.
        """
        said = [message["content"] for message in messages if message["role"] == "user"]
        found = _CASE.findall(said[0]) if said else []
        if not found or found[-1] not in self._cases:
            raise UnknownCase(f"no case of the scripted author: {found}")
        case = self._cases[found[-1]]
        with self._lock:
            self.asked[case.name] += 1
        return case.reply(said[-1] if len(said) > 1 else "")


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    author: Author

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        try:
            text = self.author.answer(asked["messages"])
        except UnknownCase as error:
            self._refuse(str(error))
        else:
            self._stream(text)

    def _refuse(self, why: str) -> None:
        body = json.dumps({"error": {"type": "invalid_request_error", "message": why}}).encode()
        self.send_response(400)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _stream(self, text: str) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream; charset=utf-8")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        try:
            for event in _events(text):
                data = f"data: {event}\n\n".encode()
                self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
            self.wfile.write(b"0\r\n\r\n")
        except ConnectionError:  # whoever asked does not want to know any more
            self.close_connection = True

    def log_message(self, *args: Any) -> None:
        return


def _events(text: str) -> Iterator[str]:
    pieces = [text[at : at + _PIECE] for at in range(0, len(text), _PIECE)]
    deltas: list[dict[str, str]] = [{"role": "assistant", "content": ""}]
    deltas += [{"content": piece} for piece in pieces]
    for delta in deltas:
        yield _chunk(delta, None)
    yield _chunk({}, "stop")
    yield "[DONE]"


def _chunk(delta: dict[str, str], reason: str | None) -> str:
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    kind = "chat.completion.chunk"
    return json.dumps({"id": NAME, "object": kind, "model": NAME, "choices": [choice]})


@contextmanager
def serve(cases: Iterable[Case]) -> Iterator[Author]:
    """The author of the cases, on a free port of this machine."""
    author = Author(cases)
    handler = type("Handler", (_Handler,), {"author": author})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    author.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    try:
        yield author
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
