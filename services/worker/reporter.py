"""Reports about a running attempt, once a second, from a thread of their own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Literal

from assay.contracts.worker import ProgressRequest
from assay.domain.errors import AssayError, Fenced
from services.worker.api import WorkerApi
from services.worker.telemetry import Telemetry, is_full

_log = logging.getLogger(__name__)
Phase = Literal["running", "finalizing"]


class Reporter:
    """Posts new log bytes, new points and a change of phase every `seconds`.

    An attempt that is shorter never posts: its `finish` carries everything. A report that did not
    arrive is repeated with the same offsets by the next one.
    """

    def __init__(
        self,
        api: WorkerApi,
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
            pieces, points = self._telemetry.pending(final=True)
            if not is_full(pieces, points):
                return
            body = ProgressRequest(lease_token=self._lease_token, logs=pieces, points=points)
            self._api.progress(self._attempt, body, patience=patience, give_up=give_up)
            self._telemetry.shipped(pieces, points)

    def _run(self) -> None:
        while True:
            self._wake.wait(self._seconds)
            if self._done.is_set():
                return
            self._wake.clear()
            try:
                while self._report() and not self._done.is_set():
                    pass
            except Fenced:
                self._on_fenced()
                return
            except AssayError as error:
                _log.warning("%s: report not taken: %s", self._attempt, error)
            except OSError as error:
                _log.warning("%s: telemetry cannot be read: %s", self._attempt, error)

    def _report(self) -> bool:
        """Post once; True when there may be more."""
        pieces, points = self._telemetry.pending()
        phase = self._phase
        if not pieces and not points and phase == self._told:
            return False
        body = ProgressRequest(
            lease_token=self._lease_token,
            state=phase if phase != self._told else None,
            logs=pieces,
            points=points,
        )
        self._api.progress(self._attempt, body)
        self._told = phase
        self._telemetry.shipped(pieces, points)
        return is_full(pieces, points)
