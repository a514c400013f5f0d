"""What many clients cost the measurements, and whether each of them is told everything.

Two phases of the same work: alone, and beside streams and requests from `generator.py`, which has
a core to itself. The service, its workers and their trainings have the others.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx2
import psutil
from sqlalchemy import Engine, create_engine, select, text

from assay.client import Client
from assay.domain.states import TERMINAL_EXPERIMENT
from assay.storage import schema
from assay.storage.database import Database
from benchmarks.api.requests import LOAD, Latency, Paths
from tests.support.service import toy_batch, toy_ideas
from tests.support.stack import Stack

BATCHES = 20
WAIT_SECONDS = 900.0
_OPEN = ("submitted", "implementing")


@dataclass(frozen=True)
class Clients:
    """How many streams are open, and how many requests come per second."""

    streams: int
    rate: float


class Cpu:
    """Processor seconds: of the API, of what measures (with trainings), and of the database."""

    def __init__(self, stack: Stack, engine: Engine) -> None:
        self._stack, self._engine = stack, engine
        self._backends: dict[int, float] = {}
        self._database = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._look()
        self._database = 0.0
        self._thread.start()

    def read(self) -> dict[str, float]:
        """Seconds so far."""
        self._look()
        measuring = [self._stack.scheduler, *self._stack.implementers]
        measuring += self._stack.workers.values()
        return {
            "api": _of_tree(self._stack.api.pid),
            "measuring": sum(_of_tree(part.pid) for part in measuring),
            "database": self._database,
        }

    def close(self) -> None:
        """Stop watching."""
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(1.0):
            self._look()

    def _look(self) -> None:
        """Add what the database's processes for us have used since the last look."""
        with self._engine.connect() as connection:
            pids = connection.execute(
                text("SELECT pid FROM pg_stat_activity WHERE datname = current_database()")
            ).scalars()
            found = {pid: _own(psutil.Process(pid)) for pid in pids if psutil.pid_exists(pid)}
        for pid, seconds in found.items():
            self._database += seconds - self._backends.get(pid, 0.0)
        self._backends |= found


