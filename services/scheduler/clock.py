"""The scheduler: on its clock it matches queued measurements to free resources.

One leader at a time, by a lease with an epoch in the database; every assignment is made in a
transaction that checks the epoch, so a leader that was paused cannot act on what it saw before.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from assay.domain.errors import AssayError, Fenced
from assay.domain.ids import new_id
from assay.domain.placement import place
from assay.storage import attempts, leader, measurements, workers
from assay.storage.database import Database
from services.scheduler.settings import SchedulerSettings
from services.scheduler.state import demands, supplies

log = logging.getLogger(__name__)


class Scheduler:
    """Ticks until it is stopped. `on_commit` is called after every assignment.

    `holder` names the leader's lease. Give a fixed name only where something else makes sure that
    no two live schedulers share it: a restart then need not wait for the old lease to expire.
    """

    def __init__(
        self,
        db: Database,
        settings: SchedulerSettings,
        on_commit: Callable[[], None],
        *,
        holder: str | None = None,
    ) -> None:
        self._db = db
        self._settings = settings
        self._on_commit = on_commit
        self._holder = holder or new_id("sch")
        self._epoch: int | None = None
        self._renew_at = 0.0
        self._wake = threading.Event()
        self._stopping = threading.Event()

    def wake(self) -> None:
        """Tick now: something was queued, or resources became free."""
        self._wake.set()

    def stop(self) -> None:
        """End `run` after the current tick."""
        self._stopping.set()
        self._wake.set()

    def run(self) -> None:
        """Tick on the clock and on news, until stopped."""
        while not self._stopping.is_set():
            self._wake.clear()
            try:
                self.tick()
            except Fenced as error:
                log.warning("no longer the leader: %s", error)
                self._epoch = None
            except AssayError as error:
                log.warning("this tick failed, the next may not: %s", error)
            self._wake.wait(self._settings.tick_seconds)
        if self._epoch is not None:
            leader.release(self._db, self._holder)

    def tick(self) -> int:
        """One round: renew the leadership, expire leases, place. Returns assignments made."""
        if not self._lead():
            return 0
        self._reconcile()
        return self._assign()

    def _lead(self) -> bool:
        if self._epoch is not None and time.monotonic() < self._renew_at:
            return True
        epoch = leader.acquire(self._db, self._holder, self._settings.leader_lease, self._epoch)
        self._renew_at = time.monotonic() + self._settings.leader_seconds / 3
        if epoch is not None and epoch != self._epoch:
            log.info("leading with epoch %d", epoch)
            self._grant_amnesty()
        self._epoch = epoch
        return epoch is not None

    def _grant_amnesty(self) -> None:
        """Whatever ran while nobody led gets one full lease before it may be called lost."""
        with self._db.write() as session:
            attempts.renew_all(session, self._db.now(session) + self._settings.lease)

    def _reconcile(self) -> None:
        """Lose silent workers, expire leases. On most ticks there is nothing to write."""
        with self._db.read() as session:
            now = self._db.now(session)
            silent = workers.any_silent(session, now - self._settings.lease)
            expired = attempts.any_expired(session, now)
        if silent:
            with self._db.write() as session:
                leader.check(self._db, session, self._epoch or 0)
                workers.lose_silent(session, now - self._settings.lease)
        if not expired:
            return
        with self._db.write() as session:
            leader.check(self._db, session, self._epoch or 0)
            lost = attempts.expire(self._db, session, now)
        log.warning("%d attempts lost: their leases ran out", lost)

    def _assign(self) -> int:
        with self._db.read() as session:
            free = supplies(session, self._db.now(session), self._settings.lease)
            free = [supply for supply in free if supply.cpus > 0]
            if not free:
                return 0
            waiting = demands(session, self._settings.queue_window, free)
        placements = place(waiting, free)
        if not placements:
            return 0
        made = 0
        with self._db.write() as session:
            leader.check(self._db, session, self._epoch or 0)
            measurements.hold(session, [placement.measurement for placement in placements])
            for placement in placements:
                if attempts.assign(self._db, session, placement, self._settings.lease):
                    made += 1
        self._on_commit()
        return made
