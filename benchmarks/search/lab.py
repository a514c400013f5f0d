"""The account of one search: it measures points of a world and pays for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from assay.domain.metrics import Direction
from benchmarks.search.points import Point
from benchmarks.search.worlds import FAILED_COST, Draw, Seen

#: How many results are confirmed at the end, and on how many fresh seeds each.
CONFIRMED, FRESH_SEEDS = 3, 5
#: The first seed of confirmations: no search measures on these.
_FRESH = 1000


class OverBudget(Exception):
    """What was asked for cannot be paid, if the confirmation is to be."""


@dataclass(frozen=True)
class Job:
    """A measurement that was paid for.

    Attributes:
        seeds: How many seeds the point has afterwards, from 0.
        cost: Core-seconds that this job used: 0 if all of it was measured before.
        failed: The idea failed.
    """

    point: Point
    seeds: int
    cost: float
    failed: bool


@dataclass(frozen=True)
class Outcome:
    """How a search ended.

    Attributes:
        winner: The best of those that were confirmed; the baseline if nothing improved on it.
        claimed: Its mean over the seeds of the confirmation.
        searched: Its metric in the search, by which it was selected.
        spent: Core-seconds, confirmation included.
        runs: Measurements of a point on a seed, without the confirmation.
        repeats: Ideas whose point was known, and cost nothing.
        seconds: When the search ended on the virtual clock; 0 for a peer.
    """

    winner: Point
    claimed: float
    searched: float
    spent: float
    ideas: int = 0
    failed: int = 0
    runs: int = 0
    remeasured: int = 0
    repeats: int = 0
    confirmed: int = 0
    seconds: float = 0.0


class Lab:
    """The account of one search on a draw.

    Args:
        draw: The world with its luck.
        budget: Core-seconds that may be spent, with the confirmation.
    """

    def __init__(self, draw: Draw, budget: float) -> None:
        self.draw = draw
        self.budget = budget
        self.spent = 0.0
        self.seeds: dict[Point, int] = {}
        self._attempts: Counter[Point] = Counter()
        self._counts: Counter[str] = Counter()
        self._dearest = draw.world.run_cost

    def start(self, point: Point, seeds: int = 1) -> Job:
        """Pay for a point until it has so many seeds, and learn at once what came of it.

        An idea on its first seed may fail. One that is known costs nothing.

        Raises:
            OverBudget: it cannot be paid; nothing is.
        """
        cost = self.draw.world.cost[point]
        known = self.seeds.get(point, 0)
        attempt = self._attempts[point]
        failed = not known and self.draw.fails(point, attempt)
        price = cost * FAILED_COST if failed else cost * max(seeds - known, 0)
        dearest = max(self._dearest, cost)
        if price and self.spent + price + CONFIRMED * FRESH_SEEDS * dearest > self.budget:
            raise OverBudget
        self.spent += price
        if failed:
            self._attempts[point] += 1
        else:
            self._dearest = dearest
            self.seeds[point] = max(seeds, known)
        self._counts["ideas"] += seeds == 1
        self._counts["failed"] += failed
        self._counts["repeats"] += seeds == 1 and not price
        self._counts["runs"] += 0 if failed else max(seeds - known, 0)
        self._counts["remeasured"] += max(seeds - known, 0) if seeds > 1 else 0
        return Job(point, seeds, price, failed)

    def measure(self, point: Point, seeds: int = 1) -> Seen | None:
        """Measure a point on its first seeds; None if the idea failed. Raises OverBudget."""
        job = self.start(point, seeds)
        return None if job.failed else self.draw.seen(point, max(self.seeds[point], seeds))

    def finish(self, best: Sequence[Point], seconds: float = 0.0) -> Outcome:
        """Confirm the first of `best` on fresh seeds and return what wins.

        Args:
            best: Different points, the most promising first. Empty if nothing looks better than
                the baseline, which then wins.
            seconds: When the search ended.
        """
        draw, chosen = self.draw, list(best[:CONFIRMED])
        claims: dict[Point, float] = {}
        for point in chosen:
            self.spent += FRESH_SEEDS * draw.world.cost[point]
            fresh = (draw.value(point, _FRESH + seed) for seed in range(FRESH_SEEDS))
            claims[point] = fmean(fresh)
        if claims:
            pick = min if draw.world.direction is Direction.MINIMIZE else max
            winner = pick(claims, key=lambda point: claims[point])
            claimed = claims[winner]
            searched = draw.seen(winner, self.seeds.get(winner, 1)).metric
        else:
            winner = draw.world.factors.baseline
            claimed = searched = draw.baseline.mean
        counts = self._counts
        return Outcome(
            winner,
            claimed,
            searched,
            self.spent,
            ideas=counts["ideas"],
            failed=counts["failed"],
            runs=counts["runs"],
            remeasured=counts["remeasured"],
            repeats=counts["repeats"],
            confirmed=len(chosen),
            seconds=seconds,
        )
