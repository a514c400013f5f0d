"""A mutator in the place of an ideator: it answers a strategy's questions with points of a table.

It is not a model, and of results it knows only which trajectories a question calls parents, and
their order. Like a model it has favourites and forgets some of what it was told, so ideas repeat.
All strategies and peers get the same one.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from assay.domain.hashing import derive_seed
from assay.domain.states import ExperimentState
from assay.llm.ideation import Trajectory
from assay.search.plan import Ask
from benchmarks.search.points import Factors, Point

#: Standard deviation of the logarithm of how much a change is liked. Of nine changes, the
#: favourite is typically proposed 20 times as often as the last.
FAVOURITES = 1.0
#: Share of ideas that are had without regard to what was tried.
FORGETS = 0.1
#: How much it is liked to take a change back, where that is not what is asked for.
TAKEN_BACK = 0.3


@dataclass(frozen=True)
class Proposal:
    """An idea: a point, and the ids of the trajectories that it builds on."""

    point: Point
    operator: str
    parents: tuple[str, ...] = ()


class Mutator:
    """Proposes points, with favourites that follow from a seed."""

    def __init__(self, factors: Factors, seed: int) -> None:
        self._factors = factors
        self._seed = seed
        rng = random.Random(derive_seed(seed, "favourites"))
        self._liked = [
            [TAKEN_BACK, *(rng.lognormvariate(0, FAVOURITES) for _ in factor.levels[1:])]
            for factor in factors.factors
        ]
        self._by_size: dict[int, list[tuple[Point, float]]] = {}
        for point in factors.points:
            weight = math.prod(
                liked[level] for liked, level in zip(self._liked, point, strict=True) if level
            )
            self._by_size.setdefault(size_of(point), []).append((point, weight))

    def propose(self, ask: Ask, point_of: Callable[[str], Point | None]) -> list[Proposal]:
        """Answer a question. `point_of` tells the point of a trajectory, by its id."""
        rng = random.Random(derive_seed(self._seed, "ideas", ask.operator, ask.seed))
        tried = {point for each in ask.known if (point := point_of(each.id)) is not None}
        parents = [(p, point) for p in ask.parents if (point := point_of(p.id)) is not None]
        found: list[Proposal] = []
        for place in range(ask.count):
            known = set() if rng.random() < FORGETS else tried
            idea = self._idea(rng, ask.operator, place, parents, known)
            found.append(idea)
            tried.add(idea.point)
        return found

    def new(self, rng: random.Random, tried: Collection[Point]) -> Point:
        """Return an untried point with one or two changes; with more, if there is none."""
        few = rng.choice((1, 2))
        sizes = [few, 3 - few, *range(3, len(self._factors.factors) + 1)]
        for size in sizes:
            left = [(p, w) for p, w in self._by_size[size] if p not in tried]
            if left:
                return rng.choices([p for p, _ in left], [w for _, w in left])[0]
        return self._factors.baseline

    def varied(self, rng: random.Random, point: Point, tried: Collection[Point]) -> Point:
        """Return a point with one change to another; with more, if those were all tried."""
        for distance in range(1, len(point) + 1):
            left = [(p, w) for p, w in self._around(point, distance) if p not in tried]
            if left:
                return rng.choices([p for p, _ in left], [w for _, w in left])[0]
        return point

    def united(self, rng: random.Random, one: Point, other: Point) -> Point:
        """Return the changes of both points; where they differ, those of either."""
        return tuple(
            rng.choice((a, b)) if a and b else a or b for a, b in zip(one, other, strict=True)
        )

    def reduced(self, rng: random.Random, point: Point, tried: Collection[Point]) -> Point:
        """Return a point with one change less, an untried one if there is one."""
        less = [
            (*point[:place], 0, *point[place + 1 :]) for place, level in enumerate(point) if level
        ]
        return rng.choice([p for p in less if p not in tried] or less or [point])

    def _idea(
        self,
        rng: random.Random,
        operator: str,
        place: int,
        parents: Sequence[tuple[Trajectory, Point]],
        tried: Collection[Point],
    ) -> Proposal:
        if operator in ("seed", "explore") or not parents:
            return Proposal(self.new(rng, tried), operator)
        if operator == "exploit":  # all that beat the baseline: the better ones are liked more
            ranked = sorted(parents, key=lambda each: -each[0].reward)
            parent, point = rng.choices(ranked, [1 / (1 + i) for i in range(len(ranked))])[0]
        else:
            parent, point = parents[place % len(parents)]
        built_on = (parent.id,)
        if operator == "combine" and len(parents) > 1:
            other, point_ = rng.choice([each for each in parents if each[0].id != parent.id])
            united = self.united(rng, point, point_)
            new = united if united not in tried else self.varied(rng, united, tried)
            return Proposal(new, operator, (parent.id, other.id))
        if operator == "ablate":
            return Proposal(self.reduced(rng, point, tried), operator, built_on)
        if operator == "rescue" and parent.state == ExperimentState.FAILED:
            # What has only one change is tried once more.
            less = self.reduced(rng, point, tried) if size_of(point) > 1 else point
            return Proposal(less, operator, built_on)
        return Proposal(self.varied(rng, point, tried), operator, built_on)

    def _around(self, point: Point, distance: int) -> list[tuple[Point, float]]:
        """The points that differ from one in so many factors, and how much each is liked."""
        found = []
        for other in self._factors.points:
            changed = [i for i, (a, b) in enumerate(zip(point, other, strict=True)) if a != b]
            if len(changed) == distance:
                found.append((other, math.prod(self._liked[i][other[i]] for i in changed)))
        return found


def size_of(point: Point) -> int:
    """Return the number of changes to the baseline."""
    return sum(level > 0 for level in point)
