"""Removes containers of this worker that have outlived their owner or their time."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator

from assay.sandbox import SandboxSettings, sweep_containers

_log = logging.getLogger(__name__)
END_SECONDS = 2.0


@contextlib.contextmanager
def reaping(
    settings: SandboxSettings,
    seconds: float,
    *,
    sweep: Callable[[SandboxSettings], int] = sweep_containers,
    end_seconds: float = END_SECONDS,
) -> Iterator[None]:
    """Look every `seconds` for leftovers, during the block.

    Only Docker leaves any: an evaluation that was killed cannot remove its containers, and they
    live on without it. A `sweep` under way at the end gets `end_seconds`.
    """
    if settings.name != "docker":
        yield
        return
    done = threading.Event()

    def look() -> None:
        while not done.wait(seconds):
            try:
                count = sweep(settings)
            except Exception as error:  # the next look may succeed; without it they pile up
                _log.warning("no look for leftovers: %s", error)
            else:
                if count:
                    _log.info("%d left-over containers were removed", count)

    thread = threading.Thread(target=look, name="reaper", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(end_seconds)  # an engine that does not answer must not hold up the end
