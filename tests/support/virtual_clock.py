"""An event loop whose time passes only while nothing happens.

Timers fire in their order without being waited for. Work in threads (a database, patching) takes
no time on this clock: it stands still until that is done. What is left of the time that passes is
what a program itself decided to wait.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class VirtualLoop(asyncio.SelectorEventLoop):
    """Starts at zero seconds."""

    def __init__(self) -> None:
        self._now = 0.0
        self._threads = 0
        super().__init__(_Selector(self))

    def time(self) -> float:
        """Seconds on the virtual clock."""
        return self._now

    def pass_time(self, seconds: float) -> None:
        """Move the clock on."""
        self._now += seconds

    @property
    def is_busy(self) -> bool:
        """Whether threads are at work."""
        return self._threads > 0

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """As of any loop; the clock stands still until it is done."""
        future = super().run_in_executor(executor, func, *args)
        self._threads += 1
        future.add_done_callback(self._thread_done)
        return future

    def _thread_done(self, _future: object) -> None:
        self._threads -= 1


class _Selector(selectors.DefaultSelector):  # type: ignore[misc, valid-type]
    """Does not wait for the next timer, but has it be now."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> Any:
        """Events that are there; without any, the time passes that was to be waited."""
        if timeout is None or timeout <= 0 or self._loop.is_busy:
            # Somebody will wake the loop: a thread, or a message from outside.
            return super().select(timeout if timeout is not None and timeout <= 0 else None)
        found = super().select(0)
        if not found:
            self._loop.pass_time(timeout)
        return found


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on a virtual clock."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
