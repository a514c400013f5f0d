"""kill -9 and random faults, for longer than tests do: nothing lost, doubled or left behind.

    python -m benchmarks.chaos moments --moments 20   # the embedded service, once per data folder
    python -m benchmarks.chaos kills --kills 200      # the embedded service, on one data folder
    python -m benchmarks.chaos implement --kills 50   # an implement worker, in its model calls
    python -m benchmarks.chaos soak --minutes 20      # server mode with 64 fake hosts

`make chaos` runs all four. What each does and checks is in `tests.support.faults`: `embedded`,
`implement_kills`, `soak` and `invariants`. The last line is JSON; the exit code is 1 if something
was lost, doubled or left behind.
"""

from __future__ import annotations

import argparse
import json
import logging
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.support.faults import embedded, soak
from tests.support.faults.arena import Arena
from tests.support.faults.implement_kills import check_drill, drill
from tests.support.postgres import temporary_postgres

Found = dict[str, Any]


def moments(args: argparse.Namespace) -> Found:
    """Kill a fresh service at each seeded moment of a batch of twelve ideas."""
    found = []
    with tempfile.TemporaryDirectory(prefix="assay-chaos-") as name:
        folder = Path(name)
        typical = embedded.undisturbed_seconds(folder / "undisturbed", args.sandbox)
        print(f"undisturbed, {embedded.IDEAS} ideas take {typical:.2f} s")
        for seed in range(args.seed, args.seed + args.moments):
            data = folder / f"seed-{seed}"
            recovery = embedded.kill_at_a_moment(data, seed, typical, args.sandbox)
            found.append(recovery)
            moment = {
                "seed": seed,
                "killed_after_s": recovery.killed_after_s,
                "states_at_kill": recovery.states_at_kill,
                "recovered_s": recovery.recovered_s,
                "attempts": recovery.attempts,
            }
            print(json.dumps(moment), flush=True)
    results = sum(one.report.counts["results"] for one in found)
    return {
        "moments": len(found),
        "experiments": sum(one.report.counts["experiments"] for one in found),
        "attempts_repeated": sum(sum(one.attempts.values()) for one in found) - results,
        "undisturbed_s": round(typical, 2),
        "violations": [text for one in found for text in one.report.violations],
    }


def kills(args: argparse.Namespace) -> Found:
    """Kill the service again and again on one data folder."""
    with tempfile.TemporaryDirectory(prefix="assay-kills-") as name:
        recovery = embedded.kill_repeatedly(
            Path(name) / "data", args.kills, seed=args.seed, sandbox=args.sandbox
        )
    return {
        "kills": recovery.kills,
        "kills_that_hit_work": recovery.hit_work,
        "experiments": recovery.report.counts["experiments"],
        "results": recovery.report.counts["results"],
        "attempts": recovery.attempts,
        "failed_by_code": recovery.failed_by_code,
        "violations": recovery.report.violations,
    }


def implement(args: argparse.Namespace) -> Found:
    """Kill an implement worker in the middle of its calls."""
    with tempfile.TemporaryDirectory(prefix="assay-implement-") as name:
        with temporary_postgres() as cluster, Arena(Path(name), cluster, s3=False) as arena:
            ideas = args.kills * 2
            drilled = drill(arena, args.kills, staged=ideas, paper=ideas // 3, seed=args.seed)
            outcome = check_drill(arena, drilled)
            arena.heal()
            report = arena.sound()
    return {**asdict(outcome), "violations": report.violations}


def soaked(args: argparse.Namespace) -> Found:
    """Keep server mode under random faults."""
    plan = soak.Plan(minutes=args.minutes, seed=args.seed, hosts=args.hosts, ideas=args.ideas)
    folder = Path(tempfile.mkdtemp(prefix="assay-soak-"))
    try:
        with temporary_postgres() as cluster:
            return soak.run(folder, cluster, plan)
    finally:
        if args.keep:
            print(f"logs, journals and history are in {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.chaos",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parts = parser.add_subparsers(required=True, metavar="PART")

    def part(name: str, run: Callable[[argparse.Namespace], Found]) -> argparse.ArgumentParser:
        found = parts.add_parser(name, help=(run.__doc__ or "").strip())
        found.set_defaults(run=run, benchmark=f"chaos {name}")
        found.add_argument("--seed", type=int, default=0)
        return found

    one = part("moments", moments)
    one.add_argument("--moments", type=int, default=20)
    one.add_argument("--sandbox", default="auto")
    one = part("kills", kills)
    one.add_argument("--kills", type=int, default=200)
    one.add_argument("--sandbox", default="auto")
    one = part("implement", implement)
    one.add_argument("--kills", type=int, default=50)
    one = part("soak", soaked)
    one.add_argument("--minutes", type=float, default=20.0)
    one.add_argument("--hosts", type=int, default=64)
    one.add_argument("--ideas", type=int, default=2000)
    one.add_argument("--keep", action="store_true", help="Leave logs and journals.")
    return parser


def main() -> None:
    """Run the part that is asked for; exit code 1 if an invariant does not hold."""
    args = _parser().parse_args()
    logging.basicConfig(level=logging.WARNING)
    began = time.monotonic()
    found = {"benchmark": args.benchmark, "seed": args.seed, **args.run(args)}
    found.setdefault("seconds", round(time.monotonic() - began, 1))
    print(json.dumps(found))
    if found["violations"] or found.get("faults_that_failed"):
        sys.exit(1)


if __name__ == "__main__":
    main()
