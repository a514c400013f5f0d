"""kill -9 of the embedded service in the middle of a batch: nothing lost, nothing doubled.

    python benchmarks/chaos.py --moments 20 --seed 0

Each moment: a fresh data folder, a batch of 12 `toy` ideas, `kill -9` of the service at a seeded
fraction of the time the batch takes undisturbed, a restart on the same data, and a check that
every experiment ended, that each measurement has exactly one result, and that no process of the
killed service is left. A moment counts only if the kill hit unfinished work.
"""

from __future__ import annotations

import argparse
import json
import random
import sqlite3
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from tests.support.service import ServiceProcess, toy_batch, toy_ideas
from tests.support.waiting import wait_until

IDEAS = 12
FINISH_SECONDS = 90
TERMINAL = ("succeeded", "failed", "cancelled")


@dataclass(frozen=True)
class Moment:
    """One kill and what came of it."""

    seed: int
    fraction: float
    killed_after_s: float
    states_at_kill: dict[str, int]
    recovered_s: float
    experiments: int
    results: int
    attempts: int


def undisturbed_seconds(folder: Path, sandbox: str) -> float:
    """How long the batch takes when nobody kills anything."""
    service = ServiceProcess(folder, sandbox=sandbox)
    service.start()
    try:
        with service.client() as client:
            started = time.monotonic()
            batch = client.batches.create(toy_batch(toy_ideas(IDEAS)))
            client.batches.wait(batch.id, timeout=FINISH_SECONDS)
            return time.monotonic() - started
    finally:
        service.stop()


def kill_and_recover(folder: Path, seed: int, typical_s: float, sandbox: str) -> Moment:
    """Kill the service at a seeded moment, start it again, and check what it made of it.

    Raises:
        AssertionError: something was lost, doubled or left behind.
    """
    fraction = random.Random(seed).uniform(0.0, 0.95)
    for attempt in range(6):
        moment = _try(folder / f"try-{attempt}", seed, fraction, typical_s, sandbox)
        if moment is not None:
            return moment
        fraction *= 0.6  # everything had finished before the kill: that proves nothing
    raise AssertionError("the kill never hit unfinished work")


def _try(
    folder: Path, seed: int, fraction: float, typical_s: float, sandbox: str
) -> Moment | None:
    service = ServiceProcess(folder, sandbox=sandbox)
    service.start()
    children = psutil.Process(service.pid).children(recursive=True)
    with service.client() as client:
        batch = client.batches.create(toy_batch(toy_ideas(IDEAS))).id
    started = time.monotonic()
    time.sleep(fraction * typical_s)
    children += psutil.Process(service.pid).children(recursive=True)
    service.kill()
    killed_after = time.monotonic() - started
    states = _experiment_states(folder, batch)
    if all(state in TERMINAL for state in states):
        return None
    wait_until(
        lambda: not any(_is_running(child) for child in children),
        "processes of the killed service are gone",
        5,
    )
    restarted = time.monotonic()
    service.start()
    try:
        with service.client() as client:
            client.batches.wait(batch, timeout=FINISH_SECONDS)
        recovered = time.monotonic() - restarted
    finally:
        service.stop()
    return _check(folder, batch, seed, fraction, killed_after, states, recovered)


def _is_running(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def _experiment_states(folder: Path, batch: str) -> list[str]:
    return [
        row[0] for row in _query(folder, "SELECT state FROM experiment WHERE batch_id = ?", batch)
    ]


def _check(
    folder: Path,
    batch: str,
    seed: int,
    fraction: float,
    killed_after: float,
    before: list[str],
    recovered: float,
) -> Moment:
    states = _experiment_states(folder, batch)
    assert len(states) == IDEAS, f"{len(states)} experiments of {IDEAS}"
    assert states == ["succeeded"] * IDEAS, states
    measured = _query(
        folder,
        """SELECT m.id, m.state, count(r.measurement_id) FROM measurement m
           LEFT JOIN result r ON r.measurement_id = m.id GROUP BY m.id""",
    )
    assert len(measured) == IDEAS + 1, f"{len(measured)} measurements: some are doubled or lost"
    for measurement, state, results in measured:
        assert (state, results) == ("succeeded", 1), (measurement, state, results)
    live = _query(
        folder, "SELECT id FROM attempt WHERE released_at IS NULL OR finished_at IS NULL"
    )
    assert not live, f"attempts that never ended: {live}"
    doubled = _query(
        folder,
        """SELECT measurement_id FROM attempt WHERE state = 'succeeded'
           GROUP BY measurement_id HAVING count(*) > 1""",
    )
    assert not doubled, f"measured successfully twice: {doubled}"
    attempts = _query(folder, "SELECT count(*) FROM attempt")[0][0]
    return Moment(
        seed=seed,
        fraction=round(fraction, 3),
        killed_after_s=round(killed_after, 3),
        states_at_kill={state: before.count(state) for state in sorted(set(before))},
        recovered_s=round(recovered, 2),
        experiments=len(states),
        results=len(measured),
        attempts=attempts,
    )


def _query(folder: Path, statement: str, *values: str) -> list[tuple[object, ...]]:
    connection = sqlite3.connect(f"file:{folder}/assay.db?mode=ro", uri=True)
    try:
        return connection.execute(statement, values).fetchall()
    finally:
        connection.close()


def main() -> None:
    """Kill at every moment and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--moments", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sandbox", default="auto")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="assay-chaos-") as name:
        folder = Path(name)
        typical = undisturbed_seconds(folder / "undisturbed", args.sandbox)
        print(f"undisturbed, {IDEAS} ideas take {typical:.2f} s")
        moments = []
        for seed in range(args.seed, args.seed + args.moments):
            moment = kill_and_recover(folder / f"seed-{seed}", seed, typical, args.sandbox)
            moments.append(moment)
            print(json.dumps(asdict(moment)))
    print(
        json.dumps(
            {
                "benchmark": "chaos",
                "moments": len(moments),
                "experiments": sum(m.experiments for m in moments),
                "lost": 0,
                "doubled": 0,
                "attempts_repeated": sum(m.attempts - m.results for m in moments),
                "alternative": "the same batch undisturbed",
                "undisturbed_s": round(typical, 2),
            }
        )
    )


if __name__ == "__main__":
    main()
