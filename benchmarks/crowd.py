"""A batch of 10,000 `toy` ideas, ten batches of five beside it, and its cancellation.

    python -m benchmarks.crowd                              # on SQLite and on Postgres; minutes
    python -m benchmarks.crowd --database sqlite --ideas 2000

SQLite is the embedded service, Postgres a stack of processes. Ten batches of five run alone, three
times. When the large batch is implemented as far ahead as it may be, it runs alone for a while,
then ten more batches of five beside it, three times, and alone once more: each time beside is
compared with the times alone before and after it. Then the large one is cancelled, while another
client submits one idea after another: the longest of those requests says how long a writer waits.
Each time is given in seconds of the clock and, but for the rounds beside, in processor seconds of
the service, without the trainings.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import mean

import psutil
from sqlalchemy import func, select

from assay.client import Client
from assay.contracts.batch import BatchBody
from assay.domain.states import AttemptState
from assay.storage import schema
from assay.storage.database import Database
from benchmarks.machine import about_machine
from tests.support.databases import POSTGRES
from tests.support.service import running, toy_batch, toy_ideas
from tests.support.stack import Stack

SMALL_BATCHES, SMALL_IDEAS, ROUNDS = 10, 5, 3
ALONE_SECONDS = 20.0
#: So many ideas of the large batch wait to be measured when it runs steadily.
STEADY_IDEAS = 200
WAIT_SECONDS = 1800.0
POLL_SECONDS = 0.1
#: Name and limit of each bar; see `bars`.
LIMITS = {
    "accept_s": 5.0,
    "cancel_acknowledged_s": 1.0,
    "cancel_done_s": 60.0,
    "longest_write_s": 1.0,
    "small_ratio": 3.0,
    "throughput_lost": 0.05,
    "rss_mib": 300.0,
    "leases_lost": 0.0,
}


@dataclass(frozen=True)
class Servers:
    """A running service: its processes, its clients and its database."""

    pids: list[int]
    client: Callable[[], Client]
    database_url: str

    def cpu(self) -> float:
        """Processor seconds that the processes themselves have used."""
        times = [psutil.Process(pid).cpu_times() for pid in self.pids]
        return sum(each.user + each.system for each in times)

    def rss_mib(self) -> float:
        """The most memory that any of the processes has held, in MiB."""
        return max(_peak_kib(pid) for pid in self.pids) / 1024


def _peak_kib(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1])
    return psutil.Process(pid).memory_info().rss // 1024


@contextmanager
def on_sqlite(folder: Path) -> Iterator[Servers]:
    """The embedded service."""
    with running(folder) as service:
        yield Servers([service.pid], service.client, f"sqlite:///{service.ready['database']}")


@contextmanager
def on_postgres(folder: Path) -> Iterator[Servers]:
    """API, scheduler, an implement worker and a worker, each a process."""
    with Stack(folder, postgres=POSTGRES, sandbox="auto") as stack:
        parts = [stack.api, stack.scheduler, *stack.implementers]
        yield Servers([part.pid for part in parts], stack.client, stack.database_url)


@contextmanager
def timed(servers: Servers, into: dict[str, float], name: str) -> Iterator[None]:
    """Store the seconds and processor seconds of a block as `NAME_s` and `NAME_cpu_s`."""
    began, used = time.monotonic(), servers.cpu()
    yield
    into[f"{name}_s"] = round(time.monotonic() - began, 2)
    into[f"{name}_cpu_s"] = round(servers.cpu() - used, 2)


def small_batches(client: Client, first: int) -> None:
    """Submit ten batches of five, and wait for all of them."""
    made = [
        client.batches.create(
            toy_batch(toy_ideas(SMALL_IDEAS, first=first + n * SMALL_IDEAS), baseline_seeds=0)
        )
        for n in range(SMALL_BATCHES)
    ]
    for batch in made:
        done = client.batches.wait(batch.id, timeout=WAIT_SECONDS)
        if done.counts.succeeded != SMALL_IDEAS:
            raise RuntimeError(f"{batch.id}: not all succeeded: {done.counts}")


def wait_for(client: Client, batch: str, condition: Callable[[BatchBody], bool]) -> BatchBody:
    """Poll a batch until a condition holds."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition(body := client.batches.get(batch)):
        if time.monotonic() > deadline:
            raise RuntimeError(f"{batch} does not go on: {body.counts}")
        time.sleep(POLL_SECONDS)
    return body


def per_second_alone(client: Client, large: str) -> float:
    """How many ideas of a batch are measured in a second while nothing else runs."""
    began, before = time.monotonic(), client.batches.get(large).counts.succeeded
    time.sleep(ALONE_SECONDS)
    done = client.batches.get(large).counts.succeeded - before
    return done / (time.monotonic() - began)


