"""What is not as it should be, and setting it right: lost workers, late and untaken attempts,
workers that fail. On most ticks there is nothing to write."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager

from sqlalchemy.orm import Session

from assay.domain.states import AttemptState, WorkerState
from assay.storage import cordons, expiry, workers
from assay.storage.database import Database
from assay.storage.placing import View, can_replace
from services.scheduler.settings import SchedulerSettings
from services.scheduler.ticks import Ticks

log = logging.getLogger(__name__)


class Reconciler:
    """Looks at a view of the database and repairs. `write` begins a transaction of the leader."""

    def __init__(
        self,
        db: Database,
        settings: SchedulerSettings,
        ticks: Ticks,
        write: Callable[[], AbstractContextManager[Session]],
    ) -> None:
        self._db = db
        self._settings = settings
        self._ticks = ticks
        self._write = write
        self._deaf = False

    def repair(self, view: View) -> bool:
        """Set right what is wrong. Whether anything was: then the view is out of date."""
        repaired = self._lose_workers(view) + self._cordon(view)
        if not self._hears_nobody(view):
            repaired += self._end_attempts(view) + self._chase(view)
        return repaired > 0

    def _hears_nobody(self, view: View) -> bool:
        """Whether the workers cannot be blamed for their silence, as all are silent.

        Either they cannot report (the API is away) or there is nobody to try their work again.
        When one is heard of again, the others have a full lease to be heard of, too.
        """
        heard = view.now.timestamp() - self._settings.silence.total_seconds()
        held = any(each.is_live for each in view.held)
        deaf = held and all(host.seen < heard for host in view.hosts)
        if deaf and not self._deaf:
            log.warning("no worker is heard of: nothing is lost until one is")
        elif self._deaf and not deaf:
            log.warning("workers are heard of again: all attempts have one more lease")
            with self._write() as session:
                expiry.renew_all(session, self._db.now(session) + self._settings.lease)
            self._ticks.count("amnesty", 1)
            self._deaf = False
            return True  # what was read is older than the amnesty
        self._deaf = deaf
        return deaf

    def _lose_workers(self, view: View) -> int:
        since = view.now - self._settings.lease
        silent = [
            host.worker
            for host in view.hosts
            if host.state == WorkerState.ACTIVE.value and host.seen < since.timestamp()
        ]
        if silent:
            with self._write() as session:
                workers.lose_silent(session, since)
            log.warning("not heard of: %s", ", ".join(silent))
        return len(silent)

    def _end_attempts(self, view: View) -> int:
        """Lose attempts whose lease has run out, or that are past their deadline."""
        now = view.now.timestamp()
        live = [each for each in view.held if each.is_live]
        silent = any(each.lease < now for each in live)
        late = [e.attempt for e in live if e.deadline is not None and e.deadline < now]
        if not silent and not late:
            return 0
        with self._write() as session:
            lost = expiry.expire(self._db, session, view.now)
        # A transaction of its own: what the first has changed, others may wait for.
        with self._write() as session:
            overdue = expiry.end_late(self._db, session, late, view.now)
        if lost:
            log.warning("%d attempts lost: their leases ran out", lost)
        if overdue:
            log.warning("%d attempts lost: past their deadline", overdue)
        self._ticks.count("lost", lost)
        self._ticks.count("late", overdue)
        return lost + overdue

    def _chase(self, view: View) -> int:
        """Tell workers again of attempts that they have not taken; in the end take them back."""
        waits = self._settings.ring_seconds
        again, untaken = [], []
        for each in view.held:
            if each.state != AttemptState.ASSIGNED.value:
                continue
            age = view.now.timestamp() - each.created
            if age >= self._settings.unclaimed_seconds:
                untaken.append(each.attempt)
            elif each.rings < len(waits) and age >= waits[each.rings]:
                again.append(each.attempt)
        if not again and not untaken:
            return 0
        with self._write() as session:
            returned = expiry.take_back(self._db, session, untaken)
            rung = expiry.ring_again(self._db, session, again)
        if returned:
            log.warning("%d attempts taken back: no worker took them", returned)
        self._ticks.count("returned", returned)
        self._ticks.count("rung", rung)
        return returned + rung

    def _cordon(self, view: View) -> int:
        """Cordon workers that failed too often, for twice as long as the last time.

        The only worker of its kind goes on: to wait for nobody helps nobody, and what failed there
        is tried again after a pause of its own.
        """
        made = 0
        settings, now = self._settings, view.now.timestamp()
        silence = settings.silence.total_seconds()
        for host in view.hosts:
            probation = host.on_probation(now, settings.cordon_window_seconds)
            limit = 1 if probation else settings.cordon_failures
            if host.is_cordoned(now) or host.failures < limit:
                continue
            if not any(can_replace(each, host, now, silence) for each in view.hosts):
                continue
            again = host.cordons + 1 if probation else 1
            seconds = min(
                settings.cordon_seconds * 2 ** (again - 1), settings.longest_cordon_seconds
            )
            reason = (
                "failed again after a cordon"
                if probation
                else f"{host.failures} infrastructure failures within "
                f"{settings.cordon_window_seconds / 60:g} min"
            )
            with self._write() as session:
                cordons.cordon(self._db, session, host.worker, reason, seconds, again=again)
            log.warning("worker %s is cordoned for %g s: %s", host.worker, seconds, reason)
            made += 1
        self._ticks.count("cordoned", made)
        return made
