"""How busy the host is, as the trainings on it find it, and how many processors that leaves."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator

_log = logging.getLogger(__name__)
#: Between two decisions; a training that starts or ends is no trend.
WINDOW_SECONDS = 10.0
#: Shares of their time for which trainings get no processor: from the first on the worker takes
#: half as much work, below the second one processor more.
_TOO_BUSY, _IDLE = 0.5, 0.2


class Pressure:
    """Decides how many of a worker's processors are offered, by what running trainings lose.

    A host that gives its trainings half of what they could use finishes none of them sooner by
    running more. May be used from any thread.
    """

    def __init__(self, cpus: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._cpus = self._usable = cpus
        self._clock = clock
        self._looked = clock()
        self._lost: dict[Callable[[], float], float] = {}
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def watching(self, starved: Callable[[], float]) -> Iterator[None]:
        """Look at what a program loses, in seconds since its start, as `starved` tells it."""
        with self._lock:
            self._lost[starved] = starved()
        try:
            yield
        finally:
            with self._lock:
                del self._lost[starved]

    def usable_cpus(self) -> int:
        """How many processors to offer now: at least 1, at most the worker's own."""
        with self._lock:
            elapsed = self._clock() - self._looked
            if elapsed >= WINDOW_SECONDS:
                self._decide(elapsed)
            return self._usable

    def _decide(self, elapsed: float) -> None:
        now = {starved: starved() for starved in self._lost}
        shares = [(seconds - self._lost[starved]) / elapsed for starved, seconds in now.items()]
        share = sum(shares) / len(shares) if shares else 0.0
        self._lost, self._looked = now, self._clock()
        before = self._usable
        if share > _TOO_BUSY:
            self._usable = max(1, before // 2)
        elif share < _IDLE:
            self._usable = min(self._cpus, before + 1)
        if self._usable != before:
            _log.log(
                logging.WARNING if self._usable < before else logging.INFO,
                "trainings get no processor for %.0f %% of their time: %d of %d are offered",
                100 * share,
                self._usable,
                self._cpus,
            )
