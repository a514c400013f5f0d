"""Worlds in which a search can be run thousands of times: true values, noise, costs, failures.

`nanogpt` is made of the table that `measure.py` trained; `hard.py` makes the second world. A world
with a seed is a `Draw`: the same luck for every strategy that is compared on it.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import NormalDist, fmean, stdev
from typing import Any, Protocol

from assay.domain.distributions import digamma
from assay.domain.hashing import derive_seed
from assay.domain.metrics import Direction, RewardKind
from assay.domain.metrics import reward as reward_of
from assay.domain.rounding import shown, shown_or_none
from assay.domain.verdicts import Measured, judge
from assay.llm.ideation import Baseline, Standing
from benchmarks.search.points import Factor, Factors, Point

#: Seeds of the baseline that verdicts are given against, from 0. They are free for every strategy.
BASELINE_SEEDS = 20
#: Probability that an idea fails: that of a codebase without a change, and what each change adds.
FAILURE, FAILURE_PER_CHANGE = 0.06, 0.03
#: What a failed idea costs, as a share of a measurement.
FAILED_COST = 0.1
#: The model is fitted so many times, each with the residual variance of the last.
_FITS = 5
#: With fewer points on two seeds or more, noise cannot be told from effects.
_FEWEST_REPEATED = 20


class TableUnfit(Exception):
    """A table has too few runs to make a world of."""


class Noise(Protocol):
    """Results of points, seed by seed."""

    def value(self, draw: int, point: Point, seed: int) -> float:
        """Return the result of a point on a seed, in the world with the luck of `draw`."""
        ...

    def sd(self, point: Point) -> float:
        """Return the standard deviation of a point's results over seeds."""
        ...


