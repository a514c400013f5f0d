"""Decide whether a codebase is better than another one, or whether noise explains the difference.

Pure functions; the API, the CLI, search and the benchmarks all call `judge`. docs/verdicts.md
derives the formulas, and `python -m benchmarks.verdicts` measures how often they are wrong.

The model, for the metric x of an idea on seed s:

    x_s = α + β·c_s + ε_s,   ε_s ~ N(0, τ²),   c_s = (baseline on seed s) - (baseline's mean)

α is the idea's mean over all seeds. β says how much the luck of a seed is shared with the
baseline; pairing by subtraction is the special case β = 1. τ² and β have a conjugate prior
(normal, scaled inverse χ²; Gelman et al., Bayesian Data Analysis, 3rd ed., §14.2 and §14.8), so
the variance is moderated as in Smyth (2004, doi:10.2202/1544-6115.1027).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property, lru_cache
from itertools import pairwise
from statistics import fmean, median, variance

from assay.domain.distributions import digamma, student_cdf, student_quantile, trigamma
from assay.domain.metrics import Direction, best
from assay.domain.metrics import mean as average

#: Verdicts are given at this two-sided error rate, and intervals cover 1 - ALPHA.
ALPHA = 0.05
#: With fewer codebases a fit says more about chance than about the environment.
FEWEST_CODEBASES = 8
#: Bounds of a fit. An idea starts from the baseline's code, so it is not presumed to vary less
#: before it has been measured: a few codebases that hardly vary would draw the prior towards them,
#: and every idea on two seeds would look certain.
_PRIOR_DF = (2.0, 100.0)
_LEAST_PRIOR_VARIANCE = 1.0
_LEAST_EFFECT = 1.0
#: Three quarters of normal numbers are smaller than this, in standard deviations and size.
_NORMAL_UPPER_QUARTILE = 1.1503
#: Verdicts are made at every read, of results that do not change: so many of the numbers that take
#: longest are kept, some hundred bytes each.
_REMEMBERED = 1 << 14
#: Points of an integral, in standard deviations of a normal and of a t distribution.
_NORMAL_GRID = tuple(i / 4 for i in range(-32, 33))
_T_GRID = tuple(math.sinh(i / 8) for i in range(-64, 65))


class Verdict(StrEnum):
    """What may be said of a codebase beside the baseline."""

    BETTER = "better"
    WORSE = "worse"
    UNDECIDED = "undecided"
    IDENTICAL = "identical"
    PROVISIONAL = "provisional"
    NOT_COMPARABLE = "not comparable"


@dataclass(frozen=True)
class Prior:
    """What is known about the codebases of an environment before one is measured.

    Everything is relative to the baseline's spread over seeds, so that the default serves any
    metric.

    Attributes:
        df: Degrees of freedom that the prior variance is worth, > 0.
        variance: Prior variance over seeds, as a multiple of the baseline's.
        slope: Expected β: 0 if ideas do not share the luck of a seed with the baseline, 1 if they
            share all of it.
        slope_seeds: Weight of `slope`, in seeds.
        effect: Standard deviation of the true effects of ideas, in baseline spreads.
        codebases: Number of codebases it was fitted to; 0 for the default.
    """

    df: float = 3.0
    variance: float = 1.0
    slope: float = 0.25
    slope_seeds: float = 4.0
    effect: float = 3.0
    codebases: int = 0


#: Serves until an environment has `FEWEST_CODEBASES`. docs/verdicts.md says where it comes from.
DEFAULT_PRIOR = Prior()


@dataclass(frozen=True)
class Measured:
    """A codebase's metric by seed, and what follows from it.

    Attributes:
        values: Finite metric by seed; at least one.
        mean: Over the seeds.
        noise: Variance over seeds; 0 with one seed or equal values.
    """

    values: Mapping[int, float]
    mean: float
    noise: float

    @classmethod
    def of(cls, values: Mapping[int, float]) -> Measured | None:
        """Return None without a seed."""
        if not values:
            return None
        found = list(values.values())
        mean = average(found)
        if min(found) == max(found):
            return cls(values, found[0], 0.0)
        try:
            squares = math.fsum((value - mean) ** 2 for value in found)
        except OverflowError:
            squares = math.inf
        return cls(values, mean, squares / (len(found) - 1))

    @property
    def n(self) -> int:
        return len(self.values)

    @property
    def df(self) -> int:
        """Degrees of freedom of `noise`."""
        return self.n - 1

    @property
    def spread(self) -> float:
        """The standard deviation over seeds."""
        return math.sqrt(self.noise)


@dataclass(frozen=True)
class Judgement:
    """A codebase against another. Positive effects are improvements, whatever the direction.

    Attributes:
        effect: By how much the metric improves, in its own units.
        standard_error: Of `effect`, the baseline's own error included; None if unknown.
        df: Degrees of freedom of `standard_error`; None if unknown, infinite if exact.
        low: Lower end of the 95 % interval of the effect.
        high: Upper end of it.
        p: Two-sided p value of "there is no effect".
        slope: β, the share of the baseline's luck on a seed that was removed.
        verdict: What may be said.
        scale: Standard deviation of the true effects of such ideas, in the metric's units.
    """

    effect: float
    standard_error: float | None
    df: float | None
    low: float | None
    high: float | None
    p: float | None
    slope: float
    verdict: Verdict
    scale: float = 0.0

    @property
    def sigmas(self) -> float | None:
        """The effect in standard errors; None if they are unknown, or 0 beside an effect."""
        if self.standard_error is None:
            return None
        if self.standard_error == 0:
            return None if self.effect else 0.0
        return self.effect / self.standard_error

    @property
    def posterior(self) -> float | None:
        """The effect shrunken towards 0, as the effects of such ideas are distributed."""
        return None if self._shrunken is None else self._shrunken[0]

    @property
    def p_improves(self) -> float | None:
        """Probability that the true effect is an improvement, under the same model."""
        return None if self._shrunken is None else self._shrunken[1]

    @cached_property
    def _shrunken(self) -> tuple[float, float] | None:
        """Computed when it is asked for: it takes longer than the verdict."""
        if self.standard_error is None:
            return None
        return shrunken(self.effect, self.standard_error, self.df or math.inf, self.scale)


def judge(
    direction: Direction,
    idea: Measured,
    baseline: Measured,
    prior: Prior = DEFAULT_PRIOR,
    *,
    identical: bool = False,
    provisional: bool = False,
) -> Judgement:
    """Compare two codebases by their metric on each seed.

    `baseline` is the codebase to compare with; it may have more seeds than `idea`, or others.

    Args:
        direction: Which way the metric improves.
        idea: What to judge.
        baseline: What to compare it with.
        prior: What is known of the environment's codebases.
        identical: Both left the same artifact, with the same result, on every seed of the idea.
        provisional: Seeds of the baseline are still to come, so nothing is decided yet.
    """
    if identical:
        return Judgement(0.0, 0.0, math.inf, 0.0, 0.0, 1.0, 1.0, Verdict.IDENTICAL)
    own = Residuals.of(idea, baseline, prior)
    effect = idea.mean - own.slope * own.luck - baseline.mean
    if direction is Direction.MINIMIZE:
        effect = -effect
    known = _variance(own, idea, baseline, prior)
    if known is None:
        waiting = Verdict.PROVISIONAL if provisional else Verdict.UNDECIDED
        return Judgement(effect, None, None, None, None, None, own.slope, waiting)
    error, df = math.sqrt(known[0]), known[1]
    reach = student_quantile(1 - ALPHA / 2, df) * error if error else 0.0
    p = _two_sided(effect, error, df)
    if provisional:
        verdict = Verdict.PROVISIONAL
    elif p < ALPHA:
        verdict = Verdict.BETTER if effect > 0 else Verdict.WORSE
    else:
        verdict = Verdict.UNDECIDED
    low, high = effect - reach, effect + reach
    scale = prior.effect * baseline.spread
    return Judgement(effect, error, df, low, high, p, own.slope, verdict, scale)


def judge_best(
    direction: Direction, idea: Measured, baseline: Measured, *, provisional: bool = False
) -> Judgement:
    """Compare what two codebases found at best, for artifacts that are verified exactly.

    There is no error and no p value: a better solution is better. `n` of both sides says how often
    each was tried, which is for the reader to weigh.
    """
    found, known = (best(direction, list(side.values.values())) for side in (idea, baseline))
    assert found is not None
    assert known is not None
    effect = known - found if direction is Direction.MINIMIZE else found - known
    if provisional:
        verdict = Verdict.PROVISIONAL
    elif effect == 0:
        verdict = Verdict.UNDECIDED
    else:
        verdict = Verdict.BETTER if effect > 0 else Verdict.WORSE
    return Judgement(effect, 0.0, None, effect, effect, None, 0.0, verdict)


def claimed(results: Sequence[tuple[float | None, float]], alpha: float = ALPHA) -> list[bool]:
    """Return which of several results may be claimed to be better, from p and effect of each.

    The chance that any claim is false is at most `alpha` (Holm 1979, doi:10.2307/4615733). The
    results must be of fresh seeds: those that selected them say what chance can do. None for p is
    a result that shows nothing.
    """
    ps = [1.0 if p is None else p for p, _ in results]
    accepted = [False] * len(ps)
    for rank, place in enumerate(sorted(range(len(ps)), key=lambda place: ps[place])):
        if ps[place] > alpha / (len(ps) - rank):
            break
        accepted[place] = results[place][1] > 0
    return accepted


def smallest_effect(
    baseline: Measured, seeds: int, prior: Prior = DEFAULT_PRIOR, power: float = 0.8
) -> float | None:
    """Return the smallest effect that is called better with probability `power`.

    In units of the metric, for an idea on the baseline's first `seeds` seeds that varies as the
    prior expects; None if the baseline's spread is unknown or 0. The noncentral t distribution is
    approximated by a shifted one.
    """
    if baseline.noise == 0:
        return None
    more = seeds - 1
    # What the idea is expected to look like: no luck, and a spread as presumed.
    expected = Residuals(
        luck=0.0,
        slope=prior.slope if more else 0.0,
        squares=more * prior.variance * baseline.noise,
        shared=seeds if more else 0,
        lucky_squares=more * baseline.noise,
    )
    error, df = _moderated(expected, seeds, baseline, prior)
    reach = student_quantile(1 - ALPHA / 2, df) + student_quantile(power, df)
    return reach * math.sqrt(error)


def _variance(
    own: Residuals, idea: Measured, baseline: Measured, prior: Prior
) -> tuple[float, float] | None:
    """Return the variance of an effect and its degrees of freedom; None if nothing tells it."""
    if baseline.noise > 0:
        return _moderated(own, idea.n, baseline, prior)
    if baseline.df > 0 and idea.n > 1:  # the baseline does not vary: the idea's spread decides
        return own.squares / (idea.n - 1) / idea.n, idea.n - 1.0
    return None


def _moderated(own: Residuals, n: int, baseline: Measured, prior: Prior) -> tuple[float, float]:
    """Return the variance of an effect on n seeds and its degrees of freedom.

    They are Welch's, but for the prior's part of the idea's variance: that is a multiple of the
    baseline's variance, so both err together.
    """
    noise = baseline.noise
    prior_df = 1 / (1 / prior.df + 1 / baseline.df)
    df = prior_df + n - 1
    presumed = prior.variance * noise
    if own.shared:
        weight = own.lucky_squares + prior.slope_seeds * noise
        leverage = 1 / n + (own.luck**2 + noise / baseline.n) / weight
    else:  # without a shared seed, its luck is part of what the idea varies by
        leverage, presumed = 1 / n, presumed + prior.slope**2 * noise
    idea = (prior_df * presumed + own.squares) / df * leverage
    shared = (1 - own.slope * own.shared / n) ** 2 * noise / baseline.n
    from_prior = prior_df * presumed / df * leverage
    total = idea + shared
    parts = (
        (idea / total) ** 2 / df
        + (shared / total) ** 2 / baseline.df
        + 2 * (from_prior / total) * (shared / total) / baseline.df
    )
    return total, 1 / parts


@dataclass(frozen=True)
class Residuals:
    """The regression of an idea on the baseline's luck, with the prior slope.

    Attributes:
        luck: Mean of c over the idea's seeds: how lucky they were for the baseline.
        slope: Posterior mean of β.
        squares: Sum of squared residuals, the prior of the slope included.
        shared: Number of seeds that both sides have; 0 where β cannot be estimated.
        lucky_squares: Sum of squares of c around its mean.
    """

    luck: float
    slope: float
    squares: float
    shared: int
    lucky_squares: float

    @classmethod
    def of(cls, idea: Measured, baseline: Measured, prior: Prior) -> Residuals:
        """Fit one idea. Seeds that the baseline does not have tell nothing about luck."""
        seeds = sorted(idea.values)
        y = [idea.values[seed] - idea.mean for seed in seeds]
        c = [baseline.values.get(seed, baseline.mean) - baseline.mean for seed in seeds]
        luck = average(c)
        syy = idea.noise * idea.df
        shared = sum(seed in baseline.values for seed in seeds)
        if idea.n == 1 or baseline.noise == 0 or not shared:
            return cls(luck, 0.0, syy, 0, 0.0)
        sxx = math.fsum((value - luck) ** 2 for value in c)
        sxy = math.fsum((a - luck) * b for a, b in zip(c, y, strict=True))
        weight = prior.slope_seeds * baseline.noise
        slope = (sxy + weight * prior.slope) / (sxx + weight)
        squares = syy + weight * prior.slope**2 - (sxx + weight) * slope**2
        return cls(luck, slope, max(squares, 0.0), shared, sxx)


def fit_prior(
    codebases: Sequence[Measured], baseline: Measured, default: Prior = DEFAULT_PRIOR
) -> Prior:
    """Fit a prior to the codebases of an environment, measured under equal conditions.

    Codebases with one seed or no spread say nothing about spreads and are left out, and so are
    those with the baseline's own numbers, in which nothing was changed. Returns
    `default` if fewer than `FEWEST_CODEBASES` are left or the baseline has no spread. The variance
    is fitted by moments of its logarithm (Smyth 2004, §6.2), but is at least the baseline's.
    """
    unchanged = baseline.values.items()
    known = [c for c in codebases if c.noise > 0 and not c.values.items() <= unchanged]
    if len(known) < FEWEST_CODEBASES or baseline.noise == 0:
        return default
    slope = _common_slope(known, baseline)
    sloped = replace(default, slope=slope)
    squares = [(Residuals.of(c, baseline, sloped).squares, c.n - 1) for c in known]
    ratios = [(found / df / baseline.noise, df) for found, df in squares if found > 0]
    df, centre = _inverse_chi_square(ratios)
    centre = max(centre, _LEAST_PRIOR_VARIANCE)
    # The upper quartile: a few broken ideas must not make every effect look credible, nor many
    # that change nothing make every effect look like chance.
    errors = median(c.noise / c.n + baseline.noise / baseline.n for c in known)
    sizes = sorted(abs(c.mean - baseline.mean) for c in known)
    typical = sizes[3 * len(sizes) // 4] / _NORMAL_UPPER_QUARTILE
    effect = max(math.sqrt(max(typical**2 - errors, 0.0) / baseline.noise), _LEAST_EFFECT)
    return Prior(df, centre, slope, default.slope_seeds, effect, len(known))


def _common_slope(codebases: Sequence[Measured], baseline: Measured) -> float:
    """The slope of all ideas on the baseline together, each with its own level; 0 to 1."""
    sxx = sxy = 0.0
    for codebase in codebases:
        shared = [
            (baseline.values[s], v) for s, v in codebase.values.items() if s in baseline.values
        ]
        x, y = average([b for b, _ in shared] or [0.0]), average([v for _, v in shared] or [0.0])
        # By the inverse of the variance, moderated: two seeds can look alike by chance.
        moderated = _PRIOR_DF[0] * baseline.noise + codebase.df * codebase.noise
        sxx += math.fsum((b - x) ** 2 for b, _ in shared) / moderated
        sxy += math.fsum((b - x) * (v - y) for b, v in shared) / moderated
    return min(max(sxy / sxx, 0.0), 1.0) if sxx > 0 else 0.0


def _inverse_chi_square(ratios: Sequence[tuple[float, int]]) -> tuple[float, float]:
    """Fit degrees of freedom and centre to variances, each with its own degrees of freedom."""
    logs = [math.log(r) - digamma(f / 2) + math.log(f / 2) for r, f in ratios]
    between = variance(logs) - fmean(trigamma(f / 2) for _, f in ratios)
    df = 2 * _inverse_trigamma(between) if between > 0 else math.inf
    df = min(max(df, _PRIOR_DF[0]), _PRIOR_DF[1])
    return df, math.exp(fmean(logs) + digamma(df / 2) - math.log(df / 2))


def _inverse_trigamma(y: float) -> float:
    """Return the x > 0 with trigamma(x) = y, by bisection of its logarithm."""
    low, high = -20.0, 20.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if trigamma(math.exp(middle)) > y else (low, middle)
    return math.exp(low)


@lru_cache(maxsize=_REMEMBERED)
def _two_sided(effect: float, error: float, df: float) -> float:
    if error == 0:
        return 0.0 if effect else 1.0
    return 2 * student_cdf(-abs(effect) / error, df)


@lru_cache(maxsize=_REMEMBERED)
def shrunken(effect: float, error: float, df: float, scale: float) -> tuple[float, float]:
    """Return posterior mean and probability of improvement, with effects ~ N(0, scale²).

    The likelihood is Student's t, so a far outlier is not believed as a normal one would be. The
    integral is a sum over points that are dense where either of the two is.
    """
    if error == 0 or scale == 0:
        return effect, 0.5 if effect == 0 else float(effect > 0)
    points = sorted({*(scale * z for z in _NORMAL_GRID), *(effect + error * t for t in _T_GRID)})
    logs = [
        -((x / scale) ** 2) / 2 - (df + 1) / 2 * math.log1p(((x - effect) / error) ** 2 / df)
        for x in points
    ]
    most = max(logs)
    heights = [math.exp(log - most) for log in logs]
    mass = mean = positive = 0.0
    for (x, fx), (y, fy) in pairwise(zip(points, heights, strict=True)):
        area = (y - x) * (fx + fy) / 2
        mass += area
        mean += area * (x + y) / 2
        # A part of the one piece that contains 0.
        positive += area * min(max(y / (y - x), 0.0), 1.0)
    return mean / mass, positive / mass
