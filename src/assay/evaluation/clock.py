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
    a busy host is not slow. One that sleeps is.
    """

    def __init__(self, patience: float = 0.0) -> None:
        self._patience = patience
        # The evaluator's own; on one processor, because it computes in one thread.
        own = Starvation(lambda: waits_of(threads_of(os.getpid())), time.process_time, 1.0)
        self._sources: list[Callable[[], float]] = [own.seconds]
        self._ended = 0.0

    def now(self) -> float:
        """The time on this clock, in seconds."""
        return time.monotonic() - min(self._patience, self.starved())

    def starved(self) -> float:
        """Seconds for which the host kept the evaluation waiting so far."""
        return self._ended + sum(source() for source in self._sources)

    @contextlib.contextmanager
    def watching(self, starved: Callable[[], float]) -> Iterator[None]:
        """Count the seconds that a program was kept waiting, too, as `starved` tells them."""
        self._sources.append(starved)
        try:
            yield
        finally:
            self._sources.remove(starved)
            self._ended += starved()

    def longest(self, deadline: float) -> float:
        """Seconds of the wall clock until `deadline`, however long the host keeps all waiting."""
        left = max(0.0, self._patience - self.starved())
        return deadline - self.now() + left
