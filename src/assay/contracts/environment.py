"""The environment manifest (`environment.toml`) and the environment as the API shows it."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from assay.contracts.base import (
    FailureBody,
    JsonObject,
    Message,
    Name,
    Named,
    Number,
    Resource,
    Text,
)
from assay.domain.failure_codes import MOST_DECLARED, why_not_declarable
from assay.domain.metrics import Direction, Judged, RewardKind
from assay.domain.rounding import DEFAULT_BITS
from assay.domain.states import MeasurementKind

#: A file of a codebase, or a pattern of files.
FileName = Annotated[Text, Field(min_length=1, max_length=1_000)]
#: A piece of code, or a statement for people.
Passage = Annotated[Text, Field(max_length=256 << 10)]
#: What a failure means and what to do, in one sentence or two.
Meaning = Annotated[Text, Field(min_length=1, max_length=500)]
Argument = Annotated[Text, Field(max_length=4_000)]
#: A year: more than any budget, and little enough to add to a date.
Seconds = Annotated[float, Field(gt=0, le=366 * 86_400, allow_inf_nan=False)]
#: How many times as much as the baseline.
Multiple = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]
Gigabytes = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]
_MAX_COUNT = 2**53


def _is_none(value: object) -> bool:
    return value is None


class Manifest(BaseModel):
    """Base of everything read from `environment.toml`: unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class MetricSpec(Manifest):
    """What is measured, which way it improves, and the reward it becomes."""

    name: Name
    unit: Annotated[Text, Field(max_length=64)] = ""
    direction: Direction
    reward: RewardKind = RewardKind.IDENTITY
    judged: Judged = Field(
        Judged.METHOD,
        description="`method`: the mean over seeds counts, and verdicts allow for their spread. "
        "`artifact`: what was found is verified exactly, and the best seed counts.",
    )
    bound: Number | None = Field(
        None, description="A result better than this is implausible and does not count."
    )
    confirmed: Name | None = Field(
        None,
        description="Another number that `evaluate` returns in a confirmation: the metric on the "
        "split `sealed/`. Without it, they are scored on `sealed/` in place of `search/`.",
    )

    def deciding(self, kind: MeasurementKind) -> str:
        """The name of the number that is the metric of a measurement of this kind."""
        is_confirmed = kind is MeasurementKind.CONFIRM and self.confirmed is not None
        return self.confirmed if is_confirmed and self.confirmed else self.name


class CodebaseSpec(Manifest):
    """Which files of `codebase/` no diff may touch (globs)."""

    protected: tuple[FileName, ...] = Field((), max_length=1_000)


class EntryPoints(Manifest):
    """Commands inside the sandbox; `python` means the worker's interpreter."""

    train: tuple[Argument, ...] = Field(min_length=1, max_length=256)
    predict: tuple[Argument, ...] | None = Field(None, max_length=256)


class Budget(Manifest):
    """What a measurement may use. `seconds` is wall clock, measured by the worker."""

    seconds: Seconds
    evaluation_seconds: Seconds = 60
    cpu_seconds: Annotated[float, Field(gt=0, le=1e12, allow_inf_nan=False)] | None = Field(
        None, description="CPU time of training, if capped."
    )
    tokens: int | None = Field(None, gt=0, le=_MAX_COUNT)
    steps: int | None = Field(None, gt=0, le=_MAX_COUNT)
    # A process that knows no such keys refuses them, so they are stored only where given.
    warm_up_seconds: Seconds | None = Field(
        None,
        exclude_if=_is_none,
        description="How long the code may compile before it asks for its data; `seconds` count "
        "from there.",
    )
    compute: Multiple | None = Field(
        None,
        exclude_if=_is_none,
        description="CPU time of training at most, as a multiple of the baseline's on that host.",
    )
    evaluation_compute: Multiple | None = Field(
        None,
        exclude_if=_is_none,
        description="CPU time of the predictors at most, as a multiple of the baseline's.",
    )
    artifact: Multiple | None = Field(
        None,
        exclude_if=_is_none,
        description="Bytes of the artifact at most, as a multiple of the baseline's.",
    )

    @property
    def training_seconds(self) -> float:
        """What training may take with its warm-up; GPUs are held, and paid for, as long."""
        return self.seconds + (self.warm_up_seconds or 0.0)

    @property
    def is_relative(self) -> bool:
        """Whether any cap is a multiple of what the baseline uses."""
        return any(
            cap is not None for cap in (self.compute, self.evaluation_compute, self.artifact)
        )


