"""Threads that give owners, and the batches of an owner, equal turns.

The pool's event loop runs its database work here. Thousands of ideas may be under way, and each
takes several steps: in the order of submission, an idea of a small batch would wait for a step of
every idea of a large one, each time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from heapq import heappop, heappush
from itertools import count
from typing import Any, NamedTuple, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Turn(NamedTuple):
    """Whose work a step is. `number`: ideas that were begun earlier have lower ones."""

    owner: str
    batch: str
    priority: int
    number: int


#: Of the idea that the current task implements; None for work that belongs to no idea.
current: ContextVar[Turn | None] = ContextVar("turn", default=None)


class Shares:
    """Whose turn it is, among names that each had some: who had least for its weight.

    A name that had nothing to do for a while gets no credit for that.
    """

    def __init__(self) -> None:
        self._had: dict[str, float] = {}
        self._now = 0.0

    def had(self, name: str) -> float:
        return max(self._had.get(name, 0.0), self._now)

    def take(self, name: str, weight: float = 1.0) -> None:
        """Count a turn of a name, which has just been chosen."""
        self._now = self.had(name)
        self._had[name] = self._now + 1 / weight
        if len(self._had) > 1000:
            self._had = {n: had for n, had in self._had.items() if had > self._now}


class FairThreads(ThreadPoolExecutor):
    """Runs what belongs to no idea first; then owners take turns by weight.

    Of an owner, the batch with the highest priority goes first; batches of equal priority take
    turns. Of a batch, the idea that was begun first goes first, so that ideas are finished one
    after another rather than all at the end.
    """

    def __init__(
        self, threads: int, name: str, weight: Callable[[str], float] = lambda _owner: 1.0
    ) -> None:
        super().__init__(threads, name)
        self._weight = weight
        self._changing = threading.Lock()
        self._numbers = count()
        self._own: list[tuple[int, Callable[[], None]]] = []
        #: Steps by owner, and by priority and batch: the idea's number, and the step.
        self._steps: dict[str, dict[tuple[int, str], list[tuple[int, int, Callable[[], None]]]]]
        self._steps = {}
        self._owners = Shares()
        self._batches = Shares()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Add a step of the idea that the current task implements."""
        done: Future[T] = Future()

        def step() -> None:
            if not done.set_running_or_notify_cancel():
                return
            try:
                result = fn(*args, **kwargs)
            except BaseException as error:
                done.set_exception(error)
            else:
                done.set_result(result)

        turn, number = current.get(), next(self._numbers)
        with self._changing:
            if turn is None:
                heappush(self._own, (number, step))
            else:
                batches = self._steps.setdefault(turn.owner, {})
                waiting = batches.setdefault((-turn.priority, turn.batch), [])
                heappush(waiting, (turn.number, number, step))
        super().submit(self._run_next)
        return done

    def _run_next(self) -> None:
        with self._changing:
            step = self._next()
        step()

    def _next(self) -> Callable[[], None]:
        if self._own:
            return heappop(self._own)[-1]
        owner = min(self._steps, key=lambda name: (self._owners.had(name), name))
        batches = self._steps[owner]
        urgent = min(priority for priority, _ in batches)
        key = min(
            (each for each in batches if each[0] == urgent),
            key=lambda each: (self._batches.had(each[1]), each[1]),
        )
        self._owners.take(owner, self._weight(owner))
        self._batches.take(key[1])
        waiting = batches[key]
        step: Callable[[], Any] = heappop(waiting)[-1]
        if not waiting:
            del batches[key]
            if not batches:
                del self._steps[owner]
        return step
