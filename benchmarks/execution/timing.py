"""How much of a stretch of time the database took."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Engine, event


class SqlTime:
    """Seconds spent waiting for Postgres, and statements sent: executions, commits, pings."""

    def __init__(self, engine: Engine) -> None:
        self.seconds = 0.0
        self.statements = 0
        self._began = 0.0
        event.listen(engine, "before_cursor_execute", self._before)
        event.listen(engine, "after_cursor_execute", self._after)
        for name in ("do_commit", "do_rollback", "do_ping", "do_begin"):
            setattr(engine.dialect, name, self._timed(getattr(engine.dialect, name)))

    def _before(self, *_: Any) -> None:
        self._began = time.perf_counter()

    def _after(self, *_: Any) -> None:
        self.seconds += time.perf_counter() - self._began
        self.statements += 1

    def _timed(self, call: Any) -> Any:
        def timed(*args: Any) -> Any:
            began = time.perf_counter()
            try:
                return call(*args)
            finally:
                self.seconds += time.perf_counter() - began

        return timed

    def reset(self) -> None:
        """Count from here."""
        self.seconds, self.statements = 0.0, 0


@contextmanager
def elapsed() -> Iterator[list[float]]:
    """Seconds that the block took, in the list afterwards."""
    taken: list[float] = []
    began = time.perf_counter()
    yield taken
    taken.append(time.perf_counter() - began)


def percentile(values: list[float], share: float) -> float:
    """The smallest value that so large a share of all does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def milliseconds(values: list[float]) -> dict[str, float]:
    """Median, p99 and the longest, in milliseconds."""
    return {
        "p50": round(statistics.median(values) * 1e3, 2),
        "p99": round(percentile(values, 0.99) * 1e3, 2),
        "max": round(max(values) * 1e3, 2),
    }
