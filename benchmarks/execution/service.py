"""Assignments end to end: fake hosts over the real API, a scheduler process, Postgres."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import func, select

from assay.storage import schema, workers
from assay.storage.database import Database
from benchmarks.execution.database import World
from tests.support.faults.hosts.process import FleetProcess
from tests.support.stack import Stack

#: API processes, each with its share of the hosts.
APIS = 2


@contextmanager
def serving(world: World, folder: Path) -> Iterator[Stack]:
    """API and scheduler as processes on the world's database."""
    stack = Stack(
        folder,
        database_url=world.db.url,
        s3=False,
        workers=0,
        implementers=0,
        settings={
            "ASSAY_SERVER_OBJECTS_URL": str(world.objects),
            "ASSAY_SCHEDULER_STARTING_PER_WORKER": "8",
        },
    )
    with stack:
        for _ in range(APIS - 1):
            stack.add_api()
        yield stack


def measure(world: World, stack: Stack, folder: Path, seconds: float) -> dict[str, Any]:
    """How many measurements of no length are assigned and finished in a second."""
    fleets = [_fleet(world, api, folder, part) for part, api in enumerate(stack.apis)]
    for fleet in fleets:
        fleet.start()
    _until(world.db, 200)  # warm
    before, began = _done(world.db), time.perf_counter()
    given = _given(world.db)
    time.sleep(seconds)
    took = time.perf_counter() - began
    found = {
        "finished_per_second": round((_done(world.db) - before) / took, 1),
        "assigned_per_second": round((_given(world.db) - given) / took, 1),
    }
    for fleet in fleets:
        fleet.end()
    return found


def _fleet(world: World, api: str, folder: Path, part: int) -> FleetProcess:
    names = sorted(world.tokens)[part::APIS]
    flags = ["--log-bytes", "0", "--points", "0", "--sync-seconds", "3", "--poll-seconds", "0"]
    return FleetProcess(
        f"fleet-{part}",
        {name: world.tokens[name] for name in names},
        folder,
        api=api,
        flags=flags,
    )


def release_all(world: World) -> None:
    """The hosts of earlier parts are gone."""
    for host in world.hosts:
        with world.db.write() as session:
            workers.remove(world.db, session, host)


def _until(db: Database, number: int, patience: float = 120.0) -> None:
    deadline = time.monotonic() + patience
    first = _done(db)
    while _done(db) - first < number:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{_done(db) - first} measurements ended in {patience:g} s")
        time.sleep(0.2)


def _done(db: Database) -> int:
    with db.read() as session:
        return session.scalars(select(func.count()).select_from(schema.Result)).one()


def _given(db: Database) -> int:
    with db.read() as session:
        return session.scalars(select(func.count()).select_from(schema.Attempt)).one()
