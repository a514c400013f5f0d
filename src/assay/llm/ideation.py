"""What ideators are asked and what they return."""

from dataclasses import dataclass
from typing import Literal, Protocol

from assay.llm.interface import Completion, Prompt, Stop, Try
from assay.llm.offline.knobs import Knob, Recipe

#: What an ideator is asked for. `seed`, `exploit` and `explore` are those of the paper (§4.1).
Operator = Literal["seed", "explore", "exploit", "refine", "combine", "ablate", "rescue"]

#: Those whose ideas build on `IdeationRequest.parents`.
BUILDING: frozenset[Operator] = frozenset({"exploit", "refine", "combine", "ablate", "rescue"})


@dataclass(frozen=True)
class Baseline:
    """What the unmodified codebase reaches: mean and standard deviation over `seeds` seeds."""

    mean: float
    spread: float | None
    seeds: int


@dataclass(frozen=True)
class Standing:
    """A result beside its baseline. `verdict` is a word of `assay.domain.verdicts.Verdict`.

    `effect` is by how much the metric improves, positive in either direction, and
    `standard_error` that of the effect; None where nothing tells them. `mismatch` names the facts
    in which a result that is not comparable differs.
    """

    verdict: str
    baseline: Baseline
    effect: float | None = None
    standard_error: float | None = None
    mismatch: tuple[str, ...] = ()


@dataclass(frozen=True)
class CurveEnd:
    """The last points of what a codebase wrote about its training: a claim, never a result."""

    name: str
    points: tuple[tuple[float, float], ...]  # step, value


@dataclass(frozen=True)
class Trajectory:
    """The record of one experiment as an ideator sees it.

    `metric` is None without a valid result; `reward` is 0 then. `failure` says what went wrong.
    `seconds` is the wall clock of training and evaluation. `codebase` is the hash of the code that
    was measured. `source` says whose it is, empty for the search that asks; `elsewhere` says why
    its numbers cannot be compared with those of that search, empty if they can. `retries` is the
    failed experiment that it measures again, if it does. In the state `submitted` it is an idea
    whose result is not told.
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
    operator: str = ""
    parents: tuple[str, ...] = ()
    seeds: int = 0
    seconds: float | None = None
    standing: Standing | None = None
    curve: CurveEnd | None = None
    codebase: str | None = None
    source: str = ""
    elsewhere: str = ""
    retries: str = ""


@dataclass(frozen=True)
class IdeationRequest:
    """Ask for `count` ideas with one operator of the search (paper §4.1, algorithm 1).

    `trajectories` are all that is known, oldest first, the same for every question of an epoch.
    `parents` are those to build on: what beat the baseline if the operator is `exploit`, what
    failed if it is `rescue`, what is promising if it is another of `BUILDING`, none if the ideas
    are to be new. `seed` comes from
    `assay.domain.hashing.derive_seed`, so that an epoch that is asked for again gets the same
    answer offline. `sample_seed` is the same in all epochs: where not all trajectories fit into a
    prompt, it decides which do. `metric_goal` says which way the metric improves.
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
    parents: tuple[Trajectory, ...] = ()
    metric_goal: str = ""
    profile: str = ""
    profile_notes: str = ""
    rules: str = ""
    baseline: Baseline | None = None
    sample_seed: int = 0


@dataclass(frozen=True)
class ProposedIdea:
    """An idea, `[Experiment] … [Code Changes] … [End]`; `parents` are ids of trajectories.

    `thinking` is what the model said about this idea alone. What it thought in private before it
    answered is part of the answer; `CallRecord.on_try` reports it.
    """

    text: str
    operator: Operator
    parents: tuple[str, ...] = ()
    thinking: str = ""


class UnreadableAnswer(Exception):
    """A model answered, and no idea could be read: not from its repair either, if there was one.

    `stop` is how its last answer ended.
    """

    def __init__(self, name: str, stop: Stop) -> None:
        why = {
            "end": "no idea could be read from its answer, nor when it was shown the answer and "
            "asked for the form [Experiment] … [Code Changes] … [End]",
            "truncated": "its answers were cut off before an idea was whole",
            "refused": "it declined",
        }
        super().__init__(f"{name}: {why[stop]}")


@dataclass(frozen=True)
class IdeatorCall:
    """One call of a question. `number` is its place in the question, from 0.

    A repair has the number of the call whose answer it repairs. `asked` is how many ideas the
    prompt asks for; `output_tokens` are about those of its answer.
    """

    number: int
    is_repair: bool
    asked: int
    prompt: Prompt
    request_hash: str
    output_tokens: int


class CallRecord(Protocol):
    """Hears of the calls of a question, and knows those that were answered before.

    Calls of one question may be under way at the same time.
    """

    async def answered(self, call: IdeatorCall) -> Completion | None:
        """The answer to the call, if it was made before; then it is not made again."""
        ...

    async def on_try(self, call: IdeatorCall, attempt: Try) -> None:
        """Hear of a try: see `Try`. An exception stops the call."""
        ...


class Ideator(Protocol):
    """Proposes ideas."""

    @property
    def name(self) -> str: ...

    @property
    def prompt_version(self) -> str:
        """Changes when the same request would be asked in other words."""
        ...

    async def propose(
        self, request: IdeationRequest, *, record: CallRecord | None = None
    ) -> list[ProposedIdea]:
        """At most `request.count` ideas, fewer where no more are to be had.

        Raises ModelError, whatever `record` raises, and UnreadableAnswer if there are answers and
        no idea in them.
        """
        ...

    async def aclose(self) -> None: ...
