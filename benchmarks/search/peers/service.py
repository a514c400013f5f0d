"""A service for `assay.adapters` that measures programs in a world, paid by a `Lab`.

It takes the place of `assay.client.Client` and answers the calls of an `Evaluator` at once, with
the bodies of the API. Nothing of the adapter is bypassed; what is missing is what the real service
does with a codebase: storing, running and isolating it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, cast

from assay.client import Client
from assay.contracts.base import FailureBody
from assay.contracts.batch import BatchRequest, ComparisonBody, ExperimentBody, IdeaBody
from assay.contracts.environment import EnvironmentBody
from assay.domain.hashing import tree_hash
from assay.domain.states import ExperimentState
from benchmarks.search.lab import CONFIRMED, Lab, Outcome, OverBudget
from benchmarks.search.peers.program import FILE, Program, Programs
from benchmarks.search.points import Point
from benchmarks.search.worlds import Draw, Seen, World

METRIC, PROFILE = "loss", "tiny"
_NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Spent(BaseException):
    """The budget is spent. Not an Exception, because optimizers catch those and continue."""


@dataclass(frozen=True)
class _Stored:
    id: str


@dataclass(frozen=True)
class _Codebase:
    files: Mapping[str, str]


class LabService:
    """Environments, batches and experiments of one search.

    Attributes:
        programs: How points are written.
        tried: Points that were measured or failed, in this order, without the baseline.
        failures: How often each point has failed.
    """

    def __init__(self, world: World, budget: float, seed: int) -> None:
        self.world = world
        self.draw = Draw(world, seed)
        self.programs = Programs(world.factors)
        self.tried: dict[Point, Seen | None] = {}
        self.failures: Counter[Point] = Counter()
        self._lab = Lab(self.draw, budget)
        self._uploaded: dict[str, str] = {}
        self._batches: list[list[ExperimentBody]] = []

    @property
    def client(self) -> Client:
        """The client to give to an evaluator."""
        return cast(Client, _Client(self))

    def has_failed(self, point: Point) -> bool:
        """Return whether a point was tried, and no implementation of it works."""
        return self.failures[point] > 0 and self.tried[point] is None

    def finish(self) -> Outcome:
        """Confirm the best three points that look better than the baseline, as arms do."""
        better = {
            point: seen.standing.effect
            for point, seen in self.tried.items()
            if seen is not None and seen.standing.effect is not None and seen.standing.effect > 0
        }
        return self._lab.finish(sorted(better, key=lambda point: -better[point])[:CONFIRMED])

    # -- what a client is asked for ---------------------------------------------------------

    def environment(self) -> EnvironmentBody:
        """Return the environment that evaluators measure in."""
        start = self.start_files()
        return EnvironmentBody(
            id=f"{self.world.name}@0",
            name=self.world.name,
            title="Settings of a training",
            problem=f"Find the settings with the best {METRIC}.",
            metric=METRIC,
            unit="",
            direction=self.world.direction,
            reward=self.world.reward,
            protected=[],
            profiles=[],
            codebase=_hash(start),
        )

    def start_files(self) -> dict[str, str]:
        """Return the baseline's codebase."""
        return {FILE: self.programs.text(Program(self.world.factors.baseline))}

    def upload(self, files: Mapping[str, str]) -> None:
        """Store a codebase under its hash."""
        self._uploaded[_hash(files)] = files[FILE]

    def submit(self, request: BatchRequest) -> str:
        """Measure the codebases of a batch, and return its id.

        Raises:
            Spent: one of them cannot be paid.
        """
        batch = f"bat_{len(self._batches)}"
        self._batches.append(
            [
                self._experiment(batch, position, idea.text, idea.codebase or "")
                for position, idea in enumerate(request.ideas)
            ]
        )
        return batch

    def experiments(self, batch: str) -> list[ExperimentBody]:
        """Return the experiments of a batch."""
        return self._batches[int(batch.removeprefix("bat_"))]

    def _experiment(self, batch: str, position: int, text: str, codebase: str) -> ExperimentBody:
        found = self.programs.read(self._uploaded[codebase])
        seen, cost = self._measure(found[0].point) if found else (None, 0.0)
        why = "RuntimeError: the idea does not work" if found else "SyntaxError: no settings"
        state = ExperimentState.FAILED if seen is None else ExperimentState.SUCCEEDED
        id_ = f"exp_{batch}_{position}"
        return ExperimentBody(
            id=id_,
            batch=batch,
            position=position,
            idea=IdeaBody(
                id=id_, text=text, client_key=None, operator="", parents=[], confirms=None,
                retries=None, codebase=codebase, reproduces=None,
            ),
            state=state,
            is_terminal=True,
            failure=FailureBody(stage="train", code="crashed", message=why) if not seen else None,
            implementation=id_,
            codebase=codebase,
            measurements=[id_],
            metric_name=METRIC,
            metric=seen.metric if seen else None,
            reward=seen.reward if seen else 0.0,
            comparison=_comparison(seen) if seen else None,
            seconds=cost,
            created_at=_NOW,
            finished_at=_NOW,
        )  # fmt: skip

    def _measure(self, point: Point) -> tuple[Seen | None, float]:
        """Return what a point gives on seed 0 and what it cost; the baseline is free for all."""
        if point == self.world.factors.baseline:
            return self.draw.seen(point, 1), 0.0
        try:
            job = self._lab.start(point)
        except OverBudget:
            raise Spent from None
        seen = None if job.failed else self.draw.seen(point, job.seeds)
        self.tried[point] = seen
        self.failures[point] += job.failed
        return seen, job.cost


class _Client:
    """The calls of `assay.client.Client` that an evaluator makes."""

    def __init__(self, service: LabService) -> None:
        self.environments = _Environments(service)
        self.batches = _Batches(service)
        self.experiments = _Experiments(service)

    def close(self) -> None:
        pass


class _Environments:
    def __init__(self, service: LabService) -> None:
        self._service = service

    def get(self, _: str) -> EnvironmentBody:
        return self._service.environment()

    def codebase(self, _: str, *, base: str | None = None) -> _Codebase:
        return _Codebase(self._service.start_files())

    def upload(self, _: str, files: Mapping[str, str]) -> None:
        self._service.upload(files)


class _Batches:
    def __init__(self, service: LabService) -> None:
        self._service = service

    def create(self, request: BatchRequest) -> _Stored:
        return _Stored(self._service.submit(request))

    def wait(self, batch: str, *, timeout: float | None = None) -> None:
        self._service.experiments(batch)


class _Experiments:
    def __init__(self, service: LabService) -> None:
        self._service = service

    def list(self, *, batch: str) -> list[ExperimentBody]:
        return self._service.experiments(batch)

    def diff(self, _: str) -> str:
        return ""

    def curves(self, _: str, **__: Any) -> tuple[()]:
        return ()


def _comparison(seen: Seen) -> ComparisonBody:
    standing = seen.standing
    assert standing.effect is not None
    return ComparisonBody(
        baseline_mean=standing.baseline.mean,
        baseline_spread=standing.baseline.spread,
        baseline_n=standing.baseline.seeds,
        n=1,
        effect=standing.effect,
        standard_error=standing.standard_error,
        sigmas=None,
        degrees_of_freedom=None,
        low=None,
        high=None,
        p=None,
        posterior=None,
        p_improves=None,
        verdict=standing.verdict,
    )


def _hash(files: Mapping[str, str]) -> str:
    return tree_hash({name: text.encode() for name, text in files.items()})
