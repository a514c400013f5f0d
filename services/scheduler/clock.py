"""The scheduler: on its clock it matches queued measurements to free resources.

One leader at a time, by a lease with an epoch in the database; everything it writes is written in
a transaction that checks the epoch, so a leader that was paused cannot act on what it saw before.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from sqlalchemy.orm import Session

from assay.domain.errors import AssayError, Fenced
from assay.domain.ids import new_id
from assay.domain.placement import Demand, Placement, Size, Supply, place
from assay.domain.states import WorkerState
from assay.storage import assignments, batches, expiry, leader, schema, shapes
from assay.storage.database import Database
from assay.storage.placing import (
    View,
    Waiting,
    can_start,
    demands,
    supplies,
    view,
    waiting,
    with_settings,
)
from services.scheduler.newcomers import Newcomers
from services.scheduler.reconcile import Reconciler
from services.scheduler.settings import SchedulerSettings
from services.scheduler.ticks import Ticks

log = logging.getLogger(__name__)
#: How often measurements without a shape are looked for.
_FILL_SECONDS = 5.0
#: Pause between two transactions that cancel experiments, so that other writers get their turn.
_BREATH = 0.02


class Scheduler:
    """Ticks until it is stopped. `on_commit` is called when there are messages to deliver.

    `holder` names the leader's lease. Give a fixed name only where something else makes sure that
    no two live schedulers share it: a restart then need not wait for the old lease to expire.
    `clock` counts the seconds between ticks.
    """

    def __init__(
        self,
        db: Database,
        settings: SchedulerSettings,
        on_commit: Callable[[], None],
        *,
        holder: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._db = db
        self._settings = settings
        self._on_commit = on_commit
        self._clock = clock
        self._holder = holder or new_id("sch")
        self._epoch: int | None = None
        self._renew_at = 0.0
        self._fill_at = 0.0
        self._is_cancelling = False
        self._ended: Sequence[schema.Equivalence] = ()
        self._last_tick = self._clock()
        self._served: dict[Size, float] = {}
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self.ticks = Ticks()
        self._newcomers = Newcomers(db, self._write)
        self._reconciler = Reconciler(db, settings, self.ticks, self._write)

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
            made = 0
            try:
                made = self.tick()
            except Fenced as error:
                log.warning("no longer the leader: %s", error)
                self._epoch = None
            except AssayError as error:
                log.warning("this tick failed, the next may not: %s", error)
            if self._is_cancelling:
                self._stopping.wait(_BREATH)
            elif made < self._settings.placements:
                self._wake.wait(self._settings.tick_seconds)
        if self._epoch is not None:
            leader.release(self._db, self._holder)

    def tick(self) -> int:
        """One round: renew the leadership, set right what is wrong, place.

        Returns how many assignments were made.
        """
        self._is_cancelling = False
        if not self._lead():
            return 0
        with self.ticks.timed():
            self._fill_shapes()
            made = self._turn()
            self._continue_cancelling()
        self._last_tick = self._clock()
        return made

    def _continue_cancelling(self) -> None:
        """Cancel some of what is left of batches that were cancelled: see `batches.cancel`."""
        if self._is_cancelling:
            with self._write() as session:
                done = batches.continue_cancelling(self._db, session)
            self._on_commit()
            self.ticks.count("cancelled", done)

    @property
    def leads(self) -> bool:
        """Whether this scheduler was the leader at its last tick."""
        return self._epoch is not None

    def _lead(self) -> bool:
        if self._epoch is None or self._clock() >= self._renew_at:
            settings = self._settings
            epoch = leader.acquire(
                *(self._db, self._holder, settings.leader_lease, self._epoch),
                rules=settings.rules.stored(),
            )
            self._renew_at = self._clock() + self._settings.leader_seconds / 3
            is_new, self._epoch = epoch != self._epoch, epoch
            if epoch is not None and is_new:
                log.info("leading with epoch %d", epoch)
                self._grant_amnesty()
        if self._epoch is None:
            return False
        if self._clock() - self._last_tick > self._blackout:
            self._grant_amnesty()
        return True

    @property
    def _blackout(self) -> float:
        """Seconds without a whole tick after which workers may not have been heard, either."""
        return min(self._settings.leader_seconds, self._settings.lease_seconds / 3)

    def _grant_amnesty(self) -> None:
        """Whatever ran while nobody led gets one full lease before it may be called lost."""
        with self._write() as session:
            expiry.renew_all(session, self._db.now(session) + self._settings.lease)
        self._last_tick = self._clock()
        self.ticks.count("amnesty", 1)

    @contextmanager
    def _write(self) -> Iterator[Session]:
        """A transaction of the leader."""
        with self._db.write() as session:
            leader.check(self._db, session, self._epoch or 0)
            yield session

    def _fill_shapes(self) -> None:
        if self._clock() < self._fill_at:
            return
        self._fill_at = self._clock() + _FILL_SECONDS
        with self._db.read() as session:
            missing = shapes.any_missing(session)
        if missing:
            with self._write() as session:
                shapes.fill(session)

    def _turn(self) -> int:
        settings, policy = self._settings, self._settings.policy
        seen = self._look()
        if self._reconciler.repair(seen):
            self._on_commit()
            seen = self._look()
        if self._newcomers.decide(self._ended):
            self._on_commit()
        free = supplies(seen, settings.rules)
        if not any(can_start(supply, policy) for supply in free):
            return 0
        now = seen.now.timestamp()
        queue, free = self._queue(seen, free)
        placements = place(queue, free, now, policy, self._served) if queue else []
        if not placements:
            return 0
        with self._write() as session:
            made = len(assignments.assign(self._db, session, placements, settings.lease))
        self._remember(queue, placements, now)
        self._on_commit()
        self.ticks.count("assigned", made)
        return made

    def _queue(self, seen: View, free: list[Supply]) -> tuple[list[Demand], list[Supply]]:
        """What could start now, and what is free with the settings that each worker offers."""
        hosts = [host for host in seen.hosts if host.state == WorkerState.ACTIVE.value]
        at_work = {supply.worker for supply in free}
        with self._db.read() as session:
            shapes = waiting(session, seen.now)
            offers = self._newcomers.offers(session, shapes, hosts)
            new = self._newcomers.unknown(hosts, at_work)
            if not new:
                return self._demands(session, seen, shapes, with_settings(free, offers))
        if self._newcomers.admit(new):
            self._on_commit()
        with self._db.read() as session:
            shapes = waiting(session, seen.now)
            offers = self._newcomers.offers(session, shapes, hosts)
            return self._demands(session, seen, shapes, with_settings(free, offers))

    def _demands(
        self, session: Session, seen: View, shapes: Sequence[Waiting], free: list[Supply]
    ) -> tuple[list[Demand], list[Supply]]:
        return demands(session, shapes, seen.now, free, self._settings.policy), free

    def _look(self) -> View:
        """Everything that a tick looks at whatever it finds, in one transaction."""
        with self._db.read() as session:
            self._is_cancelling = batches.is_cancelling(session)
            self._ended = self._newcomers.ended(session)
            return view(self._db, session, self._settings.cordon_window_seconds)

    def _remember(self, queue: list[Demand], placements: list[Placement], now: float) -> None:
        """When which size had its turn."""
        placed = {placement.measurement for placement in placements}
        for demand in queue:
            if demand.measurement in placed:
                self._served[demand.size] = now
