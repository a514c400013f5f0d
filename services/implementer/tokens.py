"""Which worker a token belongs to."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from sqlalchemy.orm import Session

from assay.storage import workers
from assay.storage.database import Database

#: So long another process of the API may take a token for good that was replaced.
KEEP_SECONDS = 5.0


class WorkerTokens:
    """Looks tokens up, and remembers the good ones for a few seconds: a worker that reports a lot
    is not asked of the database with every report.

    `by_token` reads the worker of a token; `clock` says how old an answer is.
    """

    def __init__(
        self,
        db: Database,
        *,
        by_token: Callable[[Session, str], str | None] = workers.by_token,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._db = db
        self._by_token = by_token
        self._clock = clock
        self._lock = threading.Lock()
        self._known: dict[str, tuple[str, float]] = {}
        self._changes = 0

    def remembered(self, token: str) -> str | None:
        """The worker of a token that was good a moment ago."""
        found = self._known.get(token)
        return found[0] if found is not None and self._clock() < found[1] else None

    def look_up(self, token: str) -> str | None:
        """The worker of a token, from the database.

        Raises:
            Unavailable: the database cannot be used.
        """
        until, changes = self._clock() + KEEP_SECONDS, self._changes  # before it is read
        with self._db.read() as session:
            worker = self._by_token(session, token)
        with self._lock:
            now = self._clock()
            self._known = {k: v for k, v in self._known.items() if v[1] > now and k != token}
            if worker is not None and changes == self._changes:
                self._known[token] = (worker, until)
        return worker

    def forget(self) -> None:
        """Tokens have changed."""
        with self._lock:
            self._changes += 1
            self._known = {}
