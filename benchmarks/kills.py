"""kill -9 of the embedded service, again and again, on one data folder.

    python -m benchmarks.kills --kills 200

Between two kills a batch is submitted and the service works for a seeded while. At the end
everything that was accepted has ended, once, and nothing is left.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import psutil
from sqlalchemy import func, select

from assay.storage import schema
from assay.storage.database import Database
from assay.storage.objects import LocalStore
from tests.support.faults.invariants import Evidence, check
from tests.support.service import ServiceProcess, toy_batch, toy_ideas
from tests.support.waiting import wait_until

LONGEST_SECONDS = 1.2
FINISH_SECONDS = 180.0
_UNFINISHED = ("submitted", "implementing", "queued", "running")


@dataclass(frozen=True)
class Outcome:
    """What the kills hit, and what came of it."""

    kills: int
    hit_work: int
    experiments: int
    results: int
    attempts: dict[str, int]
    failed_by_code: dict[str, int]
    violations: list[str]


def kill_repeatedly(
    folder: Path, kills: int, *, seed: int = 0, sandbox: str = "auto", ideas: int = 3
) -> Outcome:
    """Kill the service so often, let it finish what it accepted, and check the invariants."""
    chance = random.Random(seed)
    service = ServiceProcess(folder, sandbox=sandbox)
    accepted: list[str] = []
    family: list[psutil.Process] = []
    hit = 0
    for number in range(kills):
        service.start()
        with service.client() as client:
            ideas_ = toy_ideas(ideas, first=number * ideas)
            batch = client.batches.create(toy_batch(ideas_)).id
        accepted.append(batch)
        time.sleep(chance.uniform(0, LONGEST_SECONDS))
        family += psutil.Process(service.pid).children(recursive=True)
        service.kill()
        hit += _unfinished(folder) > 0
    service.start()
    try:
        with service.client() as client:
            for batch in accepted:
                client.batches.wait(batch, timeout=FINISH_SECONDS)
        wait_until(lambda: _messages(folder) == 0, "the outbox is empty", 30)
    finally:
        service.stop()
    return _judge(folder, kills, hit, family)


def _open(folder: Path) -> Database:
    return Database(f"sqlite:///{folder}/assay.db")


def _count(folder: Path, query: object) -> int:
    db = _open(folder)
    try:
        with db.read() as session:
            return int(session.scalars(query).one())  # type: ignore[call-overload]
    finally:
        db.dispose()


def _unfinished(folder: Path) -> int:
    table = schema.Experiment
    return _count(
        folder, select(func.count()).select_from(table).where(table.state.in_(_UNFINISHED))
    )


def _messages(folder: Path) -> int:
    return _count(folder, select(func.count()).select_from(schema.Outbox))


def _judge(folder: Path, kills: int, hit: int, family: list[psutil.Process]) -> Outcome:
    db = _open(folder)
    try:
        report = check(
            Evidence(
                db=db,
                store=LocalStore(folder / "objects"),
                scratch=[folder / "scratch"],
                processes=lambda: [str(p) for p in family if _runs(p)],
                crashes=kills,
            )
        )
        with db.read() as session:
            failures = session.scalars(select(schema.Experiment.failure)).all()
    finally:
        db.dispose()
    counts: Counter[str] = report.counts
    return Outcome(
        kills=kills,
        hit_work=hit,
        experiments=counts["experiments"],
        results=counts["results"],
        attempts={k: v for k, v in sorted(counts.items()) if k.startswith("attempts_")},
        failed_by_code=dict(Counter(failure["code"] for failure in failures if failure)),
        violations=report.violations,
    )


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def main() -> None:
    """Kill, and print what came of it; exit code 1 if an invariant does not hold."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sandbox", default="auto")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="assay-kills-") as name:
        began = time.monotonic()
        outcome = kill_repeatedly(
            Path(name) / "data", args.kills, seed=args.seed, sandbox=args.sandbox
        )
    print(
        json.dumps(
            {
                "benchmark": "kills",
                "kills": outcome.kills,
                "kills_that_hit_work": outcome.hit_work,
                "experiments": outcome.experiments,
                "results": outcome.results,
                "attempts": outcome.attempts,
                "failed_by_code": outcome.failed_by_code,
                "violations": outcome.violations,
                "seconds": round(time.monotonic() - began, 1),
            }
        )
    )
    if outcome.violations:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
