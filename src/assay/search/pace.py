"""How far ahead of free slots an asynchronous loop asks, from what it saw so far."""

from __future__ import annotations

from collections import deque
from math import ceil
from statistics import median

#: Answers and experiments that the estimates look back on.
_ANSWERS, _EXPERIMENTS = 16, 64
#: At most so many times the slots are decided and have not ended.
MOST = 4


class Pace:
    """How long an ideator takes to answer, and for how long an experiment holds a slot."""

    def __init__(self) -> None:
        self._latencies: deque[float] = deque(maxlen=_ANSWERS)
        self._durations: deque[float] = deque(maxlen=_EXPERIMENTS)

    def answered(self, seconds: float) -> None:
        """The ideas of a decision came after so many seconds."""
        self._latencies.append(seconds)

    def ended(self, seconds: float) -> None:
        """An experiment ended so many seconds after it was submitted."""
        self._durations.append(seconds)

    def target(self, slots: int, under_way: float) -> int:
        """Return how many experiments and ideas are to be under way.

        While an answer takes L seconds, slots * L / D experiments end, which D seconds each:
        so many ideas are asked for ahead, and the slots stay full. D is the mean, since that is
        what decides how many end in a time; what has not ended yet counts with the seconds it
        has taken, which are `under_way` in all, or the first to end would be believed to be
        typical.
        """
        if not self._latencies or not self._durations:
            return slots
        duration = (sum(self._durations) + under_way) / len(self._durations)
        if duration <= 0:
            return slots
        ahead = ceil(slots * median(self._latencies) / duration)
        return min(slots + ahead, MOST * slots)
