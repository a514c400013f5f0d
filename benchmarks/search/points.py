"""The codebases of the table: six recipes of `nanogpt`, three learning rates, two batch sizes.

`measure.py` trains them, `worlds.py` makes a world of their results.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from assay.domain.hashing import derive_seed
from assay.environments.catalog import Environment
from assay.llm.offline.compose import Splice, combine, knob_splices, recipe_splices
from assay.llm.offline.knobs import Knob
from assay.search.ask import recipe_of
from tests.support.measuring import Tree

#: The level of every factor, by its place in `Factors.factors`; 0 is that of the baseline.
Point: TypeAlias = tuple[int, ...]


@dataclass(frozen=True)
class Factor:
    """One dimension of a full factorial. `levels[0]` is the baseline's."""

    name: str
    levels: tuple[str, ...]


@dataclass(frozen=True)
class Factors:
    """A full factorial."""

    factors: tuple[Factor, ...]

    @property
    def baseline(self) -> Point:
        """The point without a change."""
        return (0,) * len(self.factors)

    @cached_property
    def points(self) -> tuple[Point, ...]:
        """Every point, the baseline first."""
        return tuple(itertools.product(*(range(len(f.levels)) for f in self.factors)))

    def name(self, point: Point) -> str:
        """Return the changes of a point in words: `muon, learning_rate=0.006`."""
        changed = [
            f.name
            if len(f.levels) == 2 and f.levels[1] == "yes"
            else f"{f.name}={f.levels[level]}"
            for f, level in zip(self.factors, point, strict=True)
            if level
        ]
        return ", ".join(changed) or "baseline"

    def key(self, point: Point) -> str:
        """Return a point as digits, as it is stored."""
        return "".join(map(str, point))

    def point(self, key: str) -> Point:
        """Return the point of a key.

        Raises:
            ValueError: the key is of no point.
        """
        found = tuple(int(digit) for digit in key if digit.isdecimal())
        if self.key(found) != key or found not in self._all:
            raise ValueError(f"{key!r} is not a point: it needs a level for each factor")
        return found

    @cached_property
    def _all(self) -> frozenset[Point]:
        return frozenset(self.points)


_OFF_ON = ("no", "yes")
#: Alone, the first three gain, `qk_norm` does nothing and `residual_weights` loses much; whether
#: `zero_init_projections` still helps beside the others is for the table to say.
RECIPES = (
    "muon",
    "bigram_embedding",
    "relu_squared",
    "zero_init_projections",
    "qk_norm",
    "residual_weights",
)
LEARNING_RATES = ("0.003", "0.0015", "0.006")
BATCH_SIZES = ("16", "12")
NANOGPT = Factors(
    (
        *(Factor(name, _OFF_ON) for name in RECIPES),
        Factor("learning_rate", LEARNING_RATES),
        Factor("batch_size", BATCH_SIZES),
    )
)
#: Points that are measured on more seeds, for the noise model, and which seeds.
REPEATED, SEEDS = 60, 5


def repeated_points(factors: Factors = NANOGPT, count: int = REPEATED) -> list[Point]:
    """Return the points that are measured on several seeds: the baseline, and others at random."""
    rng = random.Random(derive_seed(0, "search", "repeated"))
    return [factors.baseline, *rng.sample(factors.points[1:], count - 1)]


def codebases(environment: Environment, factors: Factors = NANOGPT) -> Mapping[Point, Tree]:
    """Return the codebase of every point.

    Raises:
        ValueError: a recipe or knob is not in the manifest, does not fit the codebase, or clashes.
    """
    parts = [_splices(environment, factor) for factor in factors.factors]
    trees: dict[Point, Tree] = {}
    for point in factors.points:
        splices = [s for part, level in zip(parts, point, strict=True) for s in part[level]]
        tree = combine(environment.codebase, splices)
        if tree is None:
            raise ValueError(f"the changes of {factors.name(point)} touch the same lines")
        trees[point] = tree
    return trees


def _splices(environment: Environment, factor: Factor) -> Sequence[Sequence[Splice]]:
    """Return the splices of each level of a factor."""
    files = environment.codebase
    for declared in environment.manifest.recipes:
        if declared.name == factor.name:
            return [[], recipe_splices(files, recipe_of(declared))]
    for each in environment.manifest.knobs:
        if each.name == factor.name:
            knob = Knob(each.name, each.file, each.line, tuple(each.values))
            if knob.baseline != factor.levels[0]:
                raise ValueError(f"{knob.name} is {knob.baseline}, not {factor.levels[0]}")
            return [knob_splices(files, knob, value) for value in factor.levels]
    raise ValueError(f"{environment.name} has no recipe and no knob {factor.name!r}")
