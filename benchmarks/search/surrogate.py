"""A made-up world of the size of the table, for tests and for trying the harness out.

Its numbers were measured nowhere. What strategies do in it supports no claim.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from assay.domain.hashing import derive_seed
from benchmarks.search.points import NANOGPT, SEEDS, Factors, Point, repeated_points
from benchmarks.search.worlds import LogNoise, Row, World, of_rows

#: Effects of levels on the logarithm of the loss, those of pairs of levels, noise, shared luck.
_MAIN, _PAIR, _SD, _SHARED = 0.08, 0.04, 0.03, 0.3
_BASELINE = 1.45


def surrogate(seed: int = 0, factors: Factors = NANOGPT) -> World:
    """Return the world that a table of made-up runs tells of."""
    return of_rows("surrogate", factors, rows(seed, factors))


def rows(seed: int, factors: Factors = NANOGPT) -> list[Row]:
    """Return runs like those of the table: every point on seed 0, some on all seeds."""
    truth = true_losses(seed, factors)
    noise = LogNoise(truth, dict.fromkeys(factors.points, _SD), _SHARED)
    more = repeated_points(factors)
    wanted = [(p, 0) for p in factors.points] + [(p, s) for s in range(1, SEEDS) for p in more]
    costs = {point: 13.0 * 1.05 ** sum(map(bool, point)) for point in factors.points}
    return [Row(p, s, noise.value(seed, p, s), costs[p]) for p, s in wanted]


def true_losses(seed: int, factors: Factors = NANOGPT) -> dict[Point, float]:
    """Return a loss for every point: main effects, pairs and a rest on its logarithm."""
    rng = random.Random(derive_seed(seed, "surrogate"))
    places = [
        (f, level) for f, each in enumerate(factors.factors) for level in _levels(each.levels)
    ]
    main = {place: rng.gauss(-0.02, _MAIN) for place in places}
    pairs = {(a, b): rng.gauss(0, _PAIR) for a in places for b in places if a[0] < b[0]}
    truth = {}
    for point in factors.points:
        chosen = [(f, level) for f, level in enumerate(point) if level]
        log = sum(main[each] for each in chosen)
        log += sum(pairs[a, b] for a in chosen for b in chosen if a[0] < b[0])
        rest = rng.gauss(0, 0.01) if chosen else 0.0
        truth[point] = _BASELINE * 2.718281828 ** (log + rest)
    return truth


def _levels(levels: Sequence[str]) -> range:
    return range(1, len(levels))
