"""Rows of the tables, as data: ranked experiments, failures, best so far."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from assay.analysis.text import (
    format_effect,
    format_multiple,
    format_number,
    format_seconds,
    format_verdict,
    idea_title,
    one_line,
    short_id,
)
from assay.contracts.batch import ExperimentBody
from assay.contracts.search import BestOfEpoch
from assay.domain.metrics import Direction
from assay.domain.verdicts import ALPHA

_ORDER = ("succeeded", "running", "queued", "implementing", "submitted", "failed", "cancelled")


#: Further metrics that a table has columns for.
_MOST_METRICS = 3
_EXECUTED = ("start", "train", "score")


@dataclass(frozen=True)
class ExperimentRow:
    """One experiment; `rank` is None unless it has a result. Ids are short."""

    rank: int | None
    experiment: str
    title: str
    state: str
    metric: str
    confirmed: str
    gap: str
    effect: str
    verdict: str
    compute: str
    time: str
    metrics: dict[str, str]


@dataclass(frozen=True)
class FailureRow:
    """One failed experiment; `message` is the line that says what happened."""

    experiment: str
    title: str
    stage: str
    code: str
    message: str


@dataclass(frozen=True)
class BestRow:
    """An epoch and the best until its end."""

    epoch: int
    scored: str
    best: str
    best_so_far: str
    experiment: str


def rank(experiments: Iterable[ExperimentBody], direction: Direction) -> list[ExperimentBody]:
    """Best result first, then what has none: unfinished, failed, cancelled. Ties by position.

    Of the results, those that a confirmation supports come first and those that one did not
    support last, both by what it found: any other result is the best of many looks.
    """
    sign = 1.0 if direction is Direction.MINIMIZE else -1.0

    def key(experiment: ExperimentBody) -> tuple[int, int, float, int]:
        state, confirmation = experiment.state, experiment.confirmation
        place = _ORDER.index(state) if state in _ORDER else len(_ORDER)
        is_claimed = None if confirmation is None else confirmation.claimed
        standing = {True: 0, None: 1, False: 2}[is_claimed]
        value = None if experiment.metric is None else sign * experiment.metric
        if confirmation is not None and is_claimed is not None:
            found = confirmation.comparison
            value = None if found is None else -found.effect
        if place > 0 or value is None or not math.isfinite(value):
            value = math.inf
        return place, standing, value, experiment.position

    return sorted(experiments, key=key)


def _confirmed(experiment: ExperimentBody) -> str:
    """What the latest confirmation of a result says."""
    found = experiment.confirmation
    if found is None:
        return "–"
    if found.claimed is None:
        return found.state if found.comparison is None else "not decided yet"
    return f"{'yes' if found.claimed else 'no'}, {format_effect(found.comparison)}"


def experiment_rows(
    experiments: Iterable[ExperimentBody], direction: Direction, title_width: int = 110
) -> list[ExperimentRow]:
    """Ranked rows."""
    rows = []
    for place, experiment in enumerate(rank(experiments, direction), start=1):
        comparison = experiment.comparison
        rows.append(
            ExperimentRow(
                rank=place if experiment.metric is not None else None,
                experiment=short_id(experiment.id),
                title=idea_title(experiment.idea.text, title_width),
                state=experiment.state,
                metric=format_number(experiment.metric),
                confirmed=_confirmed(experiment),
                gap=format_number(found.gap if (found := experiment.confirmation) else None),
                effect=format_effect(comparison),
                verdict=format_verdict(comparison),
                compute=format_multiple(experiment.used.compute if experiment.used else None),
                time=format_seconds(experiment.seconds),
                metrics={name: format_number(v) for name, v in experiment.metrics.items()},
            )
        )
    return rows


def further_metrics(experiments: Iterable[ExperimentBody]) -> list[str]:
    """Return the names of what else evaluators report, without details such as standard errors."""
    return sorted({n for e in experiments for n in e.metrics if "/" not in n})[:_MOST_METRICS]


def leads(experiments: Iterable[ExperimentBody]) -> tuple[int, int, float]:
    """Return how many results are called better, of how many, and how many luck alone would give.

    The last is the number if no idea had an effect. They are leads, and the best of many was
    lucky too; what may be claimed, confirmations say.
    """
    found = [e.comparison for e in experiments if e.comparison and e.comparison.p is not None]
    judged = [c for c in found if c.verdict != "identical"]
    better = sum(c.verdict == "better" for c in judged)
    return better, len(judged), len(judged) * ALPHA / 2


def failure_rows(
    experiments: Iterable[ExperimentBody], title_width: int = 80, message_width: int = 160
) -> list[FailureRow]:
    """Failed experiments by position."""
    rows = []
    for experiment in sorted(experiments, key=lambda e: e.position):
        failure = experiment.failure
        if failure is None:
            continue
        lines = failure.message.strip().splitlines() or [""]
        # A traceback says it in its last line, a patch log in its first.
        said = lines[-1] if failure.stage in _EXECUTED else lines[0]
        rows.append(
            FailureRow(
                experiment=short_id(experiment.id),
                title=idea_title(experiment.idea.text, title_width),
                stage=failure.stage,
                code=failure.code,
                message=one_line(said, message_width),
            )
        )
    return rows


def best_rows(best: Sequence[BestOfEpoch]) -> list[BestRow]:
    """Best so far at the end of each finished epoch."""
    return [
        BestRow(
            epoch=entry.epoch,
            scored=f"{entry.scored}/{entry.total}",
            best=format_number(entry.metric),
            best_so_far=format_number(entry.best_so_far),
            experiment=short_id(entry.experiment) if entry.experiment else "–",
        )
        for entry in best
    ]
