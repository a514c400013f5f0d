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
)
from assay.contracts.batch import ExperimentBody
from assay.contracts.search import BestOfEpoch
from assay.domain.metrics import Direction
from assay.domain.verdicts import ALPHA, claimed

_ORDER = ("succeeded", "running", "queued", "implementing", "submitted", "failed", "cancelled")


_EXECUTED = ("start", "train", "score")


@dataclass(frozen=True)
class ExperimentRow:
    """One experiment; `rank` is None unless it has a result."""

    rank: int | None
    experiment: str
    title: str
    state: str
    metric: str
    confirmed: str
    effect: str
    verdict: str
    compute: str
    time: str


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

    Where results were confirmed on a sealed split, that number ranks: the other one is the best
    of many looks.
    """
    sign = 1.0 if direction is Direction.MINIMIZE else -1.0

    def key(experiment: ExperimentBody) -> tuple[int, float, int]:
        state = experiment.state
        place = _ORDER.index(state) if state in _ORDER else len(_ORDER)
        metric = experiment.metric if experiment.confirmed is None else experiment.confirmed
        has_one = place == 0 and metric is not None and math.isfinite(metric)
        value = sign * metric if has_one and metric is not None else math.inf
        return place, value, experiment.position

    return sorted(experiments, key=key)


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
                experiment=experiment.id,
                title=idea_title(experiment.idea.text, title_width),
                state=experiment.state,
                metric=format_number(experiment.metric),
                confirmed=format_number(experiment.confirmed),
                effect=format_effect(comparison),
                verdict=format_verdict(comparison),
                compute=format_multiple(experiment.used.compute if experiment.used else None),
                time=format_seconds(experiment.seconds),
            )
        )
    return rows


def leads(experiments: Iterable[ExperimentBody]) -> tuple[int, int, float]:
    """Return how many results are called better, of how many, and how many luck alone would give.

    The last is the number if no idea had an effect. They are leads, and the best of many was
    lucky too; what may be claimed is `claims`.
    """
    found = [e.comparison for e in experiments if e.comparison and e.comparison.p is not None]
    judged = [c for c in found if c.verdict != "identical"]
    better = sum(c.verdict == "better" for c in judged)
    return better, len(judged), len(judged) * ALPHA / 2


def claims(experiments: Sequence[ExperimentBody]) -> list[ExperimentBody]:
    """Return the results of a confirmation that may be claimed to be better (Holm's procedure).

    What failed, has no p value, or was looked at before counts among those that were tried.
    """
    found: list[tuple[float | None, float]] = []
    for c in (e.comparison for e in experiments):
        is_fresh = c is not None and c.verdict != "provisional" and not c.exploratory
        found.append((c.p, c.effect) if c is not None and is_fresh else (None, 0.0))
    return [e for e, is_claimed in zip(experiments, claimed(found), strict=True) if is_claimed]


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
                experiment=experiment.id,
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
            experiment=entry.experiment or "–",
        )
        for entry in best
    ]
