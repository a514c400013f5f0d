"""What is stored of a search, as the figures and tables need it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from functools import cached_property
from statistics import fmean

from assay.analysis.text import short_id
from assay.contracts.batch import BaselineSummary, BatchBody, ExperimentBody, IdeaRequest
from assay.contracts.environment import EnvironmentBody
from assay.contracts.search import SearchBody
from assay.domain.metrics import Direction, best, is_better
from assay.domain.states import ExperimentState


@dataclass(frozen=True)
class EpochRecord:
    """An epoch: its batch, its experiments and its ideas, both by position.

    `private_thinking` is how many characters the ideator thought before it answered, in all
    answers of the epoch together.
    """

    number: int
    batch: BatchBody
    experiments: Sequence[ExperimentBody]
    ideas: Sequence[IdeaRequest]
    private_thinking: int = 0

    @property
    def scored(self) -> list[ExperimentBody]:
        """Return the experiments that have a finite result."""
        return [e for e in self.experiments if is_scored(e)]


@dataclass(frozen=True)
class Payment:
    """What a request to a model cost; `dollars` is None where the price is unknown."""

    at: datetime
    dollars: Decimal | None
    whose: str


@dataclass(frozen=True)
class SearchRecord:
    """A search with all that is stored of it.

    `diffs` are the unified diffs of experiments against what they change, by id; an experiment
    without a codebase has none. `payments` are in the order of time.
    """

    search: SearchBody
    environment: EnvironmentBody
    epochs: Sequence[EpochRecord]
    diffs: Mapping[str, str] = field(default_factory=dict)
    payments: Sequence[Payment] = ()

    @property
    def direction(self) -> Direction:
        """Return which way the metric improves."""
        return self.environment.direction

    @property
    def task(self) -> str:
        """Return the environment and the profile, which results must have in common."""
        return f"{self.environment.name}, {self.search.profile}"

    @property
    def task_key(self) -> tuple[str, str]:
        """Return what tells tasks apart: environments of one name differ by their hash."""
        return self.environment.id, self.search.profile

    @property
    def metric_label(self) -> str:
        """Return the metric with an arrow that says which way it improves."""
        arrow = "↓" if self.direction is Direction.MINIMIZE else "↑"
        return f"{self.environment.metric} {arrow}"

    @property
    def is_best_of_n(self) -> bool:
        """Return whether the search looks at no results."""
        return self.search.strategy == "best-of-n"

    @property
    def models(self) -> str:
        """Return the ideator, and the executor where it is another model."""
        ideator, executor = self.search.ideator, self.search.executor
        return ideator if ideator == executor else f"{ideator} → {executor}"

    @cached_property
    def experiments(self) -> list[ExperimentBody]:
        """Return the experiments of all epochs, in order."""
        return [e for epoch in self.epochs for e in epoch.experiments]

    @cached_property
    def epoch_of(self) -> dict[str, int]:
        """Return the epoch of each experiment by id."""
        return {e.id: epoch.number for epoch in self.epochs for e in epoch.experiments}

    @cached_property
    def by_id(self) -> dict[str, ExperimentBody]:
        """Return the experiments by id."""
        return {e.id: e for e in self.experiments}

    @property
    def baseline(self) -> BaselineSummary | None:
        """Return the baseline of the last epoch that has one."""
        found = (epoch.batch.baseline for epoch in reversed(self.epochs))
        return next((b for b in found if b is not None and b.mean is not None), None)

    @property
    def gpus(self) -> int:
        """Return how many GPUs a measurement holds."""
        profiles = self.environment.profiles
        return next((p.gpus for p in profiles if p.name == self.search.profile), 0)

    @property
    def hours_name(self) -> str:
        """Return the name of what hours are counted in."""
        return "GPU-hours" if self.gpus else "worker hours"

    def finished(self) -> list[ExperimentBody]:
        """Return the experiments that have ended, in the order in which they did."""
        ended = [e for e in self.experiments if e.finished_at is not None]
        return sorted(ended, key=lambda e: (e.finished_at or e.created_at, e.id))

    def hours(self) -> Iterator[tuple[ExperimentBody, float]]:
        """Give each finished experiment with the hours that its measurements took.

        With GPUs, hours count once for each of them. Measurements that experiments share count for
        the first of them. Retried attempts, the baseline and confirmations are not counted.
        """
        seen: set[str] = set()
        for experiment in self.finished():
            fresh = [m for m in experiment.measurements if m not in seen]
            share = len(fresh) / len(experiment.measurements) if experiment.measurements else 0.0
            seen.update(fresh)
            yield experiment, (experiment.seconds or 0.0) * share * max(1, self.gpus) / 3600

    def best_metric(self, experiments: Sequence[ExperimentBody]) -> float | None:
        """Return the best finite metric of some experiments."""
        return best(self.direction, metrics(experiments))

    def beats_baseline(self, metric: float) -> bool:
        """Return whether a metric is beyond the baseline's mean, by however little."""
        mean = self.baseline.mean if self.baseline else None
        return mean is None or is_better(self.direction, metric, mean)


def is_scored(experiment: ExperimentBody) -> bool:
    """Return whether an experiment has a valid, finite result."""
    metric = experiment.metric
    is_done = experiment.state == ExperimentState.SUCCEEDED.value
    return is_done and metric is not None and math.isfinite(metric)


def metrics(experiments: Sequence[ExperimentBody]) -> list[float]:
    """Return the finite metrics of those that have a result."""
    return [e.metric for e in experiments if e.metric is not None and is_scored(e)]


def mean(values: Sequence[float]) -> float | None:
    """Return the mean; None without values."""
    return fmean(values) if values else None


def counts_as_tried(experiment: ExperimentBody) -> bool:
    """Return whether an idea has ended by itself: it was neither cancelled nor is it under way."""
    ended = (ExperimentState.SUCCEEDED.value, ExperimentState.FAILED.value)
    return experiment.state in ended


def labels(records: Sequence[SearchRecord]) -> list[str]:
    """Return a short, distinct name of each search: what tells it from the others."""
    models = [record.models for record in records]
    strategies = [f"{record.models}, {record.search.strategy}" for record in records]
    for found in (models, strategies):
        if len(set(found)) == len(found):
            return found
    ids = (short_id(record.search.id) for record in records)
    return [f"{name}, {id_}" for name, id_ in zip(strategies, ids, strict=True)]
