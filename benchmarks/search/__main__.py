"""Which strategy of search finds the best codebase at equal cost?

    make bench-search
    python -m benchmarks.search --quick                  a few draws: does it run?
    python -m benchmarks.search --arm thompson --draws 40
    python -m benchmarks.search --peer openevolve        beside another optimizer (peers/)
    python -m benchmarks.search measure --stop-after 60  train what the table lacks
    python -m benchmarks.search live --stop-after 60     whole searches, see live.py
    python -m benchmarks.search curves                   what a curve tells on the way, curves.py
    python -m benchmarks.search --world hard --final --choice thompson

Runs the strategies of `assay.search` in a world that was measured: 384 codebases of `nanogpt`
`tiny`, with a mutator in the place of a model. The primary outcome, fixed before any of them was
run in it: the true value of the winner after 80 runs' worth of core-seconds, with failures,
measurements on further seeds and the confirmation of the best three; secondary after 240. Every
strategy has the same luck in the same draw, and is compared draw by draw with greedy search in
waves of 8: mean difference, 95 % interval, p values by Student's t adjusted by Holm's procedure.

`--world hard` is for the decision alone, once a choice was made in the first world: see `hard.py`.
The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.calibrate.__main__ import stopping
from benchmarks.discrimination import RESULTS
from benchmarks.search import curves
from benchmarks.search.arms import ARMS, REFERENCE, Arm
from benchmarks.search.compare import BUDGETS, figures, run_arms, run_peer, table_of
from benchmarks.search.hard import NotOpened, open_hard
from benchmarks.search.live import live
from benchmarks.search.measure import measure
from benchmarks.search.peers import KNOWN, open_peer
from benchmarks.search.surrogate import surrogate
from benchmarks.search.worlds import FAILURE, FAILURE_PER_CHANGE, TableUnfit, World, load

DRAWS, PEER_DRAWS, QUICK = 200, 30, 3
_PEER_HELP = f"{', '.join(KNOWN)}, or module:class of another one; may be repeated"
TABLE = "search-nanogpt-tiny-*.json"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what was asked for; returns the exit status."""
    given = _parser().parse_args(arguments)
    if given.command == "live":
        with stopping(given.stop_after) as stop:
            print(json.dumps(live(stop)))
        return 0
    if given.command == "measure":
        with stopping(given.stop_after) as stop:
            print(json.dumps(measure(stop, parallel=given.parallel)))
        return 0
    try:
        if given.command == "curves":
            told = curves.figures_of(curves.curves(_table(given.table)))
            print(curves.table_of(told))
            print(json.dumps({"name": "search-curves", "figures": told}))
            return 0
        arms = _chosen(given.arm)
        world = _world(given, arms)
        peers = [open_peer(each) for each in given.peer]
    except (TableUnfit, NotOpened, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    draws = QUICK if given.quick else given.draws
    peer_draws = min(draws, given.peer_draws)
    started = _core_seconds()
    print(_described(world), flush=True)
    budgets = given.budget or BUDGETS
    by_budget = run_arms(world, arms, draws, budgets, lambda line: print(line, file=sys.stderr))
    results: dict[str, Any] = {}
    for runs, found in by_budget.items():
        for peer in peers:
            began = _core_seconds()
            found[peer.name] = run_peer(world, peer, peer_draws, runs)
            each = (_core_seconds() - began) / peer_draws
            print(f"{peer.name}, {runs:g} runs: {each:.1f} core-seconds a draw", file=sys.stderr)
        rows = figures(world, found, REFERENCE.name)
        results[f"{runs:g}"] = rows
        print(f"\n## {world.name}, {runs:g} runs\n\n{table_of(rows, REFERENCE.name)}", flush=True)
    summary = {
        "name": "search",
        "world": world.name,
        "facts": world.facts,
        "best": world.factors.name(world.best),
        "best_true": round(world.truth[world.best], 5),
        "baseline_true": round(world.truth[world.factors.baseline], 5),
        "noisiness": round(world.noisiness, 4),
        "draws": draws,
        "peer_draws": peer_draws if peers else 0,
        "alternative": REFERENCE.name,
        "core_seconds": round(_core_seconds() - started, 1),
        "figures": results,
    }
    print(json.dumps(summary))
    return 0


def _core_seconds() -> float:
    """Return the core-seconds of this process and of those that it waited for."""
    return sum(os.times()[:4])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "command", nargs="?", choices=["compare", "measure", "live", "curves"], default="compare"
    )
    parser.add_argument("--world", choices=["nanogpt", "hard", "surrogate"], default="nanogpt")
    parser.add_argument("--table", type=Path, help="of runs; default: that in benchmarks/results/")
    parser.add_argument("--draws", type=int, default=DRAWS)
    parser.add_argument("--budget", type=float, action="append", metavar="RUNS")
    parser.add_argument("--arm", action="append", metavar="NAME", help="may be repeated")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME", help=_PEER_HELP)
    parser.add_argument("--peer-draws", type=int, default=PEER_DRAWS)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK} draws")
    parser.add_argument("--final", action="store_true", help="open the second world")
    parser.add_argument("--choice", default="", metavar="ARM", help="made before it is opened")
    parser.add_argument(
        "--stop-after", type=float, metavar="MINUTES", help="measure and live: end cleanly"
    )
    parser.add_argument("--parallel", type=int, default=1, help="measure: runs side by side")
    return parser


def _chosen(names: Sequence[str] | None) -> list[Arm]:
    """Return the arms with these names, and always the reference.

    Raises:
        ValueError: there is no such arm.
    """
    known = {arm.name: arm for arm in ARMS}
    if unknown := set(names or ()) - known.keys():
        raise ValueError(f"no arm {', '.join(unknown)}; there are: {'; '.join(known)}")
    return [arm for arm in ARMS if not names or arm.name in names or arm is REFERENCE]


def _world(given: argparse.Namespace, arms: Sequence[Arm]) -> World:
    """Raises TableUnfit, NotOpened or ValueError: there is no such world, or not like this."""
    if given.world == "surrogate":
        return surrogate()
    if given.world == "nanogpt":
        return load(_table(given.table))
    known = [arm.name for arm in ARMS]
    if not given.final or given.choice not in known:
        raise NotOpened(
            "the second world is opened once, for a decision that was prepared in the first: add "
            f"--final --choice ARM, one of: {'; '.join(known)}"
        )
    return open_hard(load(_table(given.table)), given.choice, [arm.name for arm in arms])


def _table(path: Path | None) -> Path:
    found = [path] if path else sorted(RESULTS.glob(TABLE))
    if not found:
        raise TableUnfit("there is no table yet; run: python -m benchmarks.search measure")
    return found[0]


def _described(world: World) -> str:
    facts = ", ".join(f"{key} {value}" for key, value in world.facts.items())
    best, start = world.truth[world.best], world.truth[world.factors.baseline]
    return (
        f"{world.name}: {len(world.factors.points)} codebases; {facts}\n"
        f"true value of the baseline {start:.4f}, of the best {best:.4f} "
        f"({world.factors.name(world.best)}); noise beside effects {world.noisiness:.2f}; an idea "
        f"fails with probability {FAILURE:g} + {FAILURE_PER_CHANGE:g} per change"
    )


if __name__ == "__main__":
    sys.exit(main())
