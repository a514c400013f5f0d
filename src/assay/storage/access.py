"""Keeps the broker's users in step with the workers in the database."""

from __future__ import annotations

import logging
import threading
import time

from sqlalchemy import select

from assay.broker.acl import AccessList
from assay.domain.errors import AssayError
from assay.storage import schema
from assay.storage.database import Database

log = logging.getLogger(__name__)


class AccessKeeper:
    """Sets users when it is told that workers changed, when Redis was started anew, and on a
    clock."""

    def __init__(
        self,
        db: Database,
        access: AccessList,
        *,
        check_seconds: float = 5.0,
        apply_seconds: float = 60.0,
    ) -> None:
        self._db = db
        self._access = access
        self._check_seconds = check_seconds
        self._apply_seconds = apply_seconds
        self._changed = threading.Event()
        self._stopping = threading.Event()
        self._incarnation: str | None = None
        self._applied = float("-inf")
        self._failed = False

    def poke(self) -> None:
        """A worker was admitted, or got another token."""
        self._changed.set()

    def stop(self) -> None:
        """End `run`."""
        self._stopping.set()
        self._changed.set()

    def run(self) -> None:
        """Keep users in step until stopped."""
        while not self._stopping.is_set():
            try:
                self.step()
            except AssayError as error:
                if not self._failed:
                    log.warning("the broker's users are not up to date: %s", error)
                self._failed = True
            self._changed.wait(self._check_seconds)
        self._access.close()

    def step(self) -> int:
        """Look once; returns how many users changed.

        Raises:
            Unavailable: the database or the broker cannot be used.
        """
        poked = self._changed.is_set()
        self._changed.clear()
        try:
            incarnation = self._access.incarnation()
            due = time.monotonic() - self._applied >= self._apply_seconds
            if not (poked or due or incarnation != self._incarnation):
                return 0
            changed = self._access.apply(self._workers())
        except AssayError:
            self._incarnation = None  # whatever it was told, it may not know any more
            raise
        if changed or self._failed:
            log.info("the broker knows its workers: %d users changed", changed)
        self._incarnation, self._applied, self._failed = incarnation, time.monotonic(), False
        return changed

    def probe(self) -> None:
        """Raise `Unavailable` unless the broker answers its administrator."""
        self._access.incarnation()

    def _workers(self) -> dict[str, str]:
        with self._db.read() as session:
            rows = session.execute(select(schema.Worker.id, schema.Worker.token_hash)).all()
        return {row.id: row.token_hash for row in rows}
