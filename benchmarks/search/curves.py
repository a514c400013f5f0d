"""What a training tells of its end on the way: would stopping early, or a cheaper rung, pay?

    python -m benchmarks.search curves

From the table, which keeps the training loss after a quarter and a half of each run: its rank
correlation with the metric, and what the median rule (Golovin et al. 2017,
doi:10.1145/3097983.3098043) would do: it stops a run whose loss is above the median of the runs
before it at the same step, the first `FIRST` excepted. `saved` is the share of all core-seconds
that it saves; `false` the share of the best tenth of codebases that it stops. The losses are those
of the training text, written by the codebase itself: an upper bound of what a sound rule, on a
validation curve that the idea cannot change, would know.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import correlation, fmean, median
from typing import Any

from assay.domain.hashing import derive_seed

SHARES = (0.25, 0.5)
#: Orders in which the runs are made, and runs that are never stopped.
ORDERS, FIRST = 200, 8


@dataclass(frozen=True)
class Curve:
    """A run on seed 0: losses by share of the training, and core-seconds."""

    metric: float
    losses: dict[float, float]
    train_seconds: float
    evaluation_seconds: float


def curves(table: Path) -> list[Curve]:
    """Return the runs of a table on seed 0 that ended with a metric and a whole curve."""
    read = json.loads(table.read_text())
    found = []
    for values in read["rows"]:
        row = dict(zip(read["columns"], values, strict=True))
        losses = {share: row[f"loss@{share:g}"] for share in SHARES}
        if row["seed"] == 0 and row["metric"] is not None and None not in losses.values():
            seconds = (row["train_seconds"], row["evaluation_seconds"])
            found.append(Curve(row["metric"], losses, *seconds))
    return found


def figures_of(found: Sequence[Curve]) -> list[dict[str, Any]]:
    """Return for each share what it tells of the end."""
    ranked = sorted(found, key=lambda each: each.metric)
    better = ranked[: len(ranked) // 2]
    rows = []
    for share in SHARES:
        stops = [_median_rule(found, share, order) for order in range(ORDERS)]
        rows.append(
            {
                "share": share,
                "runs": len(found),
                "rank_correlation": _rank_correlation(found, share),
                "rank_correlation_better_half": _rank_correlation(better, share),
                "saved": round(fmean(saved for saved, _ in stops), 3),
                "false": round(fmean(false for _, false in stops), 3),
            }
        )
    return rows


def _rank_correlation(found: Sequence[Curve], share: float) -> float:
    losses = [each.losses[share] for each in found]
    metrics = [each.metric for each in found]
    return round(correlation(_ranks(losses), _ranks(metrics)), 3)


def _ranks(values: Sequence[float]) -> list[int]:
    """The place of each value from the smallest; ties in their order."""
    order = sorted(range(len(values)), key=lambda each: values[each])
    places = [0] * len(values)
    for place, each in enumerate(order):
        places[each] = place
    return places


def _median_rule(found: Sequence[Curve], share: float, order: int) -> tuple[float, float]:
    """The shares of core-seconds saved and of the best tenth stopped, in one order."""
    runs = random.Random(derive_seed(order, "curves")).sample(found, len(found))
    best = {id(each) for each in sorted(found, key=lambda each: each.metric)[: len(found) // 10]}
    saved, stopped, seen = 0.0, 0, []
    for run in runs:
        if len(seen) >= FIRST and run.losses[share] > median(seen):
            saved += (1 - share) * run.train_seconds + run.evaluation_seconds
            stopped += id(run) in best
        seen.append(run.losses[share])
    cost = sum(run.train_seconds + run.evaluation_seconds for run in runs)
    return saved / cost, stopped / len(best)


def table_of(rows: Sequence[dict[str, Any]]) -> str:
    """Return the rows as a Markdown table."""
    lines = [
        "| after | rank correlation | in the better half | saved | of the best tenth stopped |",
        "|---" * 5 + "|",
    ]
    for row in rows:
        cells = [
            f"{row['share']:.0%} of the steps",
            f"{row['rank_correlation']:.2f}",
            f"{row['rank_correlation_better_half']:.2f}",
            f"{row['saved']:.0%}",
            f"{row['false']:.0%}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)
