"""How tests wait: for a condition, never for time to pass."""

from __future__ import annotations

import time
from collections.abc import Callable

#: Long enough for a machine whose cores are all busy; a condition that holds ends the wait.
PATIENCE_SECONDS = 120.0
#: Between two looks: short at first, then long enough that looking costs little.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.01, 0.1


def wait_until(
    condition: Callable[[], object], what: str = "the condition", seconds: float = PATIENCE_SECONDS
) -> float:
    """Wait until a condition holds, and return how many seconds that took.

    Raises:
        TimeoutError: it did not hold in time; the message says `what` was waited for.
    """
    began, pause = time.monotonic(), _FIRST_PAUSE
    while not condition():
        if time.monotonic() - began > seconds:
            raise TimeoutError(f"{what}: not within {seconds:g} s")
        time.sleep(pause)
        pause = min(pause * 1.5, _LONGEST_PAUSE)
    return time.monotonic() - began
