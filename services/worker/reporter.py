"""Reports about a running attempt, once a second, from a thread of their own."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Literal

from assay.contracts.worker import ProgressRequest
from assay.domain.errors import AssayError, Fenced
from services.worker.api import AttemptApi
from services.worker.telemetry import Report, Telemetry

_log = logging.getLogger(__name__)
_LEAST_PAUSE = 0.05
Phase = Literal["running", "finalizing"]


class Reporter:
    """Posts new log bytes, new points and a change of phase every `seconds`.

    An attempt that is shorter never posts: its `finish` carries everything. A report that did not
    arrive is repeated with the same offsets by the next one. While there is more to tell than
    fits, it rests between two reports for as long as the API took for the last one, so that
    neither side is busy with a flood alone.
    """

    def __init__(
        self,
        api: AttemptApi,
        attempt: str,
        lease_token: int,
        telemetry: Telemetry,
        *,
        seconds: float,
        on_fenced: Callable[[], None],
    ) -> None:
        self._api = api
        self._attempt = attempt
        self._lease_token = lease_token
        self._telemetry = telemetry
        self._seconds = seconds
        self._on_fenced = on_fenced
        self._done = threading.Event()
        self._wake = threading.Event()
        self._told: Phase | None = None
        self._phase: Phase = "running"
        self._thread = threading.Thread(
            target=self._run, name=f"assay-report-{attempt}", daemon=True
        )

    def start(self) -> None:
        """Begin to report."""
        self._thread.start()

    def finalizing(self) -> None:
        """The evaluation starts. Told at once, unless the attempt is too young to be reported."""
        self._phase = "finalizing"
        if self._told is not None:
            self._wake.set()

    def stop(self) -> None:
        """End the reports; afterwards the telemetry is the caller's. May be repeated."""
        self._done.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()

    def drain(self, *, patience: float, give_up: threading.Event) -> None:
        """Post until the rest fits into `finish`. Call after `stop`, when all has been written.

        Raises:
            Fenced: the attempt has passed to somebody else.
            Unavailable: the API was away for longer than `patience` seconds.
        """
        while True:
            if self._ship_bulk(patience, give_up):
                continue
            report = self._telemetry.pending(final=True)
            if not report.is_full:
                return
            body = self._body(report)
            self._api.progress(self._attempt, body, patience=patience, give_up=give_up)
            self._telemetry.shipped(report)

    def _run(self) -> None:
        pause = self._seconds
        while True:
            self._wake.wait(pause)
            if self._done.is_set():
                return
            self._wake.clear()
            pause = self._seconds
            since = time.monotonic()
            try:
                if self._report():
                    pause = min(pause, max(_LEAST_PAUSE, time.monotonic() - since))
            except Fenced:
                self._on_fenced()
                return
            except AssayError as error:
                _log.warning("%s: report not taken: %s", self._attempt, error)
            except OSError as error:
                _log.warning("%s: telemetry cannot be read: %s", self._attempt, error)

    def _report(self) -> bool:
        """Post once; True when there may be more."""
        bulk = self._ship_bulk()
        report = self._telemetry.pending(logs=not bulk)
        phase = self._phase
        if not any(report) and phase == self._told:
            return bulk
        body = self._body(report)
        body.state = phase if phase != self._told else None
        self._api.progress(self._attempt, body)
        self._told = phase
        self._telemetry.shipped(report)
        return bulk or report.is_full

    def _ship_bulk(self, patience: float = 0, give_up: threading.Event | None = None) -> bool:
        bulk = self._telemetry.bulk()
        if bulk is None:
            return False
        self._api.put_log(
            self._attempt, self._lease_token, bulk, patience=patience, give_up=give_up
        )
        self._telemetry.shipped(bulk)
        return True

    def _body(self, report: Report) -> ProgressRequest:
        return ProgressRequest(
            lease_token=self._lease_token,
            logs=report.logs,
            points=report.points,
            system=report.system,
        )
