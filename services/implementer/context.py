"""What the API and the implement loop work with."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from sqlalchemy.orm import Session

from assay.environments.catalog import Catalog
from assay.storage import implementations
from assay.storage.database import Database
from assay.storage.funnel import BatchTally
from assay.storage.objects import ObjectStore
from assay.storage.outbox import has_posted
from services.implementer.earlier import EarlierIdeas
from services.implementer.feeds import Feeds
from services.implementer.open_streams import OpenStreams
from services.implementer.outcomes import BatchOutcome, FinishedBatches
from services.implementer.settings import ImplementerSettings
from services.implementer.tokens import WorkerTokens
from services.implementer.versions import Versions

#: For so long an object store that could be written is taken to be writable.
CHECK_SECONDS = 5.0


class Doorbells:
    """Wakes requests that wait for news of a worker. Missing a ring only costs time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[str, set[tuple[asyncio.AbstractEventLoop, asyncio.Event]]] = (
            defaultdict(set)
        )
        self._missed: set[str] = set()

    def ring(self, key: str) -> None:
        """Wake whoever waits for `key`, or the next one to wait. Callable from any thread."""
        with self._lock:
            waiting = self._waiting.pop(key, None)
            if not waiting:
                self._missed.add(key)
                return
        for loop, event in waiting:
            loop.call_soon_threadsafe(event.set)

    async def wait(self, key: str, seconds: float) -> bool:
        """Wait for a ring, at most so long. Whether it rang."""
        event, loop = asyncio.Event(), asyncio.get_running_loop()
        with self._lock:
            if key in self._missed:
                self._missed.discard(key)
                return True
            self._waiting[key].add((loop, event))
        try:
            await asyncio.wait_for(event.wait(), seconds)
        except TimeoutError:
            return False
        finally:
            with self._lock:
                self._waiting[key].discard((loop, event))
        return True


def _nobody() -> None:
    """Nobody in this process wants to know."""


@dataclass
class Context:
    """The parts of a running implementer."""

    db: Database
    store: ObjectStore
    catalog: Catalog
    settings: ImplementerSettings
    variables: Mapping[str, str] = field(default_factory=lambda: os.environ)
    doorbells: Doorbells = field(default_factory=Doorbells)
    on_commit: Callable[[], None] = _nobody
    #: Who implements ideas in this process. Two that live at once must not share a name.
    holder: str = implementations.LOCAL
    #: Called when a worker was admitted or has registered, so that the broker knows it.
    on_worker: Callable[[], None] = _nobody
    #: The worker that runs in this process, if one does. Nobody may take its token away.
    own_worker: str | None = None
    #: Parts this can do without for a while, by name; a probe raises `Unavailable`.
    probes: dict[str, Callable[[], None]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.environments = Versions(self.catalog, self.db, self.store)
        self.tokens = WorkerTokens(self.db)
        self._checked: tuple[ObjectStore | None, float] = (None, 0.0)
        self.streams = OpenStreams(self.settings.streams_per_client, self.settings.streams)
        self.earlier = EarlierIdeas()
        self.feeds = Feeds(self.db.notifier)
        self.finished: FinishedBatches[BatchOutcome] = FinishedBatches()
        self.tallies: FinishedBatches[BatchTally] = FinishedBatches()

    def check_store(self) -> None:
        """Raise `Unavailable` unless objects can be written.

        A check writes to disk, so one that succeeded holds for `CHECK_SECONDS`.
        """
        store, now = self.store, time.monotonic()
        checked, until = self._checked
        if checked is not store or now >= until:
            store.check()
            self._checked = (store, now + CHECK_SECONDS)

    @contextmanager
    def write(self) -> Iterator[Session]:
        """A write transaction; whoever relays messages is woken after the commit."""
        with self.db.write() as session:
            yield session
        if has_posted(session):
            self.on_commit()
