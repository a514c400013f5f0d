"""A model behind HTTP that counts its calls, and keeps callers waiting when it is told to."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_WAIT_SECONDS = 60.0


class Model:
    """Speaks OpenAI's chat completions; answers with the diff that the idea spells out."""

    def __init__(self) -> None:
        self.calls = 0
        self.answered = 0
        self.may_answer = threading.Event()
        self.may_answer.set()
        self._lock = threading.Lock()
        self.port = 0
        self._test = 0

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def name(self) -> str:
        """What a batch names as its executor; another one for every test."""
        return f"openai:counting-{self._test}"

    def begin(self) -> None:
        """Count from zero, under a new name."""
        self._test += 1
        self.calls = self.answered = 0
        self.may_answer.set()

    def called(self) -> int:
        """Count a call; returns its number."""
        with self._lock:
            self.calls += 1
            return self.calls


@contextmanager
def serve() -> Iterator[Model]:
    """A model on a free port."""
    model = Model()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            number = model.called()
            model.may_answer.wait(_WAIT_SECONDS)
            answer = json.dumps(_completion(number, body)).encode()
            try:
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)
            except OSError:  # the caller was killed
                return
            model.answered += 1

        def log_message(self, *_: object) -> None:
            """Nothing: a test's output is its own."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    model.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield model
    finally:
        model.may_answer.set()
        server.shutdown()
        server.server_close()
        thread.join(10)


def _completion(number: int, body: dict[str, Any]) -> dict[str, Any]:
    asked = "\n".join(str(message["content"]) for message in body["messages"])
    step = asked.rpartition("Take steps of ")[2].split("\n")[0].rstrip(". ")
    diff = (
        "```diff\n--- a/search.py\n+++ b/search.py\n@@ -1,1 +1,1 @@\n"
        f"-STEP = 0.6\n+STEP = {step}\n```"
    )
    return {
        "id": f"call-{number}",
        "object": "chat.completion",
        "created": 1,
        "model": "counting",
        "choices": [
            {
                "index": 0,
                "finish_reason": "stop",
                "message": {"role": "assistant", "content": diff},
            }
        ],
        "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
    }
