"""The mutator as the model of an optimizer: it reads programs in a prompt and writes another one.

The prompt decides what is built on. A program that failed is rescued. Where a prompt shows several
programs, half of the answers combine two of them; else one program is refined. As in Assay's own
prompts the mutator is told of everything that was tried, also where an optimizer's prompt shows a
part of it: without that, optimizers that show one program stop at the first local optimum.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import count

from assay.domain.hashing import derive_seed
from assay.domain.states import ExperimentState
from assay.llm.ideation import Operator, Trajectory
from assay.search.plan import Ask
from benchmarks.search.arms import IDEAS_PER_RUN
from benchmarks.search.mutator import Mutator
from benchmarks.search.peers.program import Program
from benchmarks.search.peers.service import LabService, Spent
from benchmarks.search.points import Point

#: Share of answers that combine programs, where the prompt shows several.
COMBINED = 0.5


class Misread(BaseException):
    """A prompt shows no program. Not an Exception, because optimizers catch those and continue."""


class MutatorModel:
    """Answers the prompts of one search.

    Args:
        service: What measures the programs.
        budget: Core-seconds. A search ends after as many answers as arms may have ideas.

    Attributes:
        most: How many answers there are; optimizers get this as their limit of iterations.
    """

    def __init__(self, service: LabService, budget: float, seed: int) -> None:
        self.programs = service.programs
        self._service = service
        self._seed = seed
        self._factors = service.world.factors
        self._mutator = Mutator(self._factors, seed)
        self.most = round(IDEAS_PER_RUN * budget / service.world.run_cost)
        self._calls = count()

    def read(self, prompt: str) -> list[Program]:
        """Return the programs in a prompt, in the order in which they occur.

        Raises:
            Misread: there is none.
        """
        found = self.programs.read(prompt)
        if not found:
            raise Misread(f"no program in: {prompt[-2000:]}")
        return found

    def next(self, shown: Sequence[Program], operator: Operator | None = None) -> Program:
        """Return the next program; see `several`."""
        return self.several(1, shown, operator)[0]

    def several(
        self, number: int, shown: Sequence[Program], operator: Operator | None = None
    ) -> list[Program]:
        """Return programs that were not tried, but for those that the mutator forgets.

        Args:
            number: How many.
            shown: The programs of the prompt; what is built on first. Empty for new ideas.
            operator: What the prompt asks for, where it does so in words.

        Raises:
            Spent: there were too many answers.
        """
        call = next(self._calls)
        if call >= self.most:
            raise Spent
        points = list(dict.fromkeys(program.point for program in shown))
        tried = (self._factors.baseline, *self._service.tried)
        ask = Ask(
            operator or self._operator(call, points),
            number,
            call,
            known=tuple(map(self._trajectory, tried)),
            parents=tuple(map(self._trajectory, points)),
        )
        found = self._mutator.propose(ask, self._factors.point)
        return [self.program(proposal.point) for proposal in found]

    def program(self, point: Point) -> Program:
        """Return the implementation of a point that works, or else one that was not tried."""
        return Program(point, 1 + self._service.failures[point])

    def _operator(self, call: int, points: Sequence[Point]) -> Operator:
        if not points:
            return "explore"
        if self._service.has_failed(points[0]):
            return "rescue"
        rng = random.Random(derive_seed(self._seed, "operator", call))
        return "combine" if len(points) > 1 and rng.random() < COMBINED else "refine"

    def _trajectory(self, point: Point) -> Trajectory:
        seen = self._service.tried.get(point)
        failed = self._service.has_failed(point)
        state = ExperimentState.FAILED if failed else ExperimentState.SUCCEEDED
        return Trajectory(self._factors.key(point), 0, 0, "", seen.reward if seen else 0.0, state)
