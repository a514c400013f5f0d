"""A model behind HTTP that streams, takes its time, and remembers who asked what and when.

Its answers follow from a seed, the idea and how often the answer was revised, whoever asks and
however often: so which ideas come to a codebase is known beforehand.
"""

from __future__ import annotations

import random
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from json import loads
from typing import Any

from assay.llm import Usage
from tests.llm import openai_server

#: Which revision of an answer fits first, of so many ideas in a hundred; of the rest none does.
FITS = {0: 60, 1: 27, 2: 8}
SECONDS = 0.1, 0.4  # from the first to the last piece of an answer
_STEP = re.compile(r"Take steps of ([\d.]+)\.\n")
_TRY = re.compile(r"^Try (\d+)\.")
_DIFF = "```diff\n--- a/search.py\n+++ b/search.py\n@@ -1,1 +1,1 @@\n-STEP = {}\n+STEP = {}\n```"


@dataclass(frozen=True)
class Plan:
    """What a seed says of ideas; one is named by its size of step."""

    seed: int

    def fits_at(self, idea: str) -> int | None:
        """The first revision whose diff applies; None if no revision's does."""
        drawn = random.Random(f"{self.seed} {idea}").uniform(0, 100)
        for revision, share in FITS.items():
            drawn -= share
            if drawn < 0:
                return revision
        return None

    def answer(self, idea: str, revision: int) -> tuple[str, str]:
        """The answer, and the reason why it ends."""
        fits = self.fits_at(idea)
        good = _DIFF.format("0.6", idea)
        if fits is not None and revision >= fits:
            return f"Try {revision}.\n\n{good}", "stop"
        wrong = [
            (_DIFF.format("99", idea), "stop"),
            (_DIFF.format("0.6", f"({idea}"), "stop"),
            ("I would rather not.", "stop"),
            (good, "length"),
        ]
        text, reason = random.Random(f"{self.seed} {idea} {revision}").choice(wrong)
        return f"Try {revision}.\n\n{text}", reason


@dataclass
class Asked:
    """A request: `answered` is when the last piece of its answer went out."""

    id: str
    idea: str
    revision: int
    at: datetime
    usage: Usage
    answered: datetime | None = None


@dataclass
class StreamingModel:
    """What it answers, and what it was asked."""

    plan: Plan
    port: int = 0
    asked: list[Asked] = field(default_factory=list)
    heard: threading.Event = field(default_factory=threading.Event)
    _times: Counter[tuple[str, int]] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}/v1"

    def hear(self, call_id: str, body: dict[str, Any]) -> tuple[Asked, list[str], float]:
        """Remember a request. The events of the answer, and the pause between two of them."""
        texts = [str(message["content"]) for message in body["messages"]]
        (idea,) = set(_STEP.findall(texts[1]))
        # A revision shows the answer that it is to mend, which says its number.
        tries = [_TRY.match(text) for text in texts[2:]]
        revision = next((int(found[1]) + 1 for found in tries if found), 0)
        chance = random.Random(f"usage {self.plan.seed} {idea} {revision}")
        tokens = sum(map(len, texts)) // 4
        usage = Usage(tokens - tokens // 2, chance.randint(200, 900), tokens // 2)
        asked = Asked(call_id, idea, revision, datetime.now(UTC), usage)
        with self._lock:
            self.asked.append(asked)
            self._times[idea, revision] += 1
            time_ = self._times[idea, revision]
        self.heard.set()
        slow = random.Random(f"seconds {self.plan.seed} {idea} {revision} {time_}")
        events = self._events(asked)
        return asked, events, slow.uniform(*SECONDS) / (len(events) - 1)

    def _events(self, asked: Asked) -> list[str]:
        text, reason = self.plan.answer(asked.idea, asked.revision)
        usage = {
            "prompt_tokens": asked.usage.all_input_tokens,
            "completion_tokens": asked.usage.output_tokens,
            "prompt_tokens_details": {"cached_tokens": asked.usage.cached_input_tokens},
        }
        reply = openai_server.completion(text, finish_reason=reason, usage=usage)
        return list(reply.events or ())


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    model: StreamingModel

    def do_POST(self) -> None:
        size = int(self.headers["Content-Length"])
        body = self.rfile.read(size)
        if len(body) < size:  # the caller was killed while it sent this
            raise ConnectionResetError
        asked, events, pause = self.model.hear(self.headers["X-Client-Request-Id"], loads(body))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for number, event in enumerate(events):
            time.sleep(pause if number else 0)
            data = event.encode()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.write(b"0\r\n\r\n")
        asked.answered = datetime.now(UTC)

    def handle(self) -> None:
        try:
            super().handle()
        except ConnectionError:  # the caller was killed
            self.close_connection = True

    def finish(self) -> None:
        try:
            super().finish()
        except ConnectionError:
            self.close_connection = True

    def log_message(self, *_: object) -> None:
        """Nothing: a test's output is its own."""


@contextmanager
def serve(seed: int) -> Iterator[StreamingModel]:
    """Such a model on a free port."""
    model = StreamingModel(Plan(seed))
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"model": model}))
    server.daemon_threads = True
    model.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield model
    finally:
        server.shutdown()
        thread.join(10)
        server.server_close()
