"""Many fake hosts in one event loop, and the loop in a thread for callers without one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any, TypeVar

from tests.support.faults.hosts.api import FleetApi
from tests.support.faults.hosts.host import FakeHost
from tests.support.faults.hosts.options import HostName, HostOptions, Stats

T = TypeVar("T")
START_SECONDS = 60.0


class Fleet:
    """Hosts by name."""

    def __init__(
        self, api: str, tokens: Mapping[str, str], journals: Path, options: HostOptions
    ) -> None:
        self.stats: Stats = Stats()
        self._api = FleetApi(api)
        self.hosts = {
            name: FakeHost(
                HostName(name, token, journals / f"{name}.jsonl"), options, self._api, self.stats
            )
            for name, token in tokens.items()
        }

    async def start(self) -> None:
        """Power every host on; returns when all are registered."""
        await asyncio.gather(*(host.power_on() for host in self.hosts.values()))

    async def stop(self) -> None:
        """Hand back what runs, and end."""
        await asyncio.gather(*(host.stop() for host in self.hosts.values()))
        await self._api.aclose()


class FleetThread:
    """A fleet inside a test: started and stopped with `with`, its hosts told what to do."""

    def __init__(
        self, api: str, tokens: Mapping[str, str], journals: Path, options: HostOptions
    ) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.journals = journals
        self.fleet: Fleet = self._do(_made(api, tokens, journals, options))

    def __enter__(self) -> FleetThread:
        self._do(self.fleet.start())
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._do(self.fleet.stop())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(10)
            self._loop.close()

    @property
    def stats(self) -> Stats:
        return self.fleet.stats

    def power_off(self, name: str) -> None:
        """A host's process and all it runs are gone at once."""
        self._do(self.fleet.hosts[name].power_off())

    def power_on(self, name: str) -> None:
        """A host's process starts anew."""
        self._do(self.fleet.hosts[name].power_on())

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(START_SECONDS)


async def _made(
    api: str, tokens: Mapping[str, str], journals: Path, options: HostOptions
) -> Fleet:
    return Fleet(api, tokens, journals, options)