#: What is stored of an artifact whose profile does not say, in GiB.
ARTIFACT_GB = 0.25


class SmokeSize(Manifest):
    """What a profile is cut to for a smoke: its own classes and data, made small."""

    cpus: int | None = Field(
        None, ge=1, le=1 << 20, description="By default those of the profile."
    )
    gpus: int | None = Field(None, ge=0, le=1 << 20, description="By default 1, or none.")
    memory_gb: Gigabytes | None = Field(None, description="By default that of the profile.")
    seconds: Seconds = Field(
        90, description="A training that is still alive after so much wall clock has passed."
    )
    config: JsonObject = {}  # laid over the profile's, key by key


#: A wall clock limit of a profile without GPUs may be exceeded by so many times itself, while the
#: host keeps the program waiting for a processor. What such a profile may use is tokens, steps or
#: processor time; its wall clock is for what hangs. On GPUs, wall clock is the budget.
PATIENCE = 4.0


#: Processes and threads of an attempt under a profile that states none: so many at all; for each
#: of its GPUs, a rank with the threads of CUDA, NCCL and its compiler; for each of its processors,
#: a compiler's process or a loader's.
PROCESSES, PROCESSES_PER_GPU, PROCESSES_PER_CPU = 256, 512, 32


class Profile(Manifest):
    """A size at which an environment runs."""

    description: Message = ""
    cpus: int = Field(1, ge=1, le=1 << 20)
    gpus: int = Field(0, ge=0, le=1 << 20)
    memory_gb: Gigabytes = 2.0
    disk_gb: Gigabytes = Field(0.5, description="What training may write; also its artifact.")
    # Stored only where given: a process of an older version refuses keys that it does not know.
    artifact_gb: Gigabytes | None = Field(
        None,
        exclude_if=_is_none,
        description=f"Larger artifacts are scored and not stored; {ARTIFACT_GB} by default.",
    )
    bound: Number | None = Field(
        None, exclude_if=_is_none, description="In place of `bound` of the metric."
    )
    processes: int | None = Field(
        None,
        ge=1,
        le=1 << 20,
        exclude_if=_is_none,
        description="Processes and threads of an attempt at most; see `most_processes`.",
    )
    budget: Budget
    config: JsonObject = {}
    smoke: SmokeSize | None = Field(None, exclude_if=_is_none)

    @model_validator(mode="after")
    def _compute_without_gpus(self) -> Profile:
        if self.gpus and self.budget.is_relative:
            raise ValueError(
                "budget: compute, evaluation_compute and artifact are for profiles with gpus = 0; "
                "a profile with GPUs is held to its wall clock: remove them"
            )
        return self

    @model_validator(mode="after")
    def _smoke_is_smaller(self) -> Profile:
        if self.smoke is None:
            return self
        given = self.smoke.model_dump(include=self.smoke.model_fields_set - {"config"})
        for name, asked in given.items():
            most = self.budget.seconds if name == "seconds" else getattr(self, name)
            if asked is not None and asked > most:
                raise ValueError(
                    f"smoke.{name}: {asked:g} is more than the {most:g} of the profile; lower it"
                )
        return self

    @model_validator(mode="after")
    def _warms_up_on_gpus(self) -> Profile:
        if self.budget.warm_up_seconds is not None and not self.gpus:
            raise ValueError(
                "budget.warm_up_seconds is for profiles with gpus of at least 1: without GPUs, "
                "compilation is part of what a training uses: remove it"
            )
        return self

    @property
    def most_processes(self) -> int:
        """Processes and threads that an attempt may have at once."""
        if self.processes is not None:
            return self.processes
        if not self.gpus:
            return PROCESSES
        return PROCESSES + PROCESSES_PER_GPU * self.gpus + PROCESSES_PER_CPU * self.cpus

    @property
    def threads(self) -> int:
        """Threads for each process of a training: with several GPUs there is one for each GPU."""
        return max(1, self.cpus // max(1, self.gpus))

    @property
    def patience(self) -> float:
        """How often a wall clock limit may pass once more while the host is busy."""
        return 0.0 if self.gpus else PATIENCE

    @property
    def memory_bytes(self) -> int:
        return int(self.memory_gb * (1 << 30))

    @property
    def disk_bytes(self) -> int:
        return int(self.disk_gb * (1 << 30))

    @property
    def artifact_bytes(self) -> int:
        return int((self.artifact_gb or ARTIFACT_GB) * (1 << 30))

    @property
    def in_words(self) -> str:
        """What an experiment of this profile has and may use, as models and people are told."""
        budget = self.budget
        gpus = f"{self.gpus} GPU{'' if self.gpus == 1 else 's'}" if self.gpus else "no GPU"
        cores = "1 CPU core" if self.cpus == 1 else f"{self.cpus} CPU cores"
        parts = [f"{cores}, {gpus} and {self.memory_gb:g} GB of memory"]
        if budget.tokens is not None:
            parts.append(f"{budget.tokens:,} training tokens, each counted as often as it is read")
        if budget.steps is not None:
            parts.append(f"{budget.steps:,} steps of training")
        caps = {
            "the CPU time of training": budget.compute,
            "the CPU time of the evaluation": budget.evaluation_compute,
            "the size of what training leaves": budget.artifact,
        }
        parts += [
            f"at most {multiple:g} times the baseline for {what}"
            for what, multiple in caps.items()
            if multiple is not None
        ]
        if self.gpus:
            parts.append(f"{budget.seconds:g} s of wall clock for training, so speed counts")
        else:
            limits = f"{budget.seconds:g} s of wall clock"
            if budget.cpu_seconds is not None:
                limits += f" and {budget.cpu_seconds:g} s of CPU time"
            parts.append(f"training is ended after {limits}")
        if budget.warm_up_seconds is not None:
            parts.append(
                f"before that, at most {budget.warm_up_seconds:g} s to compile, without data"
            )
        return "; ".join(parts)

    def cut(self) -> Profile:
        """Return the profile at the size of its own smoke; itself if it declares none.

        A smoke is not evaluated. What bounds it from claim to end counts the seconds of an
        evaluation twice, and here they stand for preparing the data on a host that has none: as
        long as a measurement of the profile would have for that.
        """
        smoke = self.smoke
        if smoke is None:
            return self
        budget = self.budget
        changes = {
            "seconds": min(budget.seconds, smoke.seconds),
            "evaluation_seconds": budget.evaluation_seconds + budget.training_seconds / 2,
            # Its data is there from the start: it shows that steps are taken, not how fast.
            "warm_up_seconds": None,
        }
        return self.model_copy(
            update={
                "cpus": smoke.cpus or self.cpus,
                "gpus": min(self.gpus, 1) if smoke.gpus is None else smoke.gpus,
                "memory_gb": smoke.memory_gb or self.memory_gb,
                "artifact_gb": None,  # nothing is stored
                "budget": budget.model_copy(update=changes),
                "config": self.config | smoke.config,
            }
        )


#: A smoke is not evaluated. In the bound from claim to end, which counts these seconds twice, they
#: stand for preparing the data on a host that has none.
_PREPARING_SECONDS = 30.0


class SmokeSpec(Manifest):
    """How a codebase shows that it starts, before a budget is spent on it."""

    profile: Name | None = Field(
        None,
        description="What profiles without a smoke of their own are smoked under: one without "
        "GPUs; by default `tiny`, else the one of the smallest budget.",
    )
    seconds: Seconds = Field(
        20, description="A training that is still alive after so much wall clock has passed."
    )

    def cut(self, profile: Profile) -> Profile:
        """The profile with as much of its budget as a smoke may take."""
        budget = profile.budget
        changes = {
            "seconds": min(budget.seconds, self.seconds),
            "evaluation_seconds": _PREPARING_SECONDS,
            "warm_up_seconds": None,
        }
        return profile.model_copy(update={"budget": budget.model_copy(update=changes)})


class KnobSpec(Manifest):
    """A single-line edit with alternatives, for the `offline:` ideator."""

    name: Name
    title: Message = ""
    file: FileName
    line: Passage
    values: tuple[Passage, ...] = Field(min_length=1, max_length=1_000)


class RecipeEdit(Manifest):
    """Replace a text that stands exactly once in a file."""

    file: FileName
    search: Passage
    replace: Passage


class RecipeSpec(Manifest):
    """A multi-line edit, for the `offline:` ideator."""

    name: Name
    title: Message
    kind: Literal["edit", "misfit", "crash", "control"] = "edit"
    edits: tuple[RecipeEdit, ...] = Field(min_length=1, max_length=1_000)


class EnvironmentManifest(Manifest):
    """`environment.toml`: a research problem."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_]{0,62}$", max_length=63)
    title: Message
    problem: Passage
    metric: MetricSpec
    # A process that knows no such key refuses it, so it is stored only where it says something.
    vendored: tuple[FileName, ...] = Field(
        (),
        max_length=100,
        exclude_if=lambda names: not names,
        description="Files that Assay adds to the folder, by their path in it. Protected.",
    )
    packages: tuple[Name, ...] = Field(
        (),
        max_length=100,
        exclude_if=lambda names: not names,
        description="Python packages whose version decides results, as that of torch does: those "
        "of workers with other versions are not compared.",
    )
    codebase: CodebaseSpec = CodebaseSpec()
    entry_points: EntryPoints
    profiles: Annotated[dict[Name, Profile], Named(1_000)]
    # The same holds for these keys.
    smoke: SmokeSpec = Field(SmokeSpec(), exclude_if=lambda smoke: smoke == SmokeSpec())
    held_out_bits: int = Field(
        DEFAULT_BITS,
        gt=0,
        le=_MAX_COUNT,
        exclude_if=lambda bits: bits == DEFAULT_BITS,
        description="Bits that results may show about a held-out split before it counts as worn.",
    )
    failures: Annotated[
        dict[Annotated[str, Field(max_length=64)], Meaning], Named(MOST_DECLARED)
    ] = Field(
        {},
        exclude_if=lambda failures: not failures,
        description="Codes of its own that the evaluator rejects with, and what each means.",
    )
    knobs: tuple[KnobSpec, ...] = Field((), max_length=1_000)
    recipes: tuple[RecipeSpec, ...] = Field((), max_length=1_000)

    @field_validator("failures")
    @classmethod
    def _declares_new_codes(cls, failures: dict[str, str]) -> dict[str, str]:
        for code in failures:
            if why_not := why_not_declarable(code):
                raise ValueError(why_not)
        return failures

    @model_validator(mode="after")
    def _has_a_profile(self) -> EnvironmentManifest:
        if not self.profiles:
            raise ValueError("profiles: at least one is needed; add a [profiles.tiny] table")
        return self

    @model_validator(mode="after")
    def _smokes_without_gpus(self) -> EnvironmentManifest:
        named, usable = self.smoke.profile, self._without_gpus()
        if named is not None and named not in usable:
            known = ", ".join(sorted(usable)) or "none"
            raise ValueError(
                f"smoke.profile: {named!r} is no profile with gpus = 0; those are: {known}"
            )
        return self

    def smoke_profile(self, profile: str) -> tuple[str, Profile] | None:
        """Return what codebases for a profile are smoked under, cut to that; None if nothing is.

        It is the profile itself if it declares a smoke, else one without GPUs.
        """
        usable = self._without_gpus()
        smallest = min(usable, key=lambda name: usable[name].budget.seconds, default=None)
        other = self.smoke.profile or ("tiny" if "tiny" in usable else smallest)
        name = other if self.profiles[profile].smoke is None else profile
        return None if name is None else (name, self.cut_to_smoke(name))

    def cut_to_smoke(self, profile: str) -> Profile:
        """Return a profile with as much of its size and budget as a smoke under it has."""
        whole = self.profiles[profile]
        return self.smoke.cut(whole) if whole.smoke is None else whole.cut()

    def _without_gpus(self) -> dict[str, Profile]:
        return {name: profile for name, profile in self.profiles.items() if profile.gpus == 0}


class BaselineBody(Resource):
    """The unmodified codebase, measured: the yardstick of an environment and profile."""

    object: Literal["baseline"] = "baseline"
    environment: str
    profile: str
    hardware_class: str
    conditions: str | None = Field(None, description="Null if none were recorded.")
    facts: dict[str, str] = Field({}, description="Those that decide the conditions, if recorded.")
    metric: str
    mean: float | None = None
    spread: float | None = Field(None, description="Sample standard deviation over seeds.")
    seeds: list[int] = []
    values: list[float] = []
    kind: str = Field("score", description="Of its measurements.")
    measurements: list[str] = Field([], description="The one of each of `seeds`, in their order.")
    pending: int = Field(0, description="Number of seeds that are still to be measured.")
    pending_seeds: list[int] = []
    failed: int = Field(0, description="Number of seeds that failed; `again` repeats them.")
    failures: list[BaselineFailure] = []


class BaselineFailure(Resource):
    """A seed on which the unmodified codebase failed."""

    seed: int
    measurement: str = Field(description="Its log is at `/v1/measurements/{id}/logs`.")
    failure: FailureBody | None


class PriorBody(Resource):
    """What verdicts presume of an environment's codebases; docs/verdicts.md explains it."""

    object: Literal["verdict_fit"] = "verdict_fit"
    id: str | None = Field(description="The stored fit; null for the default.")
    number: int = Field(description="Fits are counted from 1; 0 for the default.")
    created_at: datetime | None
    codebases: int = Field(description="How many codebases the fit rests on; 0 for the default.")
    df: float = Field(description="Degrees of freedom that the prior variance is worth.")
    variance: float = Field(description="Prior variance, as a multiple of the baseline's.")
    slope: float = Field(description="Expected share of the baseline's luck on a seed.")
    slope_seeds: float = Field(description="Weight of the slope, in seeds.")
    effect: float = Field(description="Typical size of effects, in baseline spreads.")


class ProfileBody(Resource):
    """A profile as the API shows it."""

    name: str
    description: str
    cpus: int
    gpus: int
    memory_gb: float
    budget: dict[str, Any]
    baseline_seeds: int = Field(
        description="Seeds its baseline is measured on, unless a request names a number."
    )
    in_words: str = Field(
        "", description="Hardware and budget, as models that propose and implement ideas read it."
    )
    notes: str = Field("", description="What the profile means in the code; empty if not said.")


class SplitBody(Resource):
    """A held-out split, and how much of it results have given away."""

    name: str = Field(description="`search` scores ideas, `sealed` confirms the best of them.")
    bits_shown: int = Field(
        description="What all results so far have shown about it, counted once per measurement."
    )
    bits_budget: int = Field(description="`held_out_bits` of the manifest.")
    worn: bool = Field(
        description="Results have shown more than the budget, or the gap to what confirmations "
        "find grows: ideas may have adapted to the split, so confirm the best of them."
    )
    gap_grows: bool = Field(
        False,
        description="Results improve ever more on this split than in their confirmations.",
    )


class EnvironmentBody(Resource):
    """An environment as the API shows it."""

    object: Literal["environment"] = "environment"
    id: str = Field(description="`name@hash`: the hash covers everything but prose and baselines.")
    name: str
    title: str
    problem: str
    metric: str
    unit: str
    direction: Direction
    reward: RewardKind
    protected: list[str]
    profiles: list[ProfileBody]
    failures: dict[str, str] = Field(
        {}, description="Codes of stage `score` that the environment declares, with their meaning."
    )
    knobs: list[KnobSpec] = []
    recipes: list[RecipeSpec] = []
    codebase: str = Field(description="Hash of the baseline codebase.")
    rules: str = Field("", description="Its own rules for who changes the codebase.")
    splits: list[SplitBody] = Field([], description="The held-out splits that evaluators read.")


class CodebaseFiles(Resource):
    """The text files of a codebase."""

    object: Literal["codebase"] = "codebase"
    id: str = Field(description="The SHA-256 of its names and contents.")
    environment: str
    files: dict[str, str]