def _own(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _of_tree(pid: int) -> float:
    """Of a process and all that it started, also of what has ended and was waited for."""
    total = 0.0
    root = psutil.Process(pid)
    for process in [root, *root.children(recursive=True)]:
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += sum((times.user, times.system, times.children_user, times.children_system), 0.0)
    return total


class Work:
    """Open batches of `toy` ideas, all of them implemented, so that only measuring is left."""

    def __init__(self, client: Client, ideas: int, first: int) -> None:
        self._client = client
        each = max(1, ideas // BATCHES)
        made = [
            client.batches.create(
                toy_batch(toy_ideas(each, first=first + n * each), baseline_seeds=0)
            )
            for n in range(BATCHES)
        ]
        self.batches = [batch.id for batch in made]
        _wait(lambda: not any(self._count(_OPEN)), "all ideas are implemented")
        if not any(self._count(["queued", "running"])):
            raise RuntimeError("this database holds these measurements already: fill a new one")

    def _count(self, states: Sequence[str]) -> list[int]:
        found = [self._client.batches.get(batch).counts for batch in self.batches]
        return [sum(getattr(counts, state) for state in states) for counts in found]

    def finished(self) -> int:
        """How many measurements have ended."""
        return sum(self._count(["succeeded", "failed"]))

    def end(self) -> None:
        """Cancel what is left, and wait until nothing runs."""
        for batch in self.batches:
            self._client.batches.cancel(batch)
        ended = [state.value for state in TERMINAL_EXPERIMENT]
        total = sum(self._client.batches.get(batch).counts.total for batch in self.batches)
        _wait(lambda: sum(self._count(ended)) == total, "all batches have ended")


def _wait(condition: Any, what: str) -> None:
    until = time.monotonic() + WAIT_SECONDS
    while not condition():
        if time.monotonic() > until:
            raise RuntimeError(f"{what}: not within {WAIT_SECONDS:g} s")
        time.sleep(1.0)


def compare(
    stack: Stack, paths: Paths, clients: Clients, seconds: float, ideas: int, core: int
) -> dict[str, Any]:
    """The figures of both phases, each of `seconds`. `core`: that of the generator."""
    engine = create_engine(stack.database_url)
    with stack.client() as client:
        alone = _phase(stack, engine, Work(client, ideas, 0), seconds, None)
        work = Work(client, ideas, ideas)
        with _generator(stack, work.batches, paths, clients, seconds, core) as generator:
            loaded = _phase(stack, engine, work, seconds, generator)
    engine.dispose()
    return {
        "alone": alone,
        "loaded": loaded | _told(stack.database_url, loaded.pop("seen")),
        "cpu_per_measurement_up": _up(alone, loaded, ("api", "measuring", "database")),
        "measuring_cpu_per_measurement_up": _up(alone, loaded, ("measuring",)),
    }


def _up(alone: dict[str, Any], loaded: dict[str, Any], parts: Sequence[str]) -> float:
    before, beside = (
        sum(float(phase["cpu_s"][part]) for part in parts) / max(1, phase["finished"])
        for phase in (alone, loaded)
    )
    return round(beside / before - 1, 3)


def _phase(
    stack: Stack,
    engine: Engine,
    work: Work,
    seconds: float,
    generator: subprocess.Popen[str] | None,
) -> dict[str, Any]:
    cpu = Cpu(stack, engine)
    before, used, began = work.finished(), cpu.read(), time.monotonic()
    if generator is not None:
        _expect(generator, "sent")
    time.sleep(max(0.0, began + seconds - time.monotonic()))
    finished, now, took = work.finished() - before, cpu.read(), time.monotonic() - began
    cpu.close()
    work.end()
    spent = {part: round(now[part] - used[part], 2) for part in now}
    found: dict[str, Any] = {
        "seconds": round(took, 1),
        "finished": finished,
        "cpu_s": spent,
        "cpu_per_measurement_s": round(sum(spent.values()) / max(1, finished), 3),
    }
    if generator is not None:
        assert generator.stdin is not None
        generator.stdin.write("end\n")
        generator.stdin.flush()
        found["seen"] = json.loads(_line(generator))
    return found


@contextmanager
def _generator(
    stack: Stack, batches: list[str], paths: Paths, clients: Clients, seconds: float, core: int
) -> Iterator[subprocess.Popen[str]]:
    """The clients, once their streams are open."""
    dice = random.Random(1)
    kinds = dice.choices(list(LOAD), list(LOAD.values()), k=int(clients.rate * seconds))
    worker, token = _idle_worker(stack)
    orders = {
        "host": "127.0.0.1",
        "port": stack.port,
        "key": stack.key,
        "core": core,
        "batches": [batches[n % len(batches)] for n in range(clients.streams)],
        "rate": clients.rate,
        "paths": [(kind, paths[kind](dice)) for kind in kinds],
        "worker": worker,
        "token": token,
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.api.generator"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdin is not None
        process.stdin.write(f"{json.dumps(orders)}\n")
        process.stdin.flush()
        _expect(process, "ready")
        yield process
    finally:
        process.kill()
        process.wait()


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError("the load generator ended")
    return line


def _expect(process: subprocess.Popen[str], word: str) -> None:
    if (line := _line(process).strip()) != word:
        raise RuntimeError(f"the load generator said {line!r} instead of {word!r}")


def _idle_worker(stack: Stack) -> tuple[str, str]:
    """A worker that is registered and fits nothing: its id and token."""
    with httpx2.Client(base_url=stack.api_url, timeout=60) as http:
        name = f"idle-{os.getpid()}-{time.monotonic_ns()}"
        own = {"Authorization": f"Bearer {stack.key}"}
        made = http.post("/v1/workers", json={"name": name}, headers=own)
        made.raise_for_status()
        token = str(made.json()["token"])
        said = {
            "name": name, "incarnation": "bench", "cpus": 1, "memory_bytes": 1 << 20,
            "hardware_class": "idle", "sandbox": "subprocess", "isolated": False,
        }  # fmt: skip
        headers = {"Authorization": f"Bearer {token}"}
        http.post("/internal/v1/workers", json=said, headers=headers).raise_for_status()
        return str(made.json()["id"]), token


def _told(url: str, seen: dict[str, Any]) -> dict[str, Any]:
    """How requests went, and which events of their batches the streams were not sent once."""
    lost = doubled = sent = 0
    db = Database(url)
    table = schema.Event
    with db.read() as session:
        known = {
            batch: session.scalars(
                select(table.id).where(table.batch_id == batch).order_by(table.id)
            ).all()
            for batch in {stream["batch"] for stream in seen["streams"]}
        }
    db.dispose()
    for stream in seen["streams"]:
        got, wanted = stream["ids"], list(known[stream["batch"]])
        sent += len(got)
        lost += len(set(wanted) - set(got))
        doubled += len(got) - len(set(got))
        if got != sorted(got):
            raise RuntimeError(f"events of {stream['batch']} came out of order")
    delays = [delay for stream in seen["streams"] for delay in stream["delays"]]
    every = [each for of in seen["requests"].values() for each in of]
    return {
        "events_sent": sent,
        "events_lost": lost,
        "events_doubled": doubled,
        "streams_unfinished": sum(not stream["ended"] for stream in seen["streams"]),
        "event_delay": Latency.of(delays),
        "requests": Latency.of(every),
        "by_kind": {kind: Latency.of(of) for kind, of in seen["requests"].items()},
        "errors": seen["errors"],
        "sync": Latency.of(seen["syncs"]),
    }
