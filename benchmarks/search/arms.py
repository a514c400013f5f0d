"""Run the strategies of `assay.search` in a world, on a virtual clock with a number of workers.

A strategy that waits decides when its whole wave has ended. An asynchronous one decides, as in
`assay.search.slots`, for a few ideas as soon as fewer jobs than slots are under way; ideas are
there at once. Workers take jobs in the order in which they were decided, and a job takes as many
seconds as it costs core-seconds.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from assay.domain.states import ExperimentState
from assay.domain.verdicts import Verdict
from assay.llm.ideation import Trajectory
from assay.search import open_strategy
from assay.search.plan import Pending, Remeasure, Situation
from assay.search.posterior import posterior
from benchmarks.search.lab import CONFIRMED, Job, Lab, Outcome, OverBudget
from benchmarks.search.mutator import Mutator
from benchmarks.search.points import Point
from benchmarks.search.worlds import Draw

#: Workers, and so slots of asynchronous strategies.
SLOTS = 8
#: Ideas of a decision of an asynchronous strategy.
CHUNK = 4
#: A search ends after so many ideas per run that it can pay: repeats cost nothing.
IDEAS_PER_RUN = 4


@dataclass(frozen=True)
class Arm:
    """A strategy with its settings.

    Attributes:
        wave: Ideas per epoch, or per decision of an asynchronous strategy.
        by_posterior: Whether the expected effect decides what is confirmed. If not, the measured
            one does, as in `assay.search.confirming`.
    """

    name: str
    strategy: str
    config: Mapping[str, Any] = field(default_factory=dict)
    wave: int = 8
    by_posterior: bool = False

    def run(self, draw: Draw, budget: float) -> Outcome:
        """Search until the budget, in core-seconds, is spent, and confirm the best."""
        return _Search(self, draw, budget).run()


#: What the others are compared with.
REFERENCE = Arm("greedy, waves of 8", "greedy")
ARMS = (
    REFERENCE,
    Arm("best-of-n, waves of 8", "best-of-n"),
    Arm("random, waves of 8", "random"),
    Arm("evolution, waves of 40", "evolution", wave=40),
    Arm("evolution, waves of 8", "evolution"),
    Arm("greedy of 3, waves of 8", "greedy", {"top": 3}),
    Arm("thompson, never again", "thompson", {"keep": SLOTS, "remeasure": 0}, CHUNK),
    Arm("thompson", "thompson", {"keep": SLOTS}, CHUNK),
    # What of the settings did best in the first world.
    Arm(
        "thompson, tuned",
        "thompson",
        {"keep": SLOTS, "explore": 5, "parents": 4, "remeasure": 10},
        CHUNK,
        by_posterior=True,
    ),
)


@dataclass(frozen=True)
class _Decided:
    """A job with its place in the record of the search."""

    epoch: int
    position: int
    operator: str
    parents: tuple[str, ...]
    job: Job

    @property
    def id(self) -> str:
        return f"{self.epoch}.{self.position}"


class _Search:
    def __init__(self, arm: Arm, draw: Draw, budget: float) -> None:
        self._arm = arm
        self._strategy = open_strategy(arm.strategy, arm.config)
        self._lab = Lab(draw, budget)
        self._draw = draw
        self._mutator = Mutator(draw.world.factors, draw.seed)
        self._most_ideas = IDEAS_PER_RUN * budget / draw.world.run_cost
        self._points: dict[str, Point] = {}
        self._ended: list[Trajectory] = []
        self._asked: list[Trajectory] = []
        self._waiting: deque[_Decided] = deque()
        self._running: list[tuple[float, int, _Decided]] = []
        #: When the first measurement of a point ends: one that repeats it ends no earlier.
        self._ends: dict[Point, float] = {}
        self._epoch = 0
        self._started = 0
        self._now = 0.0
        self._is_spent = False

    def run(self) -> Outcome:
        while True:
            while self._may_decide():
                self._decide()
            if not self._running:
                break
            self._advance()
        return self._lab.finish(self._best(), self._now)

    def _best(self) -> list[Point]:
        """What is confirmed: of each codebase that improves, the trajectory on most seeds."""
        # One for each codebase, best first by the expected effect.
        found = [each.trajectory for each in posterior(self._ended).candidates]
        if not self._arm.by_posterior:
            found.sort(key=lambda past: -_effect(past))
        improved = [past for past in found if _effect(past) > 0]
        return [self._points[past.id] for past in improved[:CONFIRMED]]

    def _may_decide(self) -> bool:
        under_way = len(self._running) + len(self._waiting)
        if self._is_spent or len(self._points) > self._most_ideas:
            return False
        slots = self._strategy.slots
        return not under_way if slots is None else under_way < slots

    def _decide(self) -> None:
        decision = self._strategy.plan(self._situation())
        if isinstance(decision, Remeasure):
            again = [(self._points[past.id], (past.id,)) for past in decision.trajectories]
            found = [("remeasure", point, ids, decision.seeds) for point, ids in again]
        else:
            ideas = [each for ask in decision for each in self._mutator.propose(ask, self._point)]
            found = [(idea.operator, idea.point, idea.parents, 1) for idea in ideas]
        for position, (operator, point, parents, seeds) in enumerate(found):
            try:
                job = self._lab.start(point, seeds)
            except OverBudget:
                self._is_spent = True
                break
            decided = _Decided(self._epoch, position, operator, parents, job)
            self._points[decided.id] = point
            self._asked.append(self._trajectory(decided, ExperimentState.SUBMITTED))
            self._waiting.append(decided)
        self._epoch += 1
        self._fill()

    def _point(self, trajectory: str) -> Point | None:
        return self._points.get(trajectory)

    def _situation(self) -> Situation:
        slots = self._strategy.slots
        if slots is None:
            size = self._arm.wave
            known = self._asked if self._strategy.overlaps else sorted(self._ended, key=_place)
            told = self._epoch > 0 and self._strategy.needs_baseline
        else:  # in the order in which it learnt of them; the first decisions wait for no baseline
            size, known = min(self._arm.wave, slots), self._ended
            told = len(self._points) >= slots
        waiting = [*(each for *_, each in self._running), *self._waiting]
        return Situation(
            epoch=self._epoch,
            batch_size=size,
            seed=self._draw.seed,
            trajectories=tuple(known),
            baseline_reward=self._draw.baseline_reward if told else None,
            pending=tuple(Pending(each.operator, each.parents) for each in waiting),
        )

    def _fill(self) -> None:
        """Give waiting jobs to free workers."""
        while self._waiting and len(self._running) < SLOTS:
            decided = self._waiting.popleft()
            job = decided.job
            end = self._now + job.cost
            if not job.failed:
                end = self._ends[job.point] = max(end, self._ends.get(job.point, 0.0))
            heapq.heappush(self._running, (end, self._started, decided))
            self._started += 1

    def _advance(self) -> None:
        """Let time pass until the next job ends."""
        self._now, _, decided = heapq.heappop(self._running)
        state = ExperimentState.FAILED if decided.job.failed else ExperimentState.SUCCEEDED
        self._ended.append(self._trajectory(decided, state))
        self._fill()

    def _trajectory(self, decided: _Decided, state: ExperimentState) -> Trajectory:
        """What the service would say of an experiment in this state."""
        job, world = decided.job, self._draw.world
        succeeded = state == ExperimentState.SUCCEEDED
        seen = self._draw.seen(job.point, job.seeds) if succeeded else None
        return Trajectory(
            id=decided.id,
            epoch=decided.epoch,
            position=decided.position,
            idea_text=world.factors.name(job.point),
            reward=seen.reward if seen else 0.0,
            state=state,
            metric=seen.metric if seen else None,
            failure="implement: no sample works" if job.failed else "",
            operator=decided.operator,
            parents=decided.parents,
            seeds=job.seeds if seen else 0,
            seconds=job.cost,
            standing=seen.standing if seen else None,
            codebase=world.factors.key(job.point) if seen else None,
        )


def _place(past: Trajectory) -> tuple[int, int]:
    return past.epoch, past.position


def _effect(past: Trajectory) -> float:
    standing = past.standing
    if standing is None or standing.effect is None or standing.verdict == Verdict.IDENTICAL:
        return 0.0
    return standing.effect