def per_second_beside(client: Client, large: str, first: int) -> tuple[float, float]:
    """How many ideas of a large batch and of ten small ones are measured in a second, and how
    many seconds the small ones take."""
    began, before = time.monotonic(), client.batches.get(large).counts.succeeded
    small_batches(client, first)
    seconds = time.monotonic() - began
    done = client.batches.get(large).counts.succeeded - before + SMALL_BATCHES * SMALL_IDEAS
    return done / seconds, seconds


class Writer:
    """A client that submits one idea after another, and how long the longest request took."""

    def __init__(self, client: Client, first: int) -> None:
        self.longest = 0.0
        self._client, self._next = client, first
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            request = toy_batch(toy_ideas(1, first=self._next), baseline_seeds=0)
            self._next += 1
            began = time.monotonic()
            self._client.batches.create(request)
            self.longest = max(self.longest, time.monotonic() - began)
            self._stop.wait(0.2)


def measure(servers: Servers, ideas: int) -> dict[str, float]:
    """All figures of one database."""
    found: dict[str, float] = {}
    with servers.client() as client, servers.client() as other:
        small_batches(client, 20_000)  # what is done once, such as preparing data
        with timed(servers, found, "small_alone"):
            for number in range(ROUNDS):
                small_batches(client, 21_000 + 100 * number)
        with timed(servers, found, "accept"):
            large = client.batches.create(toy_batch(toy_ideas(ideas), baseline_seeds=0)).id
        wait_for(client, large, lambda body: body.counts.queued >= STEADY_IDEAS)
        alone, beside, seconds = [per_second_alone(client, large)], list[float](), 0.0
        for number in range(ROUNDS):
            rate, took = per_second_beside(client, large, 22_000 + 100 * number)
            beside.append(rate)
            seconds += took
            alone.append(per_second_alone(client, large))
        found["small_beside_s"] = round(seconds, 2)
        found["small_ratio"] = round(seconds / found["small_alone_s"], 2)
        found["per_second_alone"] = round(mean(alone), 2)
        found["per_second_beside"] = round(mean(beside), 2)
        # Each with those around it, as an experiment costs more the more there are.
        lost_of = [
            1 - rate / mean(around) for rate, around in zip(beside, pairwise(alone), strict=True)
        ]
        found["throughput_lost"] = round(mean(lost_of), 3)
        found["throughput_lost_least"] = round(min(lost_of), 3)
        found["throughput_lost_most"] = round(max(lost_of), 3)
        with Writer(other, 23_000) as writer, timed(servers, found, "cancel_done"):
            with timed(servers, found, "cancel_acknowledged"):
                state = client.batches.cancel(large).state
            if state != "cancelled":
                raise RuntimeError(f"{large} is {state} after its cancellation")
            wait_for(client, large, lambda body: body.finished_at is not None)
        found["longest_write_s"] = round(writer.longest, 2)
    found["rss_mib"] = round(servers.rss_mib())
    found["leases_lost"] = lost(servers.database_url)
    return found


def lost(url: str) -> int:
    """How many attempts were lost, and how often another scheduler had to lead."""
    db = Database(url)
    attempts, leader = schema.Attempt, schema.Leader
    with db.read() as session:
        ended = session.scalars(
            select(func.count()).where(attempts.state == AttemptState.LOST.value)
        ).one()
        epochs = session.scalars(select(leader.epoch)).all()
    db.dispose()
    return ended + sum(epoch - 1 for epoch in epochs)


def main() -> int:
    """Print the figures, what missed its bar, and a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ideas", type=int, default=10_000)
    parser.add_argument("--database", choices=["sqlite", "postgres"], nargs="+")
    args = parser.parse_args()
    places = {"sqlite": on_sqlite, "postgres": on_postgres}
    figures: dict[str, dict[str, float]] = {}
    for name in args.database or places:
        folder = Path(tempfile.mkdtemp(prefix="assay-crowd-"))
        folder.chmod(0o755)
        try:
            with places[name](folder) as servers:
                figures[name] = measure(servers, args.ideas)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        print(name, figures[name], flush=True)
    missed = [
        f"{name}: {bar} {found[bar]:g} > {limit:g}"
        for name, found in figures.items()
        for bar, limit in LIMITS.items()
        if found[bar] > limit
    ]
    for line in missed:
        print(f"missed: {line}")
    summary = {"benchmark": "crowd", "ideas": args.ideas, **about_machine(), **figures}
    print(json.dumps(summary | {"missed": len(missed)}))
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
