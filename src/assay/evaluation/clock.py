"""The clock of an evaluation: it stands still while the host keeps the evaluation waiting."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator

from assay.sandbox.starvation import Starvation, threads_of, waits_of

#: A wait of an evaluation looks at its clock as often.
LOOK_SECONDS = 1.0


class Clock:
    """Monotonic seconds, less those for which the evaluator or a program that it watches was
    runnable and got no processor, of which at most `patience` are left out.

    All deadlines of an evaluation are times of this clock: a predictor that waits for its turn on
    a busy host is not slow. One that sleeps is. What several wait for at once counts once.
    """

    def __init__(self, patience: float = 0.0) -> None:
        self._patience = patience
        # The evaluator's own; on one processor, because it computes in one thread.
        own = Starvation(lambda: waits_of(threads_of(os.getpid())), time.process_time, 1.0)
        self._seen: dict[Callable[[], float], float] = {own.seconds: 0.0}
        self._looked = self._now = time.monotonic()
        self._starved = 0.0

    def now(self) -> float:
        """The time on this clock, in seconds; it never runs backwards."""
        self._look()
        left_out = min(self._patience, self._starved)
        self._now = max(self._now, time.monotonic() - left_out)
        return self._now

    def starved(self) -> float:
        """Seconds for which the host kept the evaluation waiting so far."""
        self._look()
        return self._starved

    @contextlib.contextmanager
    def watching(self, starved: Callable[[], float]) -> Iterator[None]:
        """Count the seconds that a program was kept waiting, too, as `starved` tells them."""
        self._look()
        self._seen[starved] = 0.0
        try:
            yield
        finally:
            self._look()
            del self._seen[starved]

    def longest(self, deadline: float) -> float:
        """Seconds of the wall clock until `deadline`, however long the host keeps all waiting."""
        left = max(0.0, self._patience - self.starved())
        return deadline - self.now() + left

    def _look(self) -> None:
        """Add the largest growth of any source since the last look, if one has grown."""
        found = {source: source() for source in self._seen}
        growth = max(seconds - self._seen[source] for source, seconds in found.items())
        if growth <= 0:
            return
        elapsed = time.monotonic() - self._looked
        self._starved += min(growth, elapsed)
        self._seen, self._looked = found, self._looked + elapsed
