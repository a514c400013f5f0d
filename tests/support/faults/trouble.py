"""Random faults from a seed, several at a time, and what may break in server mode.

`Trouble` picks faults and ends each of them; the functions below it make the faults.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.support.faults.hosts.process import FleetProcess
from tests.support.faults.proxy import Proxy
from tests.support.postgres import PostgresServer
from tests.support.stack import Part, Redis

log = logging.getLogger(__name__)
Seconds = Callable[[random.Random], float]


@dataclass(frozen=True)
class Fault:
    """Something that breaks: `begin` breaks it, `end` repairs it.

    Two faults with the same `target` do not happen at once. `happened` is called before `end`, and
    proves that something broke.
    """

    name: str
    target: str
    begin: Callable[[], object]
    end: Callable[[], object]
    lasts: Seconds
    happened: Callable[[], bool] = lambda: True


@dataclass(frozen=True)
class Happening:
    """A fault that was caused, for the record."""

    at: float
    name: str
    target: str
    seconds: float


class Trouble:
    """Causes faults at random moments, from a seed, until it is stopped."""

    def __init__(
        self, faults: Sequence[Fault], *, seed: int, every: float, at_once: int = 3
    ) -> None:
        """`every`: seconds between two faults on average; `at_once`: how many may overlap."""
        self._faults = list(faults)
        self._chance = random.Random(seed)
        self._every = every
        self._slots = threading.Semaphore(at_once)
        self._busy: set[str] = set()
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self._began = time.monotonic()
        self.history: list[Happening] = []
        self.wrong: list[str] = []
        self._thread = threading.Thread(target=self._run, name="trouble", daemon=True)

    @property
    def counts(self) -> Counter[str]:
        """How often each kind of fault happened."""
        return Counter(one.name for one in self.history)

    def start(self) -> None:
        """Start the thread that causes faults."""
        self._thread.start()

    def stop(self) -> None:
        """Cause no more faults, and wait until everything is repaired."""
        self._stopping.set()
        self._thread.join()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(self._chance.expovariate(1 / self._every)):
            self._slots.acquire()
            fault = self._choose()
            if fault is None or self._stopping.is_set():
                self._slots.release()
                continue
            seconds = fault.lasts(self._chance)
            thread = threading.Thread(target=self._cause, args=(fault, seconds), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _choose(self) -> Fault | None:
        """Return a fault of something that works; kinds are equally likely, not targets."""
        with self._lock:
            free = [fault for fault in self._faults if fault.target not in self._busy]
            if not free:
                return None
            kind = self._chance.choice(sorted({fault.name for fault in free}))
            fault = self._chance.choice([one for one in free if one.name == kind])
            self._busy.add(fault.target)
        return fault

    def _cause(self, fault: Fault, seconds: float) -> None:
        at = time.monotonic() - self._began
        try:
            fault.begin()
            self._stopping.wait(seconds)
            if not fault.happened():
                self.wrong.append(f"{fault.name} of {fault.target} did nothing")
        except Exception as error:
            log.exception("%s of %s", fault.name, fault.target)
            self.wrong.append(f"{fault.name} of {fault.target}: {error}")
        finally:
            self._repair(fault)
            with self._lock:
                self._busy.discard(fault.target)
                self.history.append(Happening(round(at, 2), fault.name, fault.target, seconds))
            self._slots.release()

    def _repair(self, fault: Fault) -> None:
        try:
            fault.end()
        except Exception as error:
            log.exception("the end of %s of %s", fault.name, fault.target)
            self.wrong.append(f"{fault.name} of {fault.target} was not repaired: {error}")


def _kind(part: Part) -> str:
    return part.name.partition("-")[0]


def killed(part: Part) -> Fault:
    """kill -9, and started again seconds later."""
    return Fault(
        f"{_kind(part)} killed",
        part.name,
        part.kill,
        part.start,
        lambda chance: chance.uniform(0, 4),
        lambda: not part.running,
    )


def stopped(part: Part, lease: float) -> Fault:
    """SIGSTOP, perhaps for longer than a lease."""
    return Fault(
        f"{_kind(part)} stopped",
        part.name,
        part.pause,
        part.resume,
        lambda chance: chance.uniform(1, lease * 1.3),
    )


def hosts_killed(fleet: FleetProcess, lease: float) -> Fault:
    """kill -9 of a process of hosts; what they run goes on, or ends with it."""
    return Fault(
        "hosts killed, runs go on" if fleet.adopts else "hosts killed with their runs",
        fleet.label,
        fleet.kill,
        fleet.start,
        lambda chance: chance.uniform(0, lease * 2),
        lambda: not fleet.running,
    )


def hosts_stopped(fleet: FleetProcess, lease: float) -> Fault:
    """SIGSTOP for longer than a lease: when they go on, others do their work."""
    return Fault(
        "hosts stopped past their lease",
        fleet.label,
        fleet.pause,
        fleet.resume,
        lambda chance: lease * chance.uniform(1.1, 2),
    )


def cut(target: str, proxy: Proxy, lease: float) -> Fault:
    """Every connection is closed, and none is let through."""
    return _network("network cut", target, proxy, lease, silent=False)


def frozen(target: str, proxy: Proxy, lease: float) -> Fault:
    """Connections stay open, and nothing passes."""
    return _network("network silent", target, proxy, lease, silent=True)


def _network(name: str, target: str, proxy: Proxy, lease: float, *, silent: bool) -> Fault:
    def length(chance: random.Random) -> float:
        return chance.uniform(1, lease * 1.5)

    begin = proxy.freeze if silent else proxy.cut
    return Fault(name, target, begin, proxy.heal, length)


def postgres_killed(cluster: PostgresServer, lease: float) -> Fault:
    """kill -9 of all its processes; back at once, soon, or after a lease."""
    return Fault(
        "postgres killed",
        "postgres",
        cluster.kill,
        cluster.start,
        lambda chance: chance.choice([0.0, 2.0, lease + 3]),
        lambda: not cluster.answers(),
    )


def flushed(redis: Redis) -> Fault:
    """Every message and every user is lost."""
    return Fault("redis flushed", redis.name, redis.flush, _nothing, lambda _: 0.0)


def _nothing() -> None:
    """Nothing has to be repaired."""
