"""How an asynchronous loop waits: by a clock, and for news of its batches."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import TypeAlias

from assay.search.baseline import POLL_SECONDS

#: Returns when one of these batches may have changed since the last call, or after some seconds.
Changes: TypeAlias = Callable[[Collection[str], float], Awaitable[None]]


@dataclass(frozen=True)
class Clock:
    """Time in seconds from an arbitrary moment, and a pause of some seconds."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep

    async def poll(self, _batches: Collection[str], seconds: float) -> None:
        """Let whoever waits look again soon: see `Changes`."""
        await self.sleep(min(seconds, POLL_SECONDS))
