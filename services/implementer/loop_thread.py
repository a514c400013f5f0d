"""An event loop in a thread of its own: what implements, drives searches and sends webhooks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

#: What `stop` waits for at most, in seconds: first for the coroutines, then for the thread.
_STOP_SECONDS = 30.0


async def _nothing() -> None:
    pass


class LoopThread:
    """A thread that runs coroutines until it is stopped.

    Args:
        name: Name of the thread.
        executor: Threads for `asyncio.to_thread` within the loop.
        loop: The event loop. By default a new one.
    """

    def __init__(
        self,
        name: str,
        executor: ThreadPoolExecutor,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self.loop = loop or asyncio.new_event_loop()
        self.loop.set_default_executor(executor)
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)

    @property
    def is_running(self) -> bool:
        """Whether it was started and has not stopped."""
        return self._thread.is_alive()

    def start(self, *works: Coroutine[Any, Any, None]) -> None:
        """Start the thread, and these coroutines in it."""
        self._thread.start()
        for work in works:
            asyncio.run_coroutine_threadsafe(work, self.loop)

    def call(self, action: Callable[[], object]) -> None:
        """Call a function in the loop, from any thread. Does nothing once the loop is closed."""
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(action)

    def stop(self, closing: Callable[[], Awaitable[None]] = _nothing) -> None:
        """Cancel all coroutines, wait until they have ended, run `closing`, and end the thread.

        Raises:
            TimeoutError: they did not end within half a minute.
        """
        asyncio.run_coroutine_threadsafe(self._shut_down(closing), self.loop).result(_STOP_SECONDS)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(_STOP_SECONDS)
        self.loop.close()

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    async def _shut_down(self, closing: Callable[[], Awaitable[None]]) -> None:
        tasks = [t for t in asyncio.all_tasks() if t is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await closing()
