"""An asynchronous search that knows the noise of its measurements.

It differs from Algorithm 1 of the paper in four ways. It decides whenever slots are free, so that
ideas build on the newest results. It chooses parents by Thompson sampling (Thompson 1933,
doi:10.1093/biomet/25.3-4.285), so that a result counts as much as its noise allows. It chooses
operators by how often their ideas came among the best. And it measures the most promising
codebases on more seeds, the more of them the larger the noise is beside the effects.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from assay.domain.states import ExperimentState
from assay.llm.ideation import Operator, Trajectory
from assay.search.plan import Ask, Decision, Remeasure, Situation
from assay.search.posterior import Candidate, Posterior, posterior
from assay.search.settings import Configured, check_whole, question_seed

#: Operators that build on results, and those that the bandit chooses from.
_BUILDING: tuple[Operator, ...] = ("refine", "combine", "ablate", "rescue")
#: Outcomes that the bandit looks back on. What worked at the start need not work now.
_MEMORY = 64
#: A decision asks at most so many operators: each is a call of its own.
_OPERATORS = 2
#: Codebases with fewer results tell nothing about the noise.
_FEWEST = 6


@dataclass(frozen=True)
class Thompson(Configured):
    """Thompson sampling over parents and operators, in free slots.

    Args:
        keep: Experiments kept under way at the same time.
        parents: The best codebases by expected effect, which ideas may build on.
        explore: Least share of ideas that are new, in percent.
        remeasure: Largest share of decisions that measure again, in percent. The share is that
            of noise in the variance of the effects, if it is smaller.
        seeds: Most seeds of a codebase before its confirmation.
    """

    keep: int = 16
    parents: int = 8
    explore: int = 15
    remeasure: int = 25
    seeds: int = 4

    def __post_init__(self) -> None:
        check_whole("keep", self.keep, 1, 100_000)
        check_whole("parents", self.parents, 1, 1_000)
        check_whole("explore", self.explore, 0, 100)
        check_whole("remeasure", self.remeasure, 0, 100)
        check_whole("seeds", self.seeds, 1, 64)

    @property
    def slots(self) -> int | None:
        """`keep`."""
        return self.keep

    def plan(self, situation: Situation) -> Decision:
        """Ask for ideas, or measure promising codebases again."""
        known = posterior(situation.trajectories)
        rng = random.Random(question_seed(situation, "thompson"))
        again = self._remeasure(situation, known, rng)
        if again is not None:
            return again
        counts: Counter[Operator] = Counter()
        parents: dict[Operator, dict[str, Trajectory]] = {}
        size = situation.batch_size
        for share in _split(size, min(_OPERATORS, size)):
            operator, built_on = self._operator(situation, known, rng, share)
            counts[operator] += share
            parents.setdefault(operator, {}).update({past.id: past for past in built_on})
        return [
            Ask(
                operator,
                count,
                question_seed(situation, operator),
                situation.trajectories,
                tuple(parents[operator].values()),
            )
            for operator, count in counts.items()
        ]

    def _operator(
        self, situation: Situation, known: Posterior, rng: random.Random, count: int
    ) -> tuple[Operator, Sequence[Trajectory]]:
        """An operator for `count` ideas, and what they are to build on."""
        new: Operator = "explore" if situation.trajectories else "seed"
        best = _promising(known, self.parents)
        if new == "seed" or rng.random() * 100 < self.explore:
            return new, ()
        choices = {
            "refine": _drawn(best, rng, max(1, count // 2)),
            "combine": _drawn(best, rng, max(2, count)) if len(best) > 1 else [],
            "ablate": _drawn([each for each in best if each.trajectory.parents], rng, 1),
            "rescue": _failed(situation, count),
        }
        operators: list[Operator] = [new, *(each for each in _BUILDING if choices[each])]
        wins, losses = _record(situation.trajectories, known, self.parents)
        chosen = max(operators, key=lambda each: rng.betavariate(1 + wins[each], 1 + losses[each]))
        return chosen, choices.get(chosen, ())

    def _remeasure(
        self, situation: Situation, known: Posterior, rng: random.Random
    ) -> Remeasure | None:
        """The most promising codebases on one seed more, as often as noise is large."""
        share = min(self.remeasure / 100, 1 - known.reliability)
        if len(known.candidates) < _FEWEST or rng.random() >= share:
            return None
        busy = {
            parent
            for each in situation.pending
            if each.operator == "remeasure"
            for parent in each.parents
        }
        open_ = [
            each
            for each in _promising(known, self.parents)
            if each.trajectory.seeds < self.seeds
            and each.trajectory.id not in busy
            and not each.trajectory.source
        ]
        drawn = _drawn(open_, rng, max(1, situation.batch_size // 2))
        if not drawn:
            return None
        seeds = drawn[0].seeds
        return Remeasure(tuple(past for past in drawn if past.seeds == seeds), seeds + 1)


def _promising(known: Posterior, most: int) -> list[Candidate]:
    """The best that may well improve on the baseline, best first."""
    return [each for each in known.candidates[:most] if each.mean + each.sd > 0]


def _drawn(candidates: Sequence[Candidate], rng: random.Random, most: int) -> list[Trajectory]:
    """Up to `most` different trajectories, each the best of a draw for every candidate."""
    left = list(candidates)
    chosen: list[Trajectory] = []
    while left and len(chosen) < most:
        draws = [each.draw(rng) for each in left]
        chosen.append(left.pop(draws.index(max(draws))).trajectory)
    return chosen


def _failed(situation: Situation, most: int) -> list[Trajectory]:
    """The newest ideas that failed and that nobody has tried to rescue."""
    tried = {
        parent
        for operator, parents in (
            *((past.operator, past.parents) for past in situation.trajectories),
            *((each.operator, each.parents) for each in situation.pending),
        )
        if operator == "rescue"
        for parent in parents
    }
    failed = [
        past
        for past in situation.trajectories
        if past.state == ExperimentState.FAILED and not past.source and past.id not in tried
    ]
    return failed[-most:]


def _record(
    trajectories: Sequence[Trajectory], known: Posterior, best: int
) -> tuple[Counter[str], Counter[str]]:
    """For each operator, how many of its newest ideas are among the `best`, and how many not."""
    names = {each.trajectory.codebase or each.trajectory.id for each in _promising(known, best)}
    wins: Counter[str] = Counter()
    losses: Counter[str] = Counter()
    seen: set[str] = set()
    for past in trajectories[-_MEMORY:]:
        name = past.codebase or past.id
        if past.source or name in seen or past.operator == "remeasure":
            continue
        seen.add(name)
        operator = "explore" if past.operator == "seed" else past.operator
        (wins if name in names else losses)[operator] += 1
    return wins, losses


def _split(size: int, parts: int) -> list[int]:
    """A size in nearly equal parts, the larger ones first."""
    each, rest = divmod(size, parts)
    return [each + 1] * rest + [each] * (parts - rest)
