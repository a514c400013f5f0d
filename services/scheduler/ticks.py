"""What a scheduler has done: for its log, for metrics, for whoever measures it."""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager

from assay.telemetry import counts

log = logging.getLogger(__name__)


class Ticks:
    """How long the last ticks took, and how many decisions of which kind were made.

    Kinds: `assigned`, `rung` (a worker was told again), `returned` (never taken), `lost`, `late`
    (past the deadline), `cordoned`, `amnesty`, `cancelled` (experiments of cancelled batches).
    """

    def __init__(self) -> None:
        self.seconds: deque[float] = deque(maxlen=4096)
        self.decisions: Counter[str] = Counter()

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Time a tick that ran to its end."""
        began = time.perf_counter()
        yield
        elapsed = time.perf_counter() - began
        self.seconds.append(elapsed)
        counts.TICK_SECONDS.observe(elapsed)

    def count(self, kind: str, number: int) -> None:
        """Count decisions."""
        if number:
            self.decisions[kind] += number
            counts.DECISIONS.labels(kind).inc(number)
