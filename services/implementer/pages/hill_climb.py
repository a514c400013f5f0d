"""What the chart of a search shows: every experiment as a mark, and the best so far."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from assay.analysis.standing import standing
from assay.analysis.text import format_effect, format_number, idea_title
from assay.contracts.batch import BaselineSummary, ExperimentBody
from assay.domain.metrics import Direction, is_better
from assay.domain.verdicts import Verdict


@dataclass(frozen=True)
class Scale:
    """What the horizontal axis counts. `values` has one number per experiment."""

    name: str
    label: str
    values: list[float]


def hill_climb(
    experiments: Sequence[ExperimentBody],
    epochs: Mapping[str, int],
    costs: Mapping[str, Decimal],
    baseline: BaselineSummary | None,
    direction: Direction,
    started_at: datetime,
    *,
    per_second: tuple[str, int],
) -> dict[str, Any]:
    """Return the chart's data, with experiments in the order in which they ended.

    `epochs` has the epoch of each batch, `costs` dollars by implementation, `per_second` the name
    of what a second of a measurement takes (`GPU-hours`, `CPU-hours`) and how many of them.
    """
    ordered = sorted(
        experiments, key=lambda e: (e.finished_at is None, e.finished_at or e.created_at, e.id)
    )
    points, best = [], None
    for experiment in ordered:
        metric = experiment.metric
        is_best = metric is not None and (best is None or is_better(direction, metric, best))
        best = metric if is_best else best
        points.append(_point(experiment, epochs, best, is_best=is_best))
    mean = baseline.mean if baseline else None
    return {
        "metric": ordered[0].metric_name if ordered else "",
        "direction": direction.value,
        "baseline": None
        if baseline is None or mean is None
        else {"mean": mean, "spread": baseline.spread, "n": baseline.n},
        "points": points,
        "scales": [
            {"name": scale.name, "label": scale.label, "values": scale.values}
            for scale in _scales(ordered, epochs, costs, started_at, per_second)
        ],
    }


def _point(
    experiment: ExperimentBody, epochs: Mapping[str, int], best: float | None, *, is_best: bool
) -> dict[str, Any]:
    metric, comparison = experiment.metric, experiment.comparison
    confirmation = experiment.confirmation
    return {
        "id": experiment.id,
        "title": idea_title(experiment.idea.text, 90),
        "epoch": epochs.get(experiment.batch),
        "operator": experiment.idea.operator,
        "state": experiment.state,
        "metric": metric if metric is not None and math.isfinite(metric) else None,
        "best": best,
        "is_best": is_best,
        "is_lead": bool(comparison and comparison.verdict == Verdict.BETTER.value),
        "verdict": comparison.verdict if comparison else None,
        "confirmed": confirmation.claimed if confirmation else None,
        "fresh": _on_fresh_seeds(experiment),
        "failure": experiment.failure.code if experiment.failure else None,
    }


def _on_fresh_seeds(experiment: ExperimentBody) -> str | None:
    """What a confirmation found: its metric and the effect. None before it has decided."""
    found = standing(experiment)
    if not found.is_fresh:
        return None
    return f"{format_number(found.metric)}, {format_effect(found.comparison)}"


def _scales(
    ordered: Sequence[ExperimentBody],
    epochs: Mapping[str, int],
    costs: Mapping[str, Decimal],
    started_at: datetime,
    per_second: tuple[str, int],
) -> list[Scale]:
    sizes: dict[str, int] = {}
    for experiment in ordered:
        sizes[experiment.batch] = max(sizes.get(experiment.batch, 1), experiment.position + 1)
    name, units = per_second
    hours, dollars, spent_hours, spent_dollars = [], [], 0.0, Decimal(0)
    for experiment in ordered:
        spent_hours += (experiment.seconds or 0.0) * units / 3600
        spent_dollars += costs.get(experiment.implementation, Decimal(0))
        hours.append(round(spent_hours, 6))
        dollars.append(float(spent_dollars))
    minutes = [
        round(((e.finished_at or e.created_at) - started_at).total_seconds() / 60, 4)
        for e in ordered
    ]
    # Within an epoch marks stand side by side, in the order of their ideas.
    by_epoch = [epochs.get(e.batch, 0) + 0.8 * e.position / sizes[e.batch] for e in ordered]
    found = [
        Scale("experiments", "experiments", [float(n + 1) for n in range(len(ordered))]),
        Scale("epoch", "epoch", [round(value, 4) for value in by_epoch]),
        Scale("minutes", "minutes since the start", minutes),
    ]
    # A scale of zeros shows nothing: results have whole seconds, and some models no price.
    spent = [Scale("hours", name, hours), Scale("dollars", "dollars", dollars)]
    return [*found, *(scale for scale in spent if any(scale.values))]
