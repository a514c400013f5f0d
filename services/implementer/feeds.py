"""What open streams wait on: notices of what was committed, and reads that they share.

`streams.py` follows a feed per batch, search or log. However many clients watch the same one, a
change costs one read, and as long as nothing changes nothing is read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, TypeVar

from assay.storage.notices import Notifier

Found = TypeVar("Found")
#: Changes that follow one another so soon are read together, in seconds.
GATHER_SECONDS = 0.05
#: A feed is read so often without a notice, in seconds: while notices arrive, and while they do
#: not (a database or a pooler that is away).
LIVE_SECONDS, DEAF_SECONDS = 30.0, 1.0


class Feed:
    """What the streams of one event loop that show the same thing share. Used in that loop alone.

    A change raises `version`. A stream takes the version, reads, and waits until it has changed,
    so that no change between its reading and its waiting is missed.
    """

    def __init__(self, notifier: Notifier) -> None:
        self._notifier = notifier
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()
        self._reads: dict[tuple[int, int], asyncio.Future[Any]] = {}
        self._due: asyncio.TimerHandle | None = None
        self._turned_at = self._loop.time()
        self._keys: set[str] = set()
        self._subscriptions = ExitStack()
        self.version = 0
        self.streams = 0

    def also(self, key: str) -> bool:
        """Have notices of this key change the feed. Whether they did not yet."""
        if key in self._keys:
            return False
        self._keys.add(key)
        self._subscriptions.enter_context(self._notifier.subscribe(key, self._heard))
        return True

    def close(self) -> None:
        """Give up the subscriptions."""
        self._subscriptions.close()
        if self._due is not None:
            self._due.cancel()

    def _heard(self) -> None:
        """A notice, in any thread."""
        with suppress(RuntimeError):  # the loop was closed, and its streams with it
            self._loop.call_soon_threadsafe(self._ring)

    def _ring(self) -> None:
        if self._due is None:
            wait = self._turned_at + GATHER_SECONDS - self._loop.time()
            self._due = self._loop.call_later(max(0.0, wait), self._turn)

    def _turn(self) -> None:
        if self._due is not None:
            self._due.cancel()
        self._due, self._turned_at = None, self._loop.time()
        self.version += 1
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def read(self, start: int, reading: Callable[[int], Found]) -> Found:
        """Return `reading(start)`, made in a thread. Streams that ask for the same at the same
        version while it is made share it."""
        asked = (self.version, start)
        made = self._reads.get(asked)
        if made is None:
            made = asyncio.ensure_future(asyncio.to_thread(reading, start))
            self._reads[asked] = made
            made.add_done_callback(lambda done: self._forget(asked, done))
        found: Found = await asyncio.shield(made)  # a client that leaves takes it from nobody
        return found

    def _forget(self, asked: tuple[int, int], done: asyncio.Future[Any]) -> None:
        del self._reads[asked]
        if not done.cancelled():
            done.exception()  # also if everybody who asked has left

    async def changed(self, version: int, seconds: float) -> None:
        """Wait until there may be more than at this version, at most so long.

        After long without a notice, the first stream that finds so has all of them read.
        """
        patience = LIVE_SECONDS if self._notifier.is_live else DEAF_SECONDS
        if version != self.version:
            return
        rest = max(0.0, self._turned_at + patience - self._loop.time())
        try:
            await asyncio.wait_for(self._news.wait(), min(seconds, rest))
        except TimeoutError:
            if version == self.version and self._loop.time() >= self._turned_at + patience:
                self._turn()


class Feeds:
    """The feeds that have streams."""

    def __init__(self, notifier: Notifier) -> None:
        self._notifier = notifier
        self._feeds: dict[tuple[asyncio.AbstractEventLoop, str], Feed] = {}

    @contextmanager
    def follow(self, name: str, key: str) -> Iterator[Feed]:
        """The feed of that name, for as long as the block runs; changed by notices of `key`."""
        place = (asyncio.get_running_loop(), name)
        feed = self._feeds.get(place)
        if feed is None:
            feed = self._feeds[place] = Feed(self._notifier)
            feed.also(key)
        feed.streams += 1
        try:
            yield feed
        finally:
            feed.streams -= 1
            if not feed.streams:
                del self._feeds[place]
                feed.close()
