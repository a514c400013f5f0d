"""A service with few workers and an ideator that takes its time, on a clock that a test owns."""

from __future__ import annotations

import asyncio
import heapq
import threading
from collections.abc import Callable
from itertools import count
from typing import Any

from assay.llm import IdeationRequest, OfflineIdeator, ProposedIdea
from assay.llm.ideation import CallRecord
from assay.search.changes import Clock
from assay.search.threads import CALL
from tests.support.fake_service import FakeService


class SlowTime:
    """Time that passes when the loop waits, and at no other time."""

    def __init__(self, on_second: Callable[[], None] = lambda: None) -> None:
        self.now = 0.0
        self._on_second = on_second
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = count()
        self.clock = Clock(now=lambda: self.now, sleep=self._pass)

    async def _pass(self, seconds: float) -> None:
        """The loop waits: time passes, and what was to happen happens."""
        self.now += seconds
        self._on_second()
        while self._sleepers and self._sleepers[0][0] <= self.now:
            _, _, sleeper = heapq.heappop(self._sleepers)
            if not sleeper.done():
                sleeper.set_result(None)
        await self._settle()

    @staticmethod
    async def _settle() -> None:
        """Let what was woken go on until nothing is left to do at this moment.

        Calls of the service run in threads.
        """
        quiet = 0
        while quiet < 5:
            await asyncio.sleep(0)
            is_busy = any(each.name == CALL for each in threading.enumerate())
            quiet = 0 if is_busy else quiet + 1
            if is_busy:
                await asyncio.sleep(0.0002)

    async def wait(self, seconds: float) -> None:
        """Wait until so much time has passed."""
        sleeper = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self.now + seconds, next(self._order), sleeper))
        await sleeper


class SlowIdeator(OfflineIdeator):
    """The offline ideator, which answers after `seconds`."""

    def __init__(self, time: SlowTime, seconds: float) -> None:
        super().__init__()
        self._time = time
        self._seconds = seconds
        self.under_way = self.most = 0

    async def propose(
        self, request: IdeationRequest, *, record: CallRecord | None = None
    ) -> list[ProposedIdea]:
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await self._time.wait(self._seconds)
        self.under_way -= 1
        return await super().propose(request, record=record)


class FewWorkers:
    """Runs the experiments of a service in `slots`, first come first served.

    `duration` of an experiment, by its number. `idle` and `busy` are slot-seconds since the
    first experiment began; the last ones, after which nothing more was submitted, do not count.
    """

    def __init__(self, service: FakeService, slots: int, duration: Callable[[int], float]) -> None:
        service.unfinished = service.distinct_code = True
        self.time = SlowTime(self._second)
        self._service = service
        self._slots = slots
        self._duration = duration
        self._running: list[tuple[float, dict[str, Any]]] = []
        self._known: set[str] = set()
        self._queue: list[dict[str, Any]] = []
        self.idle = self.busy = self._idle_since = self._busy_since = 0.0
        self.open = 0

    def _second(self) -> None:
        done = [each for end, each in self._running if end <= self.time.now]
        for each in done:
            self._service.finish_experiment(each)
        self._running = [pair for pair in self._running if pair[0] > self.time.now]
        new = [
            experiment
            for experiments in list(self._service.experiments.values())
            for experiment in experiments
            if experiment["id"] not in self._known
        ]
        if new:  # only until the last of them is what happens counted
            self.idle += self._idle_since
            self.busy += self._busy_since
            self._idle_since = self._busy_since = 0.0
        self._queue += new
        self._known.update(each["id"] for each in new)
        while self._queue and len(self._running) < self._slots:
            number = len(self._known) - len(self._queue)
            self._running.append((self.time.now + self._duration(number), self._queue.pop(0)))
        if self._known:
            self._busy_since += len(self._running)
            self._idle_since += self._slots - len(self._running)

    @property
    def share_idle(self) -> float:
        """Of the slots, over the time in which there was more to come."""
        return self.idle / (self.idle + self.busy)
