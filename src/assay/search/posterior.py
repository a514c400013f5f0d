"""What the true effects of measured codebases probably are, given the noise of a measurement.

`thompson.py` draws from it. The noise of each effect is that of its verdict
(`assay.domain.verdicts.judge`); here the effects of one search are shrunken towards each other,
since the best of many results is partly the luckiest.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, median

from assay.llm.ideation import Trajectory
from assay.search.positives import is_sound

#: Turns the median distance from the median into a standard deviation, for normal numbers.
_MAD_TO_SD = 1.4826
#: Effects vary at least by this share of their noise, so that no posterior is a point.
_LEAST_SPREAD = 0.1


@dataclass(frozen=True)
class Candidate:
    """A measured codebase, and its effect as a normal distribution, in units of the metric.

    Attributes:
        trajectory: The experiment that measured it on the most seeds.
        mean: Expected effect. Positive is an improvement, whatever the metric's direction.
        sd: Standard deviation of the effect; 0 without any noise.
    """

    trajectory: Trajectory
    mean: float
    sd: float

    def draw(self, rng: random.Random) -> float:
        """A plausible effect."""
        return rng.gauss(self.mean, self.sd)


@dataclass(frozen=True)
class Posterior:
    """What is known of all codebases of a search.

    Attributes:
        candidates: Best first, by expected effect.
        reliability: Share of the variance between measured effects that is not noise, 0 to 1: 1
            where a single seed tells all.
    """

    candidates: tuple[Candidate, ...]
    reliability: float


def posterior(trajectories: Iterable[Trajectory]) -> Posterior:
    """Return what measured effects say of true ones: a normal prior, fitted to the effects.

    The prior's mean is the median effect. Its variance is the robust variance of the effects
    around it less their mean noise (method of moments), so that a few ideas that broke the
    training do not make every lucky result credible.
    """
    found = _by_codebase(trajectories)
    if not found:
        return Posterior((), 1.0)
    effects = [effect for _, effect, _ in found]
    noise = fmean(error**2 for *_, error in found)
    center = median(effects)
    observed = (_MAD_TO_SD * median(abs(effect - center) for effect in effects)) ** 2
    spread = max(observed - noise, _LEAST_SPREAD * noise)
    candidates = [
        _shrunken(trajectory, effect, error**2, center, spread)
        for trajectory, effect, error in found
    ]
    candidates.sort(key=lambda each: (-each.mean, each.trajectory.id))
    reliability = spread / (spread + noise) if spread + noise else 1.0
    return Posterior(tuple(candidates), reliability)


def _shrunken(
    trajectory: Trajectory, effect: float, noise: float, center: float, spread: float
) -> Candidate:
    if noise == 0:
        return Candidate(trajectory, effect, 0.0)
    weight = spread / (spread + noise)
    return Candidate(trajectory, center + weight * (effect - center), sqrt(weight * noise))


def _by_codebase(trajectories: Iterable[Trajectory]) -> Sequence[tuple[Trajectory, float, float]]:
    """Each codebase's trajectory with the most seeds, its effect and its standard error."""
    most: dict[str, tuple[Trajectory, float, float]] = {}
    for past in trajectories:
        standing = past.standing
        if not is_sound(past) or standing is None or standing.effect is None:
            continue
        key = past.codebase or past.id
        if key not in most or past.seeds >= most[key][0].seeds:
            most[key] = (past, standing.effect, standing.standard_error or 0.0)
    return list(most.values())
