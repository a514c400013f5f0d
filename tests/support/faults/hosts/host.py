"""A fake host: registers, keeps its leases alive, and runs what it is assigned."""

from __future__ import annotations

import asyncio
import itertools
import random
import time

from assay.contracts.worker import (
    AttemptSpec,
    Device,
    HeldAttempt,
    SyncRequest,
    SyncResponse,
    WorkerRegistration,
)
from assay.domain.ids import new_id
from tests.support.faults.hosts.api import Away, FleetApi, Refused
from tests.support.faults.hosts.journal import Journal, bury, open_intervals
from tests.support.faults.hosts.options import HostName, HostOptions, Stats
from tests.support.faults.hosts.run import Run

_PAUSE = 0.05  # between two syncs that wait at the API
_AWAY_PAUSE = 0.5


class FakeHost:
    """One worker, as the API sees it."""

    def __init__(self, who: HostName, options: HostOptions, api: FleetApi, stats: Stats) -> None:
        self.name = who.name
        self.token = who.token
        self.options = options
        self.api = api
        self.stats = stats
        self._path = who.journal
        self.journal = Journal(who.journal)
        self.registered = asyncio.Event()
        self.worker_id: str | None = None
        self.draining = False
        self._incarnation = ""
        self._numbers = itertools.count(1)
        self._offered = options.gpus + options.mischief.boasted_gpus
        self._uuids = [f"GPU-{who.name}-{n}" for n in range(options.gpus)]
        self._free = self._healthy()
        self._runs: dict[str, Run] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()
        self._stopping = False
        self._loop_task: asyncio.Task[None] | None = None

    def _healthy(self) -> list[str]:
        return self._uuids[: self.options.gpus - self.options.mischief.sick_gpus]

    def take(self, count: int) -> tuple[str, ...] | None:
        if count > len(self._free):
            return None
        taken = tuple(self._free[:count])
        del self._free[:count]
        return taken

    def give(self, devices: tuple[str, ...]) -> None:
        self._free.extend(devices)

    def ring(self) -> None:
        """Sync now."""
        self._wake.set()

    async def power_on(self) -> None:
        """Start the host's process; what an earlier one ran goes on or is gone."""
        self._incarnation = new_id("inc")
        self._stopping = False
        self.journal.note("boot", incarnation=self._incarnation)
        if self.options.mischief.adopt:
            self._adopt()
        else:
            bury(self._path)
        await self._register()
        self._loop_task = asyncio.create_task(self._loop())

    def _adopt(self) -> None:
        for one in open_intervals(self._path):
            spec = AttemptSpec.model_validate(one.facts["spec"])
            self._free = [uuid for uuid in self._free if uuid not in one.devices]
            self.journal.note("adopt", attempt=one.attempt, token=one.token)
            self.stats["adopted"] += 1
            self._launch(Run(self, spec, adopted=one))

    async def power_off(self) -> None:
        """The host's process and all it runs are gone at once; nobody is told."""
        if self._loop_task is not None:
            await _ended([self._loop_task])
        await _ended(list(self._tasks))
        self._runs.clear()
        self._free = self._healthy()
        self.registered.clear()
        if not self.options.mischief.adopt:
            bury(self._path)

    async def stop(self) -> None:
        """End what runs, hand it back, and say goodbye."""
        self._stopping = True
        for run in self._runs.values():
            run.stop("stopping")
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=10)
        if self._loop_task is not None:
            await _ended([self._loop_task])
        self.draining = True
        try:
            await self._sync(0)
        except (Away, Refused):  # its leases expire without it
            self.stats["goodbyes_failed"] += 1
        await _ended(list(self._tasks))

    async def _register(self) -> None:
        options = self.options
        body = WorkerRegistration(
            name=self.name,
            incarnation=self._incarnation,
            cpus=options.cpus,
            gpus=self._offered,
            memory_bytes=options.memory_bytes,
            hardware_class=options.hardware_class,
            sandbox="fake",
            isolated=options.isolated,
            devices=[Device(uuid=uuid, name="fake", memory_bytes=1 << 36) for uuid in self._uuids],
            version="fleet",
            adopted=self._held(),
        )
        while True:
            try:
                self.worker_id = (await self.api.register(self.token, body)).id
            except Away:
                await asyncio.sleep(random.uniform(0.5, 1) * _AWAY_PAUSE)
            else:
                self.stats["registered"] += 1
                self.registered.set()
                return

    def _held(self) -> list[HeldAttempt]:
        return [
            HeldAttempt(attempt=run.spec.attempt, lease_token=run.spec.lease_token)
            for run in self._runs.values()
        ]

    async def _loop(self) -> None:
        while not self._stopping:
            self._wake.clear()
            began = time.monotonic()
            try:
                response = await self._sync(self.options.poll_seconds)
            except Away:
                self.stats["syncs_away"] += 1
                await asyncio.sleep(random.uniform(0.5, 1) * _AWAY_PAUSE)
                continue
            except Refused as error:
                if not await self._refused(error):
                    return
                continue
            self._take(response)
            await self._rest(began)

    async def _sync(self, wait: float) -> SyncResponse:
        assert self.worker_id is not None
        body = SyncRequest(
            incarnation=self._incarnation,
            number=next(self._numbers),
            held=self._held(),
            draining=self.draining,
            usable_gpus=self._offered - self.options.mischief.sick_gpus,
            wait_seconds=wait,
        )
        response = await self.api.sync(self.token, self.worker_id, body)
        self.stats["syncs"] += 1
        return response

    async def _refused(self, error: Refused) -> bool:
        """Whether to go on: not if another process has this host's name."""
        self.stats[f"sync_refused_{error.code}"] += 1
        for run in self._runs.values():
            run.stop("fenced")
        if error.code == "stale_incarnation":
            self.journal.note("superseded")
            return False
        self._incarnation = new_id("inc")
        await self._register()
        return True

    def _take(self, response: SyncResponse) -> None:
        for attempt in response.fenced:
            if attempt in self._runs:
                self._runs[attempt].stop("fenced")
        for attempt in response.stop:
            if attempt in self._runs and not self.options.mischief.deaf_to_stop:
                self._runs[attempt].stop("cancelled")
        for spec in response.assign:
            if spec.attempt not in self._runs and not self._stopping:
                self.stats["assigned"] += 1
                self._launch(Run(self, spec))

    def _launch(self, run: Run) -> None:
        self._runs[run.spec.attempt] = run
        task = asyncio.create_task(self._go(run))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _go(self, run: Run) -> None:
        try:
            await run.go()
        finally:
            if self._runs.get(run.spec.attempt) is run:
                del self._runs[run.spec.attempt]

    async def _rest(self, began: float) -> None:
        """Until the next sync: at once after one that waited, else when it is due or rung."""
        if self.options.poll_seconds > 0:
            await asyncio.sleep(_PAUSE)
            return
        due = began + self.options.sync_seconds * random.uniform(0.8, 1)
        try:
            await asyncio.wait_for(self._wake.wait(), max(0.001, due - time.monotonic()))
        except TimeoutError:
            return


async def _ended(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
