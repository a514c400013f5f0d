"""How far ahead of free slots an asynchronous loop asks, from what it saw so far."""

from __future__ import annotations

from collections import deque
from math import ceil
from statistics import median

#: Answers that the estimate looks back on, and experiments that count in full.
_ANSWERS, _EXPERIMENTS = 16, 64
#: At most so many times the slots are decided and have not ended.
MOST = 4


class Pace:
    """How long an ideator takes to answer, and for how long an experiment holds one of `slots`."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._latencies: deque[float] = deque(maxlen=_ANSWERS)
        self._busy = self._ended = 0.0

    def answered(self, seconds: float) -> None:
        """The ideas of a decision came after so many seconds."""
        self._latencies.append(seconds)

    def passed(self, seconds: float, under_way: int, ended: int) -> None:
        """For so many seconds experiments were under way, of which some have ended.

        Those beyond the slots wait for one, and do not count.
        """
        self._busy += seconds * min(under_way, self._slots)
        self._ended += ended
        if self._ended > _EXPERIMENTS:
            self._busy /= 2
            self._ended /= 2

    def target(self) -> int:
        """Return how many experiments and ideas are to be under way.

        While an answer takes L seconds, slots * L / D experiments end, which hold a slot for D
        seconds on average: so many ideas are asked for ahead, and the slots stay full.
        """
        if not self._latencies or not self._ended or not self._busy:
            return self._slots
        ahead = ceil(self._slots * median(self._latencies) * self._ended / self._busy)
        return min(self._slots + ahead, MOST * self._slots)
