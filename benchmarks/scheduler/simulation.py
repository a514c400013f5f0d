"""A cluster on a virtual clock: jobs arrive, start, end and are lost; a decider places them.

Decisions are made at whole ticks only (a real scheduler also wakes at once), and only at ticks at
which something has changed.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import islice

from assay.domain.placement import Batch, Line, Occupancy, Supply, look_ahead
from benchmarks.scheduler.rivals import Decider
from benchmarks.scheduler.workloads import (
    CPUS_PER_GPU,
    HARDWARE,
    HOST_GPUS,
    MEMORY_PER_GPU,
    REPAIR,
    Job,
    Workload,
)

# Of the scheduler: when a silent worker gets no more work, when what it ran is lost, and when
# what nobody claimed is taken back.
SUSPECT, LEASE, UNCLAIMED = 60.0, 180.0, 60.0
# GPUs, bound, and the batch where a decider tells batches apart.
Kind = tuple[int, float, Batch | None]


@dataclass
class Metrics:
    """GPU-seconds, and what was decided in how much real time.

    All but `lost` and `work` are counted only while something waits. `idle` are GPUs on hosts
    where a waiting job fits and nothing is reserved, as many as waiting jobs ask for;
    `idle_strict` counts reserved hosts too; `whole` are all GPUs of hosts that are up.
    """

    allocated: float = 0.0
    idle: float = 0.0
    idle_strict: float = 0.0
    whole: float = 0.0
    lost: float = 0.0
    work: float = 0.0
    end: float = 0.0
    decisions: int = 0
    calls: int = 0
    deciding: float = 0.0
    slowest: float = 0.0
    owners: dict[str, float] = field(default_factory=lambda: defaultdict(float))


class Host:
    """Eight GPUs; `running` holds when each job was placed and its bound."""

    __slots__ = ("alive", "gpus", "name", "running", "silent", "starting", "supply")

    def __init__(self, name: str) -> None:
        self.name = name
        self.gpus = HOST_GPUS
        self.running: dict[str, tuple[Job, float, float]] = {}
        self.starting = 0
        self.alive = True
        self.silent = False
        self.supply: Supply | None = None

    def offer(self) -> Supply:
        """The host as the policy sees it."""
        if self.supply is None:
            free = self.gpus
            self.supply = Supply(
                worker=self.name,
                cpus=free * CPUS_PER_GPU,
                gpus=free,
                memory_bytes=free * MEMORY_PER_GPU,
                hardware_class=HARDWARE,
                isolated=True,
                starting=self.starting,
                running=tuple(
                    Occupancy(
                        *(j.gpus * CPUS_PER_GPU, j.gpus, j.gpus * MEMORY_PER_GPU, until),
                        *j.demand.batch,
                    )
                    for j, _, until in self.running.values()
                ),
            )
        return self.supply


class Simulation:
    """One run of one workload under one decider."""

    def __init__(
        self, load: Workload, decider: Decider, failures: list[tuple[float, int]]
    ) -> None:
        self.metrics = Metrics()
        self._load = load
        self._decider = decider
        self._hosts = [Host(f"{n:04d}") for n in range(load.hosts)]
        self._by_name = {host.name: host for host in self._hosts}
        # What hosts offer, by name in order, and which of them have a free GPU.
        self._offers: dict[str, Supply] = {}
        self._changed = set(self._by_name)
        self._loose = set(self._by_name)
        self._events: list[tuple[float, int, str, object]] = []
        self._count = 0
        #: By what a job needs, and of whose batch it is where the decider asks.
        self._queues: dict[Kind, list[tuple[tuple[object, ...], Job]]] = {}
        self._running_of_batch: dict[Batch, int] = defaultdict(int)
        self._waiting = 0
        self._waiting_of: dict[str, int] = defaultdict(int)
        self._running_of: dict[str, int] = defaultdict(int)
        self._left = len(load.jobs)
        self._at = 0.0
        self._allocated = 0
        self._idle = self._idle_strict = 0
        self._wanted = 0
        self._up = load.gpus
        self._free = load.gpus
        self._reserved: set[str] = set()
        self._arrive(failures)

    def _arrive(self, failures: list[tuple[float, int]]) -> None:
        groups: dict[float, list[Job]] = defaultdict(list)
        for job in self._load.jobs:
            groups[job.submitted].append(job)
        for at, jobs in groups.items():
            self._push(at, "submit", jobs)
        for at, host in failures:
            self._push(at, "fail", self._hosts[host])

    def _push(self, at: float, what: str, who: object) -> None:
        self._count += 1
        heappush(self._events, (at, self._count, what, who))

    def run(self) -> Metrics:
        """Until the last job has ended, or the horizon."""
        horizon = self._load.horizon or math.inf
        clock = self._decider.clock
        while self._left and self._events:
            tick = math.ceil(self._events[0][0] / clock) * clock
            if tick > horizon:
                self._pass(horizon)
                break
            while self._events and self._events[0][0] <= tick:
                at, _, what, who = heappop(self._events)
                self._pass(at)
                getattr(self, f"_{what}")(at, who)
            self._pass(tick)
            if self._waiting and self._free and self._left:
                self._decide(tick)
                self._look()
        self.metrics.end = self._at
        return self.metrics

    def _pass(self, at: float) -> None:
        """Let time pass: count GPU-seconds."""
        span = at - self._at
        if span <= 0:
            return
        self._at = at
        metrics = self.metrics
        metrics.work += self._allocated * span
        if self._waiting:
            metrics.allocated += self._allocated * span
            metrics.idle += min(self._idle, self._wanted) * span
            metrics.idle_strict += min(self._idle_strict, self._wanted) * span
            metrics.whole += self._up * span
            if all(self._waiting_of[owner] for owner in "ab"):
                for owner, gpus in self._running_of.items():
                    metrics.owners[owner] += gpus * span

    def _look(self) -> None:
        """Count the idle GPUs that a waiting job could use."""
        self._idle = self._idle_strict = 0
        if not self._waiting or not self._free:
            return
        smallest = min(kind[0] for kind, queue in self._queues.items() if queue)
        for name in self._loose:
            host = self._by_name[name]
            if host.gpus >= smallest and not host.silent:
                self._idle_strict += host.gpus
                if name not in self._reserved:
                    self._idle += host.gpus

    # What happens.

    def _submit(self, at: float, jobs: list[Job]) -> None:
        for job in jobs:
            queue = self._queues.setdefault(self._kind(job), [])
            queue.append((self._decider.order(job), job))
            self._waiting_of[job.owner] += 1
            self._wanted += job.gpus
        for kind in {self._kind(job) for job in jobs}:
            self._queues[kind].sort(key=lambda entry: entry[0], reverse=True)
        self._waiting += len(jobs)
        self._reserved = set()
        self._look()

    def _kind(self, job: Job) -> Kind:
        batch = job.demand.batch if self._decider.by_batch else None
        return (job.gpus, job.demand.bound_seconds, batch)

    def _started(self, at: float, who: tuple[Host, Job, float]) -> None:
        if self._current(who):
            host = who[0]
            host.starting -= 1
            self._touch(host)

    def _touch(self, host: Host) -> None:
        host.supply = None
        self._changed.add(host.name)
        if host.gpus:
            self._loose.add(host.name)
        else:
            self._loose.discard(host.name)

    def _end(self, at: float, who: tuple[Host, Job, float]) -> None:
        host, job, _ = who
        if not self._current(who) or not host.alive:
            return
        self._release(host, job)
        job.ended = at
        self._left -= 1

    def _current(self, who: tuple[Host, Job, float]) -> bool:
        host, job, placed = who
        return job.id in host.running and host.running[job.id][1] == placed

    def _release(self, host: Host, job: Job) -> None:
        del host.running[job.id]
        host.gpus += job.gpus
        self._touch(host)
        self._free += job.gpus
        self._allocated -= job.gpus
        self._running_of[job.owner] -= job.gpus
        self._running_of_batch[job.demand.batch] -= job.gpus
        if self._waiting:
            # Until the next decision, what became free counts as idle.
            self._idle += job.gpus
            self._idle_strict += job.gpus

    def _requeue(self, host: Host, job: Job, placed: float, until: float) -> None:
        self.metrics.lost += job.gpus * (until - placed)
        self._release(host, job)
        entry = (self._decider.order(job), job)
        queue = self._queues.setdefault(self._kind(job), [])
        queue.append(entry)
        queue.sort(key=lambda entry: entry[0], reverse=True)
        self._waiting += 1
        self._wanted += job.gpus
        self._waiting_of[job.owner] += 1

    def _fail(self, at: float, host: Host) -> None:
        if host.alive:
            host.alive = False
            self._up -= HOST_GPUS
            self._push(at + SUSPECT, "silent", host)
            self._push(at + LEASE, "lost", host)
            self._push(at + REPAIR, "back", host)

    def _silent(self, at: float, host: Host) -> None:
        host.silent = True
        self._touch(host)
        self._look()

    def _lost(self, at: float, host: Host) -> None:
        for job, placed, _ in list(host.running.values()):
            self._requeue(host, job, placed, at)
        self._free -= host.gpus
        self._look()

    def _back(self, at: float, host: Host) -> None:
        host.alive, host.silent, host.starting = True, False, 0
        self._touch(host)
        self._free += host.gpus
        self._up += HOST_GPUS
        self._look()

    def _unclaimed(self, at: float, who: tuple[Host, Job, float]) -> None:
        if self._current(who):
            host, job, placed = who
            host.starting -= 1
            self._requeue(host, job, placed, at)

    def _again(self, at: float, _: object) -> None:
        """A tick without news."""

    # What is decided.

    def _heads(self) -> list[Job]:
        heads: list[Job] = []
        for (gpus, _), queues in self._by_need().items():
            count = min(128, self._free // gpus + self._decider.ahead)
            if not self._decider.by_batch:
                heads += [job for _, job in islice(reversed(queues[0]), count)]
                continue
            lines = {Line(queue[-1][1].demand.batch, 0, len(queue)): queue for queue in queues}
            for line, n in look_ahead(lines, self._running_of_batch, gpus, count).items():
                heads += [job for _, job in islice(reversed(lines[line]), n)]
        return heads

    def _by_need(self) -> dict[tuple[int, float], list[list[tuple[tuple[object, ...], Job]]]]:
        found: dict[tuple[int, float], list[list[tuple[tuple[object, ...], Job]]]] = {}
        for (gpus, bound, _), queue in self._queues.items():
            if queue:
                found.setdefault((gpus, bound), []).append(queue)
        return found

    def _supplies(self) -> list[Supply]:
        """What the decider looks at, in a fixed order."""
        for name in self._changed:
            host = self._by_name[name]
            if host.silent:
                self._offers.pop(name, None)
            else:
                self._offers[name] = host.offer()
        self._changed.clear()
        if self._decider.looks_at_all:
            return list(self._offers.values())
        return [self._offers[name] for name in sorted(self._loose) if name in self._offers]

    def _decide(self, tick: float) -> None:
        heads = self._heads()
        supplies = self._supplies()
        began = time.process_time()
        chosen, self._reserved = self._decider.decide(heads, supplies, tick)
        took = time.process_time() - began
        self.metrics.deciding += took
        self.metrics.slowest = max(self.metrics.slowest, took)
        self.metrics.calls += 1
        self.metrics.decisions += len(chosen)
        jobs = {job.id: job for job in heads}
        for name, worker in chosen:
            self._place(jobs[name], self._by_name[worker], tick)
        if chosen:
            gone = {name for name, _ in chosen}
            for queue in self._queues.values():
                _drop(queue, gone)
            self._queues = {kind: queue for kind, queue in self._queues.items() if queue}
            if len(chosen) >= 128:
                self._push(tick + self._decider.clock, "again", None)

    def _place(self, job: Job, host: Host, at: float) -> None:
        if job.gpus > host.gpus or host.silent:
            raise RuntimeError(f"{self._decider.name} put {job.id} where there is no room")
        host.gpus -= job.gpus
        host.running[job.id] = (job, at, at + job.demand.bound_seconds)
        host.starting += 1
        self._touch(host)
        self._free -= job.gpus
        self._allocated += job.gpus
        self._waiting -= 1
        self._wanted -= job.gpus
        self._waiting_of[job.owner] -= 1
        self._running_of[job.owner] += job.gpus
        self._running_of_batch[job.demand.batch] += job.gpus
        if job.started is None:
            job.started = at
        who = (host, job, at)
        if host.alive:
            self._push(at + job.starting, "started", who)
            self._push(at + job.seconds, "end", who)
        else:
            self._push(at + UNCLAIMED, "unclaimed", who)


def _drop(queue: list[tuple[tuple[object, ...], Job]], gone: set[str]) -> None:
    """Remove what was placed: it stands near the end of the queue, where its head is."""
    kept = []
    left = sum(1 for _, job in islice(reversed(queue), 160) if job.id in gone)
    while left:
        entry = queue.pop()
        if entry[1].id in gone:
            left -= 1
        else:
            kept.append(entry)
    queue.extend(reversed(kept))
