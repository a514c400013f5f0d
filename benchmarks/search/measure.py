"""Train and score every codebase of the table, and keep the results.

    python -m benchmarks.search measure --stop-after 60

A run is stored in .assay/search.jsonl when it ends, so an interrupted command continues where it
stopped. Whatever is there when the command ends is written to `benchmarks/results/`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Any

from assay.domain.states import MeasurementKind
from assay.environments.catalog import Environment
from benchmarks.discrimination import RESULTS
from benchmarks.search.points import (
    NANOGPT,
    SEEDS,
    Factors,
    Point,
    codebases,
    repeated_points,
)
from tests.support.measuring import (
    ROOT,
    Bench,
    Result,
    Run,
    Store,
    Training,
    Tree,
    describe,
    measure_runs,
    opened_bench,
)

JOURNAL = ROOT / ".assay" / "search.jsonl"
#: Shares of the training after which the training loss is kept, and how many of the curve's points
#: before that are averaged: one point is the loss of one batch.
SHARES = (0.25, 0.5, 1.0)
AVERAGED = 3


@dataclass(frozen=True)
class CurveBench(Bench):
    """A bench that keeps the training loss on the way beside the metric, as `loss@0.25`.

    The losses are what the codebase wrote itself, about the text that it trained on.
    """

    def score(self, training: Training, kind: MeasurementKind = MeasurementKind.SCORE) -> Result:
        """Score a training, and read its curve."""
        result = super().score(training, kind)
        losses = losses_on_the_way(training.folder / "out" / "metrics.jsonl")
        return replace(result, metrics={**result.metrics, **losses})


def losses_on_the_way(curve: Path) -> dict[str, float]:
    """Return the mean training loss before each of `SHARES` of the steps, if there is a curve."""
    if not curve.is_file():
        return {}
    points = [json.loads(line) for line in curve.read_text().splitlines()]
    losses = [(p["step"], p["train/loss"]) for p in points if "train/loss" in p]
    if not losses:
        return {}
    last = losses[-1][0]
    found: dict[str, float] = {}
    for share in SHARES:
        before = [loss for step, loss in losses if step <= share * last]
        found[f"loss@{share:g}"] = round(fmean(before[-AVERAGED:]), 4)
    return found


def runs_in_order(trees: Mapping[Point, Tree], repeated: Sequence[Point]) -> list[Run]:
    """Return all runs; those that an early stop may leave out come last.

    The repeated points on seed 0, all others on seed 0, the repeated ones on the other seeds.
    """
    others = [point for point in trees if point not in set(repeated)]
    on_first = [(point, 0) for point in [*repeated, *others]]
    on_more = [(point, seed) for seed in range(1, SEEDS) for point in repeated]
    return [Run(NANOGPT.key(point), trees[point], seed) for point, seed in [*on_first, *on_more]]


def measure(
    stop: Callable[[], bool],
    *,
    parallel: int = 1,
    journal: Path = JOURNAL,
    results: Path = RESULTS,
) -> dict[str, Any]:
    """Measure what is missing, and write the table. Returns a summary."""
    environment = Environment.load(ROOT / "environments" / "nanogpt")
    trees = codebases(environment)
    runs = runs_in_order(trees, repeated_points())
    with opened_bench(environment, "tiny") as opened:
        bench = CurveBench(**{f.name: getattr(opened, f.name) for f in fields(opened)})
        store = Store(journal, bench.where())
        left = [sum(store.get(run.codebase, run.seed) is None for run in runs)]
        print(f"{left[0]} of {len(runs)} runs to make", file=sys.stderr, flush=True)

        def report(run: Run, result: Result) -> None:
            left[0] -= 1
            line = describe(run, result, bench.metric_name)
            print(f"{line}; {left[0]} left", file=sys.stderr, flush=True)

        measure_runs(bench, runs, store, parallel=parallel, report=report, stop=stop)
        found = [(run, store.get(run.codebase, run.seed)) for run in runs]
    made = [(run, result) for run, result in found if result is not None]
    summary = {
        "name": "search-table",
        "environment": bench.environment.id,
        "profile": bench.profile_name,
        "hardware_class": bench.hardware_class,
        "metric": bench.metric_name,
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "runs": len(made),
        "missing": len(runs) - len(made),
        "failed": sum(bool(result.error) for _, result in made),
    }
    results.mkdir(exist_ok=True)
    path = results / f"search-nanogpt-tiny-{bench.hardware_class}.json"
    path.write_text(table_text(summary, NANOGPT, made, bench.metric_name))
    return summary


COLUMNS = (
    "point",
    "seed",
    "metric",
    *(f"loss@{share:g}" for share in SHARES),
    "train_seconds",
    "evaluation_seconds",
    "error",
)


def table_text(
    summary: Mapping[str, Any],
    factors: Factors,
    made: Iterable[tuple[Run, Result]],
    metric: str,
) -> str:
    """Return the table as JSON with one run per line. Seconds are CPU seconds of one core."""
    lines = []
    for run, result in made:
        losses = [result.metrics.get(f"loss@{share:g}") for share in SHARES]
        seconds = [round(result.train_seconds, 2), round(result.evaluation_seconds, 2)]
        error = result.error.partition("\n")[0][:200]
        row = [run.name, run.seed, result.metrics.get(metric), *losses, *seconds, error]
        lines.append(json.dumps(row))
    head = {
        **summary,
        "factors": [[f.name, list(f.levels)] for f in factors.factors],
        "columns": COLUMNS,
    }
    text = json.dumps({**head, "rows": []}, indent=1)
    return text.replace('"rows": []', '"rows": [\n' + ",\n".join(lines) + "\n]") + "\n"