@dataclass(frozen=True)
class World:
    """A finite space of codebases.

    Attributes:
        truth: Mean metric over all seeds.
        cost: Core-seconds of one run with its evaluation.
        broken: Points that fail whenever they are measured.
        facts: What is to be said of it beside results.
    """

    name: str
    factors: Factors
    direction: Direction
    reward: RewardKind
    truth: Mapping[Point, float]
    cost: Mapping[Point, float]
    noise: Noise
    broken: frozenset[Point] = frozenset()
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def run_cost(self) -> float:
        """Core-seconds of a run of the baseline: the unit of budgets."""
        return self.cost[self.factors.baseline]

    @cached_property
    def best(self) -> Point:
        """The point with the best true value."""
        sound = [point for point in self.factors.points if point not in self.broken]
        return max(sound, key=self.gain)

    def gain(self, point: Point) -> float:
        """Return by how much a point truly improves on the baseline."""
        return self.improvement(self.truth[point])

    def improvement(self, metric: float) -> float:
        """Return by how much a metric improves on the baseline's true value."""
        sign = -1 if self.direction is Direction.MINIMIZE else 1
        return sign * (metric - self.truth[self.factors.baseline])

    @cached_property
    def noisiness(self) -> float:
        """Spread over seeds as a multiple of that of true values, in the better half of points."""
        ranked = sorted(self.factors.points, key=self.gain)
        better = ranked[len(ranked) // 2 :]
        noise = math.sqrt(fmean(self.noise.sd(point) ** 2 for point in better))
        return noise / stdev(self.truth[point] for point in better)


@dataclass(frozen=True)
class Seen:
    """A point on its first seeds, as the API shows it."""

    metric: float
    reward: float
    standing: Standing


class Draw:
    """A world with its luck: what any point gives on any seed, the same for whoever asks."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.seed = seed
        self._seen: dict[tuple[Point, int], Seen] = {}
        start = world.factors.baseline
        values = {s: world.noise.value(seed, start, s) for s in range(BASELINE_SEEDS)}
        found = Measured.of(values)
        assert found is not None
        self._measured = found
        spread = shown(found.spread)
        self.baseline = Baseline(shown(found.mean), spread, BASELINE_SEEDS)
        self.baseline_reward = reward_of(world.reward, found.mean)

    def value(self, point: Point, seed: int) -> float:
        """Return the exact result of a point on a seed."""
        return self.world.noise.value(self.seed, point, seed)

    def fails(self, point: Point, attempt: int) -> bool:
        """Return whether an idea fails that is tried for this time, from 0."""
        changes = sum(level > 0 for level in point)
        chance = FAILURE + FAILURE_PER_CHANGE * changes
        rng = random.Random(
            derive_seed(self.seed, "fails", self.world.factors.key(point), attempt)
        )
        return point in self.world.broken or rng.random() < chance

    def seen(self, point: Point, seeds: int) -> Seen:
        """Return what the API shows of a point on its first seeds."""
        key = (point, seeds)
        if key not in self._seen:
            measured = Measured.of({seed: self.value(point, seed) for seed in range(seeds)})
            assert measured is not None
            judged = judge(self.world.direction, measured, self._measured)
            standing = Standing(
                judged.verdict.value,
                self.baseline,
                shown(judged.effect),
                shown_or_none(judged.standard_error),
            )
            metric = shown(measured.mean)
            self._seen[key] = Seen(metric, reward_of(self.world.reward, metric), standing)
        return self._seen[key]


@dataclass(frozen=True)
class LogNoise:
    """Luck that multiplies: the logarithm of a result is normal around that of the true mean.

    Attributes:
        truth: Mean of the results, by point.
        sds: Standard deviation of their logarithm, by point.
        shared: Share of the variance that is the luck of a seed, the same for all points.
    """

    truth: Mapping[Point, float]
    sds: Mapping[Point, float]
    shared: float

    def value(self, draw: int, point: Point, seed: int) -> float:
        """Return the result of a point on a seed, in the world with the luck of `draw`."""
        common = _normal(draw, "seed", seed)
        own = _normal(draw, point, seed)
        luck = math.sqrt(self.shared) * common + math.sqrt(1 - self.shared) * own
        sd = self.sds[point]
        return self.truth[point] * math.exp(sd * luck - sd * sd / 2)

    def sd(self, point: Point) -> float:
        """Return the standard deviation of a point's results over seeds."""
        return self.truth[point] * self.sds[point]


_STANDARD = NormalDist()


def _normal(*parts: object) -> float:
    return _STANDARD.inv_cdf((derive_seed(*parts) + 0.5) / (1 << 63))


@dataclass(frozen=True)
class Row:
    """A run of the table; `metric` is None if it failed."""

    point: Point
    seed: int
    metric: float | None
    core_seconds: float


def load(path: Path) -> World:
    """Return the world of a measured table.

    Raises:
        TableUnfit: it lacks the runs that tell noise from effects.
    """
    table = json.loads(path.read_text())
    factors = Factors(tuple(Factor(name, tuple(levels)) for name, levels in table["factors"]))
    at = {name: place for place, name in enumerate(table["columns"])}
    rows = [
        Row(
            factors.point(row[at["point"]]),
            row[at["seed"]],
            row[at["metric"]],
            row[at["train_seconds"]] + row[at["evaluation_seconds"]],
        )
        for row in table["rows"]
    ]
    facts = {key: table[key] for key in ("environment", "hardware_class", "runs", "missing")}
    return of_rows("nanogpt", factors, rows, facts)


def of_rows(
    name: str, factors: Factors, rows: Sequence[Row], facts: Mapping[str, Any] | None = None
) -> World:
    """Return the world that runs of a metric to be minimised, a loss above 0, tell of.

    All is estimated from logarithms. The truth of a point is the value of a model of main effects
    and pairs of factors, moved towards what was measured there, the farther the less of that is
    noise (empirical Bayes). Costs are those of a model of main effects.

    Raises:
        TableUnfit: it lacks the runs that tell noise from effects.
    """
    good = [row for row in rows if row.metric is not None]
    values: dict[Point, dict[int, float]] = {}
    for row in good:
        values.setdefault(row.point, {})[row.seed] = math.log(row.metric or math.nan)
    broken = frozenset({row.point for row in rows} - values.keys())
    sds = _noise(factors, values)
    shared, luck = _shared(values, sds)
    # How lucky seed s was is known from points on all seeds, so it need not disturb the others.
    means = {
        point: fmean(v - sds[point] * luck.get(seed, 0.0) for seed, v in found.items())
        for point, found in values.items()
    }
    errors = {p: sds[p] ** 2 * (1 - shared) / len(found) for p, found in values.items()}
    logs, residual = _shrunken(factors, means, errors)
    costs = _costs(factors, good)
    truth = {p: math.exp(logs[p] + sds[p] ** 2 / 2) for p in factors.points}
    found_facts = {
        "points_measured": len(values),
        "points_on_more_seeds": sum(len(found) > 1 for found in values.values()),
        "shared_luck": round(shared, 3),
        "median_sd": round(sorted(sds.values())[len(sds) // 2], 4),
        "residual_sd": round(residual, 4),
    }
    return World(
        name,
        factors,
        Direction.MINIMIZE,
        RewardKind.RECIPROCAL,
        truth,
        costs,
        LogNoise(truth, sds, shared),
        broken,
        {**(facts or {}), **found_facts},
    )


def _noise(factors: Factors, values: Mapping[Point, Mapping[int, float]]) -> dict[Point, float]:
    """Return the standard deviation over seeds of every point, by a model of main effects.

    The logarithms of the variances of repeated points are fitted (Smyth 2004, §6.2); how far a
    point's own variance is off the model is taken for chance.
    """
    repeated = {p: list(v.values()) for p, v in values.items() if len(v) > 1}
    if len(repeated) < _FEWEST_REPEATED:
        raise TableUnfit(
            f"the table has {len(repeated)} points on two seeds or more and needs "
            f"{_FEWEST_REPEATED}; run: python -m benchmarks.search measure"
        )
    rows, logs = [], []
    for point, found in repeated.items():
        df = (len(found) - 1) / 2
        rows.append(_main_effects(factors, point))
        logs.append(math.log(max(stdev(found), 1e-6) ** 2) - digamma(df) + math.log(df))
    model = _least_squares(rows, logs, [1.0] * len(rows), ridge=1.0)
    return {
        point: math.exp(_dot(model, _main_effects(factors, point)) / 2) for point in factors.points
    }


def _shared(
    values: Mapping[Point, Mapping[int, float]], sds: Mapping[Point, float]
) -> tuple[float, dict[int, float]]:
    """Return the share of the variance that points have in common, and the luck of each seed.

    An analysis of variance of standardised results, points by seeds, of the points on most seeds.
    """
    most = max(len(found) for found in values.values())
    full = {point: found for point, found in values.items() if len(found) == most}
    seeds = sorted(set.intersection(*(set(found) for found in full.values())))
    table = [
        [(found[seed] - fmean(found.values())) / sds[point] for seed in seeds]
        for point, found in full.items()
    ]
    points, n = len(table), len(seeds)
    if n < 2 or points < 2:
        return 0.0, {}
    columns = [fmean(row[i] for row in table) for i in range(n)]
    between = points * sum(c * c for c in columns) / (n - 1)
    within = sum((row[i] - columns[i]) ** 2 for row in table for i in range(n))
    within /= (points - 1) * (n - 1)
    common = max(between - within, 0.0) / points
    share = min(common / (common + within), 0.95) if common + within else 0.0
    return share, dict(zip(seeds, columns, strict=True))


def _shrunken(
    factors: Factors, means: Mapping[Point, float], errors: Mapping[Point, float]
) -> tuple[dict[Point, float], float]:
    """Return the truth of every point, and how far points are off the model, as a deviation."""
    rows = [_pairs(factors, point) for point in means]
    y, noise = list(means.values()), [errors[point] for point in means]
    residual = fmean(noise)
    model: list[float] = []
    for _ in range(_FITS):
        weights = [1 / (residual + each) for each in noise]
        model = _least_squares(rows, y, weights)
        off = [value - _dot(model, row) for value, row in zip(y, rows, strict=True)]
        # The variance at which the weighted squares are what they are expected to be (Paule and
        # Mandel 1982), a step at a time.
        squares = sum(w * each * each for w, each in zip(weights, off, strict=True))
        freedom = max(len(y) - len(model), 1)
        residual = max(residual * squares / freedom, 1e-12)
    truth = {point: _dot(model, _pairs(factors, point)) for point in factors.points}
    for point, each, error in zip(means, off, noise, strict=True):
        truth[point] += residual / (residual + error) * each
    return truth, math.sqrt(residual)


def _costs(factors: Factors, rows: Sequence[Row]) -> dict[Point, float]:
    """Return the cost of every point: main effects on its logarithm, as a busy host adds noise."""
    design = [_main_effects(factors, row.point) for row in rows]
    logs = [math.log(max(row.core_seconds, 1e-3)) for row in rows]
    model = _least_squares(design, logs, [1.0] * len(rows), ridge=1.0)
    return {p: math.exp(_dot(model, _main_effects(factors, p))) for p in factors.points}


def _main_effects(factors: Factors, point: Point) -> list[float]:
    """Return a row of the design: 1, and for each level but the first whether the point has it."""
    found = [1.0]
    for factor, level in zip(factors.factors, point, strict=True):
        found += [float(level == each) for each in range(1, len(factor.levels))]
    return found


def _pairs(factors: Factors, point: Point) -> list[float]:
    """Return a row of the design with the products of levels of different factors."""
    found = _main_effects(factors, point)
    parts = [
        [float(level == each) for each in range(1, len(factor.levels))]
        for factor, level in zip(factors.factors, point, strict=True)
    ]
    for place, part in enumerate(parts):
        for other in parts[place + 1 :]:
            found += [a * b for a in part for b in other]
    return found


def _least_squares(
    rows: Sequence[Sequence[float]],
    y: Sequence[float],
    weights: Sequence[float],
    ridge: float = 1e-6,
) -> list[float]:
    """Return the coefficients with the least weighted squares; all but the first are shrunken."""
    size = len(rows[0])
    matrix = [[0.0] * size for _ in range(size)]
    right = [0.0] * size
    total = sum(weights) / len(weights)
    for row, value, weight in zip(rows, y, weights, strict=True):
        some = [(i, x) for i, x in enumerate(row) if x]
        for i, x in some:
            right[i] += weight * x * value
            line = matrix[i]
            for j, z in some:
                line[j] += weight * x * z
    for i in range(1, size):
        matrix[i][i] += ridge * total
    return _solved(matrix, right)


def _solved(matrix: list[list[float]], right: list[float]) -> list[float]:
    """Solve a positive definite system, by elimination; both arguments are overwritten."""
    size = len(right)
    for i in range(size):
        pivot = matrix[i][i] or 1e-12
        for j in range(i + 1, size):
            if factor := matrix[j][i] / pivot:
                line, other = matrix[j], matrix[i]
                for k in range(i, size):
                    line[k] -= factor * other[k]
                right[j] -= factor * right[i]
    for i in reversed(range(size)):
        known = sum(matrix[i][k] * right[k] for k in range(i + 1, size))
        right[i] = (right[i] - known) / (matrix[i][i] or 1e-12)
    return right


def _dot(a: Sequence[float], b: Sequence[float]) -> float:
    return math.fsum(x * y for x, y in zip(a, b, strict=True))
