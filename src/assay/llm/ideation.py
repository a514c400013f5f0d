"""What ideators are asked and what they return."""

from dataclasses import dataclass
from typing import Literal, Protocol

from assay.llm.interface import OnTry
from assay.llm.offline.knobs import Knob, Recipe

Operator = Literal["seed", "explore", "exploit"]


@dataclass(frozen=True)
class Trajectory:
    """The record of one experiment as an ideator sees it.

    `metric` is None without a valid result; `reward` is 0 then. `failure` says what went wrong.
    """

    id: str
    epoch: int
    position: int
    idea_text: str
    reward: float
    state: str
    metric: float | None = None
    diff: str = ""
    failure: str = ""


@dataclass(frozen=True)
class IdeationRequest:
    """Ask for `count` ideas with one operator of the search (paper §4.1, algorithm 1).

    `positives` are the trajectories that beat the baseline; exploit builds on them. `seed` comes
    from `assay.domain.hashing.derive_seed`, so that an epoch that is asked for again gets the
    same answer offline.
    """

    operator: Operator
    count: int
    environment_title: str
    problem: str
    metric_name: str
    files: dict[str, str]
    seed: int
    protected: tuple[str, ...] = ()
    budget: str = ""
    knobs: tuple[Knob, ...] = ()
    recipes: tuple[Recipe, ...] = ()
    trajectories: tuple[Trajectory, ...] = ()
    positives: tuple[Trajectory, ...] = ()


@dataclass(frozen=True)
class ProposedIdea:
    """An idea, `[Experiment] … [Code Changes] … [End]`; `parents` are ids of trajectories."""

    text: str
    operator: Operator
    parents: tuple[str, ...] = ()
    thinking: str = ""


class Ideator(Protocol):
    """Proposes ideas."""

    @property
    def name(self) -> str: ...

    @property
    def prompt_version(self) -> str:
        """Changes when the same request would be asked in other words."""
        ...

    async def propose(
        self, request: IdeationRequest, *, on_try: OnTry | None = None
    ) -> list[ProposedIdea]:
        """At most `request.count` ideas, fewer where no more are to be had. Raises ModelError."""
        ...

    async def aclose(self) -> None: ...
