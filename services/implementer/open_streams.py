"""The number of open streams, which `streams.py` bounds: each holds a connection and a task."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager

from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from assay.domain.errors import TooMany


class OpenStreams:
    """Counts open streams, `per_client` at most of one client and `in_all` together."""

    def __init__(self, per_client: int, in_all: int) -> None:
        self._per_client = per_client
        self._in_all = in_all
        self._lock = threading.Lock()
        self._open: Counter[str] = Counter()

    @property
    def total(self) -> int:
        """Number of open streams."""
        with self._lock:
            return self._open.total()

    @contextmanager
    def one(self, client: str) -> Iterator[None]:
        """Count a stream of that client for as long as the block runs.

        Raises:
            TooMany: the client, or all together, have as many open as they may.
        """
        with self._lock:
            self._check(client)
            self._open[client] += 1
        try:
            yield
        finally:
            with self._lock:
                self._open[client] -= 1
                if not self._open[client]:
                    del self._open[client]

    def _check(self, client: str) -> None:
        if self._open[client] >= self._per_client:
            most, whose = self._per_client, "you have"
        elif self._open.total() >= self._in_all:
            most, whose = self._in_all, "all clients together have"
        else:
            return
        raise TooMany(
            f"{whose} {most} streams open, which is the limit; close one, or poll without "
            "`Accept: text/event-stream`",
            code="too_many_streams",
        )


class EventStream(StreamingResponse):
    """A stream that no proxy should buffer, counted while it is open.

    It is counted here and not in the generator of its lines: that is never entered, and so never
    left, if the client goes away before the first line.
    """

    media_type = "text/event-stream"

    def __init__(
        self, lines: AsyncGenerator[str, None], streams: OpenStreams, client: str
    ) -> None:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(lines, headers=headers)
        self._lines = lines
        self._streams = streams
        self._client = client

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._streams.one(self._client):
            try:
                await super().__call__(scope, receive, send)
            finally:
                await self._lines.aclose()  # a client may leave between two lines
