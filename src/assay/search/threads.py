"""Blocking calls from coroutines: while the service is asked, answers of models go on arriving."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from typing import TypeVar

T = TypeVar("T")
#: The name of the threads.
CALL = "search call"


async def in_thread(action: Callable[[], T]) -> T:
    """Return what `action` returns, which a thread of its own carries out.

    Unlike `asyncio.to_thread`, the end of the event loop does not wait for the thread: a client
    may wait an hour for a service that is away, and Ctrl-C must not.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()
    context = copy_context()

    def end(result: T | None, error: BaseException | None) -> None:
        if done.done():  # cancelled meanwhile
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)  # type: ignore[arg-type]

    def work() -> None:
        result, error = None, None
        try:
            result = context.run(action)
        except BaseException as raised:  # it is raised where it is awaited
            error = raised
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(end, result, error)

    threading.Thread(target=work, name=CALL, daemon=True).start()
    return await done
