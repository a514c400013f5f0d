"""Simulate the scheduler's policy beside simpler ones, and hold it to its bars.

python -m benchmarks.scheduler            # everything; long
python -m benchmarks.scheduler --quick    # few seeds on 64 GPUs; seconds
python -m benchmarks.scheduler --only c h1 --gpus 256 --seeds 5
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from itertools import product

from benchmarks.scheduler.measure import Outcome, Summary, run
from benchmarks.scheduler.rivals import Assay, Backfill, Clairvoyant, Decider, Fifo, Poll
from benchmarks.scheduler.table import failed_bars, summary_line, tables
from benchmarks.scheduler.workloads import KINDS, failures, workload

GPUS, SEEDS = (64, 256, 1024), 20
QUICK_GPUS, QUICK_SEEDS = (64,), 3
# Beside a queue of 100,000 nothing is learned from a small sample that 10,000 do not show.
QUICK_LEAVES_OUT = {"e10k", "e100k"}

Group = tuple[str, int]


def one(cell: tuple[str, int, int]) -> dict[str, Outcome]:
    """All deciders on one draw of a workload."""
    # A collection in the middle of a decision would be counted as the decision's time.
    gc.disable()
    gc.collect()
    name, seed, gpus = cell
    kind = next(kind for kind in KINDS if kind.name == name)
    load = workload(kind, gpus, seed)
    broken = list(failures(load))
    deciders: list[Decider] = [Assay(), Fifo(), Backfill(), Poll()]
    outcomes = {each.name: run(load, each, broken) for each in deciders}
    if kind.bar == "clairvoyant":
        outcomes[Clairvoyant.name] = min(
            (
                run(load, Clairvoyant(broken, largest_first=first), broken)
                for first in (True, False)
            ),
            key=lambda outcome: outcome.makespan,
        )
    return outcomes


def every(names: list[str], sizes: tuple[int, ...], seeds: int, processes: int) -> list[Summary]:
    """Summaries over the seeds, in the order of the workloads."""
    grid = list(product(names, range(seeds), sizes))
    found: dict[Group, dict[str, list[Outcome]]] = {
        group: defaultdict(list) for group in product(names, sizes)
    }
    began = time.monotonic()
    with ProcessPoolExecutor(processes) as pool:
        results = pool.map(one, grid, chunksize=len(sizes))
        for (name, seed, gpus), outcomes in zip(grid, results, strict=True):
            for decider, outcome in outcomes.items():
                found[name, gpus][decider].append(outcome)
            if (seed, gpus) == (seeds - 1, sizes[-1]):
                print(f"{name}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    return [
        Summary.of(name, gpus, decider, outcomes, by_decider)
        for (name, gpus), by_decider in found.items()
        for decider, outcomes in by_decider.items()
    ]


def main() -> int:
    """Print the table, what missed its bar, and a line of JSON."""
    parser = argparse.ArgumentParser(prog="benchmarks.scheduler", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", nargs="+", choices=[kind.name for kind in KINDS])
    parser.add_argument("--gpus", nargs="+", type=int)
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--processes", type=int, default=1)
    args = parser.parse_args()
    names = [kind.name for kind in KINDS if not args.quick or kind.name not in QUICK_LEAVES_OUT]
    sizes = tuple(args.gpus or (QUICK_GPUS if args.quick else GPUS))
    seeds = args.seeds or (QUICK_SEEDS if args.quick else SEEDS)
    began = time.monotonic()
    summaries = every(args.only or names, sizes, seeds, args.processes)
    print(tables(summaries))
    missed = failed_bars(summaries)
    for line in missed:
        print(f"missed: {line}")
    seconds = time.monotonic() - began
    print(json.dumps(summary_line(summaries, missed, seeds, seconds)))
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
