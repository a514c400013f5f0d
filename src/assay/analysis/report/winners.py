"""The best result of a search: where it comes from, and its diff."""

from __future__ import annotations

import math

from assay.analysis.report.content import Step, Winner
from assay.analysis.report.record import SearchRecord, is_scored
from assay.analysis.standing import best_result, standing
from assay.analysis.text import (
    format_effect,
    format_number,
    format_verdict,
    idea_title,
    without_tags,
)
from assay.contracts.batch import ExperimentBody
from assay.domain.metrics import Direction

#: Steps of a lineage that are shown, from the winner back.
_MOST_STEPS = 20


def lineage(record: SearchRecord, experiment: ExperimentBody) -> list[Step]:
    """Return the line of an experiment back to a seed, the oldest first.

    Of several parents, the one with the best result comes first; the others are counted.
    """
    steps: list[Step] = []
    seen: set[str] = set()
    current: ExperimentBody | None = experiment
    while current is not None and current.id not in seen and len(steps) < _MOST_STEPS:
        seen.add(current.id)
        parents = [record.by_id[p] for p in current.idea.parents if p in record.by_id]
        steps.append(_step(record, current, max(0, len(current.idea.parents) - 1)))
        current = _best_parent(record, parents)
    return steps[::-1]


def _best_parent(record: SearchRecord, parents: list[ExperimentBody]) -> ExperimentBody | None:
    best: ExperimentBody | None = None
    for parent in parents:
        if best is None or _metric(parent, record) > _metric(best, record):
            best = parent
    return best


def _metric(experiment: ExperimentBody, record: SearchRecord) -> float:
    """Return a number that is larger for better results, and least without one."""
    if experiment.metric is None or not is_scored(experiment):
        return -math.inf
    return -experiment.metric if record.direction is Direction.MINIMIZE else experiment.metric


def _step(record: SearchRecord, experiment: ExperimentBody, others: int) -> Step:
    return Step(
        experiment=experiment.id,
        epoch=record.epoch_of.get(experiment.id),
        operator=experiment.idea.operator,
        title=idea_title(experiment.idea.text, 160),
        metric=format_number(experiment.metric),
        effect=format_effect(experiment.comparison),
        verdict=format_verdict(experiment.comparison),
        other_parents=others,
    )


def winner(record: SearchRecord, label: str) -> Winner | None:
    """Return the best result of a search with its lineage and diff; None without results."""
    best = best_result(record.experiments, record.direction)
    if best is None:
        return None
    return Winner(
        search=record.search.id,
        label=label,
        experiment=best.id,
        standing=standing(best).in_words,
        idea=without_tags(best.idea.text, is_whole=True),
        metric_name=record.environment.metric,
        steps=lineage(record, best),
        diff=record.diffs.get(best.id),
    )
