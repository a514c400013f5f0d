"""`python -m benchmarks.execution [PART …]`: how fast the execution layer is, on Postgres.

    ticks    the scheduler's tick with a long queue: all of it, and its SQL alone
    syncs    heartbeats of workers that hold 8 attempts: storage alone, then over HTTP
    service  no-op measurements through fake hosts, API, scheduler and Postgres
    celery   as many no-op messages through Celery on Redis, without any guarantee

The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.execution import celery_alone, database, service, syncs, ticks

PARTS = ("ticks", "syncs", "service", "celery")


def main() -> None:
    """Run the parts that are asked for, or all."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.execution", description=__doc__)
    parser.add_argument("parts", nargs="*", default=PARTS, metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--queued", type=int, default=100_000)
    parser.add_argument("--ticks", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=20.0, help="Of syncs and of service.")
    args = parser.parse_args()
    found: dict[str, Any] = {"queued": args.queued, "gpus": database.HOSTS * database.GPUS}
    with tempfile.TemporaryDirectory() as folder, database.database() as db:
        world = database.fill(db, Path(folder), args.queued)
        _run(world, Path(folder), args.parts, args, found)
    print(json.dumps(found))


def _run(
    world: database.World,
    folder: Path,
    parts: Sequence[str],
    args: argparse.Namespace,
    found: dict[str, Any],
) -> None:
    if "ticks" in parts:
        found["ticks"] = _show("ticks", ticks.measure(world, args.ticks))
    if "syncs" in parts:
        ticks.occupy(world)
        found["syncs"] = _show(
            "syncs",
            {"alone": syncs.alone(world), "threads": syncs.in_process(world, args.seconds)},
        )
    if not {"syncs", "service", "celery"} & set(parts):
        return
    with service.serving(world, folder / "stack") as stack:
        if "syncs" in parts:
            found["syncs"]["http"] = syncs.over_http(world, stack.apis, args.seconds)
            _show("syncs over HTTP", {"http": found["syncs"]["http"]})
        if "service" in parts:
            service.release_all(world)
            rate = service.measure(world, stack, folder, args.seconds)
            found["service"] = _show("service", {"no-op": rate})["no-op"]
        if "celery" in parts and stack.redis is not None:
            rate = celery_alone.measure(stack.redis, 20_000)
            found["celery"] = _show("celery", {"no-op": rate})["no-op"]
    if "service" in found and "celery" in found:
        ours = found["service"]["finished_per_second"]
        found["of_plain_celery"] = round(ours / found["celery"]["per_second"], 3)


def _show(title: str, rows: dict[str, Any]) -> dict[str, Any]:
    print(title, flush=True)
    for name, row in rows.items():
        print(f"  {name:<12} {row}", flush=True)
    return rows


if __name__ == "__main__":
    main()
