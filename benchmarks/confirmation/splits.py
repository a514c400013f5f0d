"""What each of the seven edits gains on both held-out splits, without a service.

    python -m benchmarks.confirmation.splits [--seeds 5] [--first 0] [--edits NAME …]

Trains the unmodified codebase and the edits on the same seeds and scores every training twice, on
`search/` and on `sealed/`. Prints the effect with its 95 % interval and the verdict, as the
service computes them; the last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from assay.domain.states import MeasurementKind
from assay.domain.verdicts import Measured, judge
from assay.environments.catalog import Environment
from benchmarks.confirmation.edits import EDITS, chosen
from tests.support.measuring import ROOT, Bench, TrainingFailed, Tree, opened_bench

#: The split that a measurement of each kind is scored on.
KINDS = {"search": MeasurementKind.SCORE, "sealed": MeasurementKind.CONFIRM}
SPLITS = tuple(KINDS)
BASELINE = "baseline"

#: The metric by codebase, split and seed.
Values = Mapping[tuple[str, str], Mapping[int, float]]


def measured(
    bench: Bench, trees: Mapping[str, Tree], seeds: Sequence[int], parallel: int
) -> dict[tuple[str, str], dict[int, float]]:
    """Train every codebase on every seed, once, and score it on both splits.

    Raises:
        TrainingFailed: a training or its evaluation failed.
    """
    found: dict[tuple[str, str], dict[int, float]] = {
        (name, split): {} for name in trees for split in SPLITS
    }

    def measure(run: tuple[str, int]) -> None:
        name, seed = run
        with bench.trained(trees[name], seed) as training:
            for split in SPLITS:
                result = bench.score(training, KINDS[split])
                if result.error:
                    raise TrainingFailed(f"{name} on seed {seed}, {split}: {result.error}")
                found[name, split][seed] = result.metrics[bench.metric_name]
        both = ", ".join(f"{split} {found[name, split][seed]:.4f}" for split in SPLITS)
        print(f"{name}@{seed}: {both}", file=sys.stderr, flush=True)

    with ThreadPoolExecutor(parallel) as pool:
        list(pool.map(measure, [(name, seed) for seed in seeds for name in trees]))
    return found


def compared(bench: Bench, values: Values, names: Sequence[str]) -> dict[str, Any]:
    """Return effect, interval and verdict of every edit on both splits."""
    direction = bench.environment.manifest.metric.direction
    figures: dict[str, Any] = {}
    for name in names:
        figures[name] = row = {}
        for split in SPLITS:
            idea, base = (Measured.of(values[who, split]) for who in (name, BASELINE))
            assert idea is not None
            assert base is not None
            found = judge(direction, idea, base)
            row[split] = {
                "effect": round(found.effect, 4),
                "low": None if found.low is None else round(found.low, 4),
                "high": None if found.high is None else round(found.high, 4),
                "verdict": found.verdict.value,
            }
    return figures


def table_of(figures: Mapping[str, Any], kinds: Mapping[str, str]) -> str:
    """Return the figures as a Markdown table."""
    lines = ["| edit | class | search | | sealed | |", "|---" * 6 + "|"]
    for name, row in figures.items():
        cells = [name.replace("_", " "), kinds[name]]
        for split in SPLITS:
            found = row[split]
            interval = (
                "" if found["low"] is None else f" [{found['low']:+.3f}, {found['high']:+.3f}]"
            )
            cells += [f"{found['effect']:+.4f}{interval}", found["verdict"]]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=int, default=0, help="the first seed (default: 0)")
    parser.add_argument("--edits", nargs="*", default=[], metavar="NAME")
    parser.add_argument("--parallel", type=int, default=2)
    given = parser.parse_args()
    edits = chosen(given.edits)
    seeds = range(given.first, given.first + given.seeds)
    with opened_bench(Environment.load(ROOT / "environments" / "nanogpt"), "tiny") as bench:
        trees = {BASELINE: bench.baseline} | {e.name: e.tree(bench.baseline) for e in edits}
        values = measured(bench, trees, seeds, given.parallel)
        figures = compared(bench, values, [edit.name for edit in edits])
    print(table_of(figures, {edit.name: edit.kind for edit in EDITS}), flush=True)
    summary = {
        "name": "confirmation-splits",
        "environment": bench.environment.id,
        "hardware_class": bench.hardware_class,
        "seeds": list(seeds),
        "values": {f"{n}/{s}": [v[seed] for seed in seeds] for (n, s), v in values.items()},
        "figures": figures,
    }
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
