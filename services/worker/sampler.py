"""What an attempt uses while it runs, looked at every few seconds: for people, never a result."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from assay.contracts.worker import SystemPoint

_log = logging.getLogger(__name__)
SECONDS = 10.0
POINTS_CAP = 20_000
POINTS_PER_REPORT = 500

Source = Callable[[], Mapping[str, float]]
"""Says what is used right now; an empty answer means that it cannot tell."""


class Sampler:
    """Asks its sources every `seconds` from a thread of its own.

    A point's number is its time since `since` (of the monotonic clock) in units of `seconds`: a
    worker that takes an attempt over goes on with the numbers of the one before.
    """

    def __init__(self, sources: Sequence[Source], since: float, *, seconds: float = SECONDS):
        self._sources = list(sources)
        self._since = since
        self._seconds = seconds
        self._points: list[SystemPoint] = []
        self._taken = 0
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """End; what was taken stays pending. May be repeated."""
        self._done.set()
        if self._thread.is_alive():
            self._thread.join()

    def add(self, source: Source) -> None:
        """Ask one more source from now on, such as a program that was just started."""
        with self._lock:
            self._sources.append(source)

    def pending(self) -> list[SystemPoint]:
        """The next points, the same ones until `shipped` is called."""
        with self._lock:
            return self._points[:POINTS_PER_REPORT]

    def shipped(self, count: int) -> None:
        """The API has the first `count` of the pending points."""
        with self._lock:
            del self._points[:count]

    def _run(self) -> None:
        while not self._done.wait(until_next(time.monotonic() - self._since, self._seconds)):
            seq = round((time.monotonic() - self._since) / self._seconds)
            self._take(seq)
            if self._taken >= POINTS_CAP:
                return

    def _take(self, seq: int) -> None:
        with self._lock:
            sources = list(self._sources)
        values: dict[str, float] = {}
        for source in sources:
            try:
                found = source()
            except Exception as error:  # a program that ends, a driver in trouble: a gap is fine
                _log.debug("a source of samples failed: %s", error)
                continue
            values.update((name, float(n)) for name, n in found.items() if math.isfinite(n))
        if not values:
            return
        with self._lock:
            self._taken += 1
            self._points.append(
                SystemPoint(
                    seq=seq, seconds=max(0.0, time.monotonic() - self._since), values=values
                )
            )


def until_next(passed: float, every: float) -> float:
    """Return how long to wait for the next multiple of `every`, when `passed` seconds are over."""
    # A quarter is left out: after a wait that ended a little early the next one is not short.
    return (math.floor(passed / every + 0.25) + 1) * every - passed
