"""Random faults, several at a time, each ended by the thread that began it."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

log = logging.getLogger(__name__)
Seconds = Callable[[random.Random], float]


@dataclass(frozen=True)
class Fault:
    """Something that breaks: `begin` breaks it, `end` mends it again.

    Two faults with the same `target` do not happen at once. `happened` is asked before `end`, and
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
    """A fault that was inflicted, for the record."""

    at: float
    name: str
    target: str
    seconds: float


class Trouble:
    """Inflicts faults at random moments, from a seed, until it is stopped."""

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
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Inflict no more, and wait until everything is mended."""
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
            thread = threading.Thread(target=self._inflict, args=(fault, seconds), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _choose(self) -> Fault | None:
        """A fault of something that is whole; kinds are equally likely, not targets."""
        with self._lock:
            free = [fault for fault in self._faults if fault.target not in self._busy]
            if not free:
                return None
            kind = self._chance.choice(sorted({fault.name for fault in free}))
            fault = self._chance.choice([one for one in free if one.name == kind])
            self._busy.add(fault.target)
        return fault

    def _inflict(self, fault: Fault, seconds: float) -> None:
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
            self._mend(fault)
            with self._lock:
                self._busy.discard(fault.target)
                self.history.append(Happening(round(at, 2), fault.name, fault.target, seconds))
            self._slots.release()

    def _mend(self, fault: Fault) -> None:
        try:
            fault.end()
        except Exception as error:
            log.exception("the end of %s of %s", fault.name, fault.target)
            self.wrong.append(f"{fault.name} of {fault.target} was not mended: {error}")
