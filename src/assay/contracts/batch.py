"""Batches, ideas, experiments: requests and resources."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from assay.contracts.base import (
    READ_INTEGER,
    Dollars,
    FailureBody,
    GpuHours,
    Integer,
    Items,
    Metadata,
    Name,
    Request,
    Resource,
    Seed,
    Sha256,
    ShortName,
    Text,
)
from assay.contracts.caps import CapBody

BaselineSeeds = Annotated[int, Field(ge=0, le=64), READ_INTEGER]
#: Seeds of a batch, at most.
MAX_SEEDS = 64
MAX_IDEA_BYTES = 64 * 1024
MAX_IDEAS = 10_000
#: Distinct bases of a batch, at most: each is measured on all seeds of the baseline, which are 20
#: of a profile without GPUs.
MAX_BASES = 32
#: Characters of what a model thought before it wrote an idea.
MAX_THINKING = 512 << 10

#: How an idea came about. `remeasure` is the code of an earlier experiment, on more seeds.
Operator = Literal[
    "seed", "exploit", "explore", "refine", "combine", "ablate", "rescue", "remeasure"
]
Sampling = Literal["staged", "paper"]
Preflight = Literal["off", "compile", "smoke"]
Novelty = Literal["allow", "warn", "skip"]
Effort = Literal["low", "medium", "high"]
#: Bounds of what a model can be told; each is left to the provider where it is null.
MaxTokens = Annotated[int, Field(ge=256, le=1_000_000), READ_INTEGER]
Temperature = Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)]


class IdeaRequest(Request):
    """A natural-language proposal."""

    text: Text = Field(
        min_length=1,
        max_length=MAX_IDEA_BYTES,
        description="The idea; `[Experiment] … [Code Changes] …` is understood. At most "
        f"{MAX_IDEA_BYTES} bytes in UTF-8.",
    )
    client_key: Name | None = Field(
        None, description="The submitter's own name for the idea, unique in the batch."
    )
    operator: Operator = "seed"
    parents: Items[ShortName] = Field(
        [], max_length=64, description="Experiments this idea builds on."
    )
    base: ShortName | None = Field(
        None,
        description="The codebase that this idea changes and is compared with, named as the "
        "`base` of a batch, which it overrides; `baseline` for the environment's own. An "
        "experiment that is named here becomes one of the `parents`.",
    )
    thinking: Annotated[Text, Field(max_length=MAX_THINKING)] | None = Field(
        None, description="Kept beside the idea; never executed."
    )
    confirms: ShortName | None = Field(
        None,
        description="Measure the codebase of this experiment again, on this batch's seeds; the "
        "text is kept and not implemented.",
    )
    codebase: Sha256 | None = Field(
        None,
        description="Measure this codebase as it is; the text is kept and not implemented. The "
        "executor of the batch is `none`.",
    )

    @field_validator("text")
    @classmethod
    def _bounded(cls, text: str) -> str:
        if not text.strip():
            raise ValueError("must not be empty")
        size = len(text.encode())
        if size > MAX_IDEA_BYTES:
            raise ValueError(f"is {size} bytes; an idea holds at most {MAX_IDEA_BYTES}")
        return text


class BatchOptions(Request):
    """How a batch is implemented and measured."""

    samples: Integer = Field(10, ge=1, le=64, description="Diffs asked for per idea, at most.")
    revisions: Integer = Field(2, ge=0, le=10, description="Self-revisions per sample.")
    sampling: Sampling = Field(
        "staged", description="`staged` widens as needed; `paper` starts all samples at once."
    )
    preflight: Preflight = Field(
        "compile",
        description="What a codebase must pass before it is measured; `smoke` also starts it, "
        "for seconds, on a worker without GPUs.",
    )
    repairs: Integer = Field(
        1,
        ge=0,
        le=3,
        description="How often a codebase that crashes early in training is sent back to its "
        "model with the traceback.",
    )
    temperature: Temperature | None = Field(
        None, description="Of the executor; null is not sent. Some models take none."
    )
    max_tokens: MaxTokens | None = Field(
        None,
        description="Of an answer of the executor with its thinking; by default the service's.",
    )
    effort: Effort | None = Field(
        None, description="How hard the executor thinks; null is not sent."
    )
    seeds: Items[Seed] = Field(
        [0], min_length=1, max_length=MAX_SEEDS, description="One measurement per seed and idea."
    )
    baseline_seeds: BaselineSeeds | None = Field(
        None,
        description="The baseline is measured, once, on this many seeds from 0 and on those of "
        "the ideas, and compared on these alone. If null, on 20 without GPUs and on 3 with them. "
        "If 0, there is no baseline.",
    )
    max_cost_usd: Dollars | None = Field(
        None, description="No new model call starts once this is spent."
    )
    max_gpu_hours: GpuHours | None = Field(
        None,
        description="No new measurement is asked for beyond this; a running one counts "
        "with its budget.",
    )
    novelty: Novelty = Field(
        "warn",
        description="What becomes of an idea in nearly the words of an earlier one: nothing, a "
        "note, or it is not implemented.",
    )
    novelty_threshold: float = Field(
        0.8, gt=0, le=1, description="Jaccard similarity of words from which ideas are alike."
    )
    priority: Integer = Field(0, ge=-100, le=100)
    again: bool = Field(
        False,
        description="Measure codebases again that failed before this batch, instead of sharing "
        "the failure. Results are shared.",
    )
    allow_unisolated: bool = Field(
        False, description="Let model-written code start on a worker without isolation."
    )


class BatchRequest(Request):
    """Ideas submitted together for one environment and profile."""

    environment: Name = Field(description="`name` or `name@hash`.")
    profile: Name
    ideas: Items[IdeaRequest] = Field(min_length=1, max_length=MAX_IDEAS)
    executor: Name = Field(
        "offline:literal",
        description="Who writes the diffs, as `provider:model[@base_url]`; `none` if all ideas "
        "name their codebase.",
    )
    ideator: Name | None = Field(None, description="Who wrote the ideas, if not a person.")
    hardware_class: ShortName | None = Field(
        None, description="What to measure on; by default what the live workers have."
    )
    conditions: ShortName | None = Field(
        None,
        description="Under which conditions to measure (`GET /v1/conditions`); by default those "
        "of most live capacity.",
    )
    base: ShortName | None = Field(
        None,
        description="The codebase that ideas without a `base` of their own change, and are "
        "compared with: a name of `GET /v1/environments/{name}/bases`, an experiment of yours "
        "that has a result, or the hash of a codebase. By default the environment's own "
        "(`baseline`).",
    )
    options: BatchOptions = BatchOptions()
    search: ShortName | None = Field(
        None,
        description="The search that this batch is an epoch of, or whose results it confirms.",
    )
    epoch: Annotated[int, Field(ge=0, le=10_000), READ_INTEGER] | None = None
    metadata: Metadata = {}


class Counts(Resource):
    """Experiments of a batch by state; every key is always there."""

    total: int = 0
    submitted: int = 0
    implementing: int = 0
    queued: int = 0
    running: int = 0
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0


class MeasurementCounts(Resource):
    """Measurements by state. Those that ideas share count once; smokes do not count."""

    total: int = 0
    queued: int = 0
    running: int = 0
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0

    @property
    def ended(self) -> int:
        """Return the number of those that have ended."""
        return self.succeeded + self.failed + self.cancelled


class Funnel(Resource):
    """How far the ideas of a batch came. Execution rate = scored / submitted.

    `applied`: some diff fitted the codebase; `patched`: one passed preflight as well.
    """

    submitted: int = 0
    applied: int = 0
    patched: int = 0
    started: int = 0
    scored: int = 0


class Usage(Resource):
    """What the model calls of a batch or an implementation used: every request counts.

    `input_tokens` holds all input; how much of it was read from the provider's cache, and put
    there, is said beside it.
    """

    calls: int = 0
    under_way: int = 0
    input_tokens: int = 0
    cached_input_tokens: int = 0
    cache_write_tokens: int = 0
    output_tokens: int = 0
    cost_usd: str | None = Field("0", description="Decimal; null when a price is unknown.")
    estimated_usd: str = Field(
        "0", description="What of it was not reported by the provider: calls that were cut off."
    )


class Links(Resource):
    """Where related things are."""

    self: str
    experiments: str
    events: str


class BatchBody(Resource):
    """A batch: the long-running operation. Finished means `finished_at` is not null."""

    object: Literal["batch"] = "batch"
    id: str
    owner: str
    environment: str
    profile: str
    hardware_class: str
    conditions: str | None = Field(
        None, description="What its results have in common; null if none were recorded."
    )
    kind: str = Field(
        "score",
        description="Of its measurements: score, or confirm (fresh seeds, scored on the sealed "
        "split if the environment has one).",
    )
    executor: str
    ideator: str | None
    state: str = Field(description="running, finished or cancelled.")
    counts: Counts
    measurements: MeasurementCounts = Field(
        MeasurementCounts(),
        description="Of its ideas, as far as they were asked for: one per codebase and seed.",
    )
    funnel: Funnel
    usage: Usage
    caps: list[CapBody] = Field([], description="Caps the batch is under, the narrowest first.")
    not_done: int = Field(
        0, description="Ideas that were not implemented or measured because of a cap."
    )
    waits_for: list[str] = Field(
        [],
        description="Why queued measurements are not started: a pause after a fault of the host, "
        "or no worker. Empty if they only wait for others to end.",
    )
    bases: list[MeasuredBaseBody] = Field(
        [],
        description="The codebases that its ideas change, other than the environment's own, in "
        "the order of the ideas.",
    )
    baseline: BaselineSummary | None
    best: BestSummary | None
    options: BatchOptions
    search: str | None
    epoch: int | None
    metadata: dict[str, str]
    created_at: datetime
    finished_at: datetime | None
    links: Links

    @property
    def seeds_to_come(self) -> int:
        """How many seeds of the baseline, and of the bases, are still to come."""
        bases = sum(base.measured.pending for base in self.bases)
        return bases + (self.baseline.pending if self.baseline else 0)


class BaselineSummary(Resource):
    """The baseline a batch is compared with, as far as it is measured."""

    mean: float | None
    spread: float | None
    n: int
    pending: int = Field(description="Seeds still to be measured; until then verdicts may change.")
    failed: int = Field(0, description="Seeds that failed; they are not measured again unasked.")


class BaseBody(Resource):
    """A codebase other than the environment's own that ideas change."""

    name: str | None = Field(
        description="The name or the experiment that it was asked for by; null for a hash. What "
        "is promoted under the name later changes nothing here."
    )
    codebase: str


class MeasuredBaseBody(BaseBody):
    """A base of a batch, as far as it is measured on the seeds of the baseline."""

    measured: BaselineSummary


class BestSummary(Resource):
    """The best result of a batch."""

    experiment: str
    metric: float


class ComparisonBody(Resource):
    """A result against a baseline. Positive effects are improvements in either direction.

    The `comparison` of an idea with a base is with that base: it is what `baseline` means here.
    """

    baseline_mean: float
    baseline_spread: float | None
    baseline_n: int
    n: int = Field(description="Seeds of the result: how often it was tried.")
    effect: float = Field(description="By how much the metric improves; unbiased.")
    standard_error: float | None = Field(
        None, description="Of the effect, the baseline's own included; null if nothing tells it."
    )
    sigmas: float | None = Field(None, description="The effect in standard errors.")
    degrees_of_freedom: float | None = Field(None, description="Null if unknown, or if exact.")
    low: float | None = Field(None, description="Lower end of the 95 % interval of the effect.")
    high: float | None = Field(None, description="Upper end of the 95 % interval of the effect.")
    p: float | None = Field(
        None, description="Two-sided p value of no effect; null where artifacts are judged."
    )
    posterior: float | None = Field(
        None, description="The effect shrunken towards 0: what to expect of further seeds."
    )
    p_improves: float | None = Field(
        None,
        description="Probability that the true effect is an improvement, under the same model.",
    )
    verdict: str = Field(
        description="better, worse, undecided, identical (the same artifact on every seed), "
        "provisional (seeds of the baseline are to come), or not comparable (see `mismatch`)."
    )
    mismatch: list[str] = Field(
        [],
        description="Facts in which the results and the baseline's differ, so that the effect "
        "says nothing.",
    )
    exploratory: bool = Field(
        False,
        description="Some of its seeds had been seen when the others were asked for, so its p "
        "and interval promise too much.",
    )
    prior: str | None = Field(
        None,
        description="The stored fit of what is presumed of the environment's codebases; null for "
        "the default. See `GET /v1/environments/{name}/fit`.",
    )


class SideBody(Resource):
    """One of two codebases that are compared."""

    experiment: str | None = Field(description="Null for one that was named by its hash.")
    codebase: str
    is_baseline: bool = Field(description="It is the unmodified codebase of the environment.")
    hardware_class: str
    conditions: str | None = Field(description="Null if none were recorded.")


class PairBody(Resource):
    """Two codebases on the same seeds. In `comparison`, `b` takes the place of the baseline."""

    object: Literal["pair"] = "pair"
    a: SideBody
    b: SideBody
    environment: str
    profile: str
    metric_name: str
    direction: str
    seeds: list[int] = Field(description="On which both have a result. No other seed counts.")
    comparison: ComparisonBody


class ConfirmRequest(Request):
    """Measure the codebase of an experiment again, on seeds that selected nothing."""

    seeds: Integer = Field(5, ge=1, le=MAX_SEEDS, description="How many fresh seeds.")
    beside: Items[ShortName] = Field(
        [],
        max_length=1_000,
        description="Other experiments to confirm in the same batch. What may be claimed is "
        "decided for all of them together.",
    )
    search: ShortName | None = Field(
        None, description="The search whose results they are; its caps hold."
    )
    base: ShortName | None = Field(
        None,
        description="What to compare them with, as in a batch; by default each with its own "
        "base. With `baseline`, the environment's own codebase.",
    )


class ConfirmationBody(Resource):
    """How a result came out again: on fresh seeds, scored on the sealed split if there is one."""

    experiment: str = Field(description="The one that confirms.")
    batch: str
    state: str
    metric_name: str
    metric: float | None
    comparison: ComparisonBody | None = Field(
        description="Beside the baseline on the same split, or beside `base` if there is one."
    )
    base: BaseBody | None = Field(None, description="What it was compared with, as of an idea.")
    against_baseline: ComparisonBody | None = Field(
        None, description="With a base: beside the environment's own codebase."
    )
    claimed: bool | None = Field(
        description="Whether it may be claimed to be better than that (Holm's procedure "
        "over all that its batch confirms); null until the batch and its baseline are finished."
    )
    gap: float | None = Field(
        description="By how much more the result improved on the split that search sees."
    )
    repeated: int = Field(
        0, description="Later confirmations, on other seeds. The first one decides."
    )


class UsedBody(Resource):
    """What a result used, as multiples of what the baseline uses on the same host.

    The mean over the experiment's seeds; null where it was not measured.
    """

    compute: float | None = Field(None, description="CPU time of training.")
    evaluation_compute: float | None = Field(
        None, description="CPU time of the predictors; two digits at most."
    )
    seconds: float | None = Field(None, description="Wall clock of training.")
    memory: float | None = Field(None, description="Peak memory of training.")
    artifact: float | None = Field(None, description="Bytes that training left.")
    parameters: float | None = Field(
        None, description="Parameters, where codebases state them in their curve: a claim."
    )


class IdeaBody(Resource):
    """An idea as submitted."""

    id: str
    text: str
    client_key: str | None
    operator: str
    parents: list[str]
    confirms: str | None = Field(
        None, description="The experiment whose codebase is measured again."
    )
    retries: str | None = Field(
        None, description="The failed experiment whose codebase is measured again."
    )
    codebase: str | None = Field(
        None, description="The codebase that was submitted in place of a text to implement."
    )
    reproduces: str | None = Field(
        None, description="The experiment whose measurements are repeated."
    )
    similar: list[SimilarBody] = Field(
        [], description="Earlier ideas in nearly the same words, most alike first."
    )

    @property
    def builds_on(self) -> list[str]:
        """Return the parents whose code it changes: not the one that it only measures again."""
        again = (self.confirms, self.retries, self.reproduces)
        return [parent for parent in self.parents if parent not in again]


class SimilarBody(Resource):
    """An earlier idea in nearly the same words."""

    experiment: str
    similarity: float = Field(description="Jaccard similarity of their words.")


class SeedAgreementBody(Resource):
    """A seed that was measured a second time. Numbers are rounded as results are."""

    seed: int
    before: float = Field(description="The metric of the experiment that is reproduced.")
    again: float | None = Field(description="Null without a second result.")
    equal: bool | None = Field(description="Whether the exact numbers are; null without both.")
    failure: str | None = Field(None, description="The code of its failure now.")


class AgreementBody(Resource):
    """Results beside those that they repeat. Exact numbers decide, rounded ones are shown."""

    experiment: str = Field(description="The experiment that is reproduced.")
    agreement: str = Field(
        description="to the digit, within noise, disagrees, or undecided where seeds have no "
        "second result and their code is not to blame."
    )
    agrees: bool | None = Field(description="Null if undecided.")
    difference: float | None = Field(
        None, description="By how much the metric is larger now; the mean over seeds."
    )
    p: float | None = Field(
        None, description="Of a difference as large by chance; null if there is none."
    )
    seeds: list[SeedAgreementBody]


class RepairBody(Resource):
    """A codebase that crashed early in training and was sent back to its model."""

    number: int
    state: str = Field(description="open, repaired or refused.")
    codebase: str
    measurement: str
    failure: FailureBody
    sample: int
    revision: int
    repaired: str | None = Field(description="The codebase that came of it.")


class CallFacts(Resource):
    """What the ledger has of every request to a model. Kinds of tokens do not overlap."""

    id: str = Field(description="Sent to the provider as `X-Client-Request-Id`.")
    number: int = Field(description="Of its call, from 1: failed requests are repeated.")
    model: str
    request_hash: str
    prompt_version: str
    state: str = Field(description="calling, returned, failed, cancelled or interrupted.")
    code: str | None
    message: str | None
    input_tokens: int
    cached_input_tokens: int
    cache_write_tokens: int
    output_tokens: int
    is_estimate: bool = Field(description="Tokens were counted here, not by the provider.")
    is_replay: bool
    reserved_usd: str | None
    cost_usd: str | None
    seconds: float | None
    request_id: str | None
    started_at: datetime
    finished_at: datetime | None


class CallBody(CallFacts):
    """One request to the model of a batch's executor."""

    object: Literal["call"] = "call"
    batch: str
    implementation: str
    sample: int
    revision: int


class ExperimentBody(Resource):
    """One idea put to the test."""

    object: Literal["experiment"] = "experiment"
    id: str
    batch: str
    environment: str | None = Field(
        None, description="`name@hash`; null from a service of an earlier version."
    )
    profile: str | None = None
    position: int = Field(description="Place of the idea in its batch, from 0.")
    idea: IdeaBody
    state: str
    is_terminal: bool
    failure: FailureBody | None
    implementation: str
    codebase: str | None
    measurements: list[str]
    smokes: list[str] = Field([], description="Smoke measurements of its samples.")
    repairs: list[RepairBody] = Field(
        [], description="Codebases before this one that crashed, oldest first."
    )
    hardware_class: str | None = Field(None, description="What it is measured on.")
    conditions: str | None = Field(
        None, description="Under which it is compared; null if none were recorded."
    )
    metric_name: str
    metric: float | None = Field(
        description="Mean over the experiment's seeds, or the best where artifacts are judged."
    )
    metrics: dict[str, float] = Field(
        {},
        description="What else its evaluator reports, by name: means over the experiment's seeds.",
    )
    reward: float
    base: BaseBody | None = Field(
        None, description="The codebase that it changes; null for the environment's own."
    )
    comparison: ComparisonBody | None = Field(
        description="With its base, or with the environment's baseline if it has none."
    )
    against_baseline: ComparisonBody | None = Field(
        None, description="With the environment's baseline, if it has a base."
    )
    used: UsedBody | None = Field(
        None, description="What it used beside the baseline, where the profile caps that."
    )
    seconds: float | None = Field(description="Wall clock of training and evaluation.")
    warm_up_seconds: float | None = Field(
        None, description="What training took before its clock started; not part of `seconds`."
    )
    confirmation: ConfirmationBody | None = Field(
        None, description="The latest one. Ranks winners, and is not for search."
    )
    claimed: bool | None = Field(
        None,
        description="Of an experiment that confirms another: whether that may be claimed to be "
        "better; null until its batch and the baseline are finished.",
    )
    shared_with: list[str] = Field(
        [], description="Other experiments whose codebase is identical; they share measurements."
    )
    retried_as: list[str] = Field(
        [], description="Experiments that measured it again after it failed, oldest first."
    )
    reproduced_as: list[str] = Field(
        [], description="Experiments that repeated its measurements, oldest first."
    )
    agreement: AgreementBody | None = Field(
        None, description="Of a reproduction that has ended: whether its results agree."
    )
    tags: list[str] = Field([], description="Given by its owner, in their order.")
    note: str = Field("", description="Of its owner: plain text, shown as it is.")
    created_at: datetime
    finished_at: datetime | None


class SampleBody(Resource):
    """One model call of the implement loop, with what came of it."""

    sample: int
    revision: int
    is_repair: bool = Field(False, description="Asked for after a crash in training.")
    state: str = Field(description="calling, answered, applied, refused, failed or cancelled.")
    fitted: bool = Field(False, description="Its diff fitted, whatever preflight said.")
    smoke: str | None = Field(None, description="The smoke measurement of its codebase.")
    code: str | None = Field(None, description="Why it did not apply.")
    answer: str | None = None
    thinking: str | None = None
    diff: str | None = None
    patch_log: str | None = None
    prompt_version: str = ""
    input_tokens: int = 0
    cached_input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: str | None = None
    tries: int = Field(0, description="Requests sent, provider retries included.")
    seconds: float | None = None


class ImplementationBody(Resource):
    """The record of turning one idea into a codebase: every sample, diff and patch log."""

    object: Literal["implementation"] = "implementation"
    id: str
    experiment: str
    executor: str
    state: str
    codebase: str | None
    winner: int | None = Field(None, description="The sample whose diff was taken.")
    usage: Usage
    samples: list[SampleBody]


class RescoreBody(Resource):
    """The second evaluation of a result, with fresh secret positions. The first one counts."""

    metric: float
    metrics: dict[str, float]
    seconds: float = Field(description="Its wall clock.")


class MeasurementBody(Resource):
    """One scored execution of a codebase."""

    object: Literal["measurement"] = "measurement"
    id: str
    kind: str
    codebase: str
    environment: str
    profile: str
    hardware_class: str
    conditions: str | None = Field(None, description="Null if none were recorded.")
    seed: int
    replicate: int
    state: str
    failure: FailureBody | None
    metric: float | None
    metrics: dict[str, float]
    rescore: RescoreBody | None = Field(
        None, description="The second evaluation, of a result that was scored twice."
    )
    seconds: float | None = Field(
        None, description="Wall clock of training and evaluation; of a smoke, of its start."
    )
    provenance: dict[str, Any]
    promotable: bool = Field(
        False,
        description="Measured where code is isolated, so that it could not change its result.",
    )
    attempts: list[AttemptBody]
    created_at: datetime
    finished_at: datetime | None


class AttemptBody(Resource):
    """One lease of a measurement on one worker."""

    id: str
    number: int
    worker: str
    state: str
    failure: FailureBody | None
    software: dict[str, Any] = Field(
        {}, description="Software and sandbox of the worker; empty if its version stored none."
    )
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None


class ResultBody(Resource):
    """The sealed result of an experiment: one entry per measurement."""

    object: Literal["result"] = "result"
    experiment: str
    metric_name: str
    direction: str
    metric: float
    reward: float
    comparison: ComparisonBody | None
    against_baseline: ComparisonBody | None = Field(
        None, description="With the environment's baseline, if the experiment has a base."
    )
    used: UsedBody | None = Field(
        None, description="What it used beside the baseline, where the profile caps that."
    )
    promotable: bool = Field(False, description="Whether all its measurements are.")
    measurements: list[MeasurementBody]
    artifacts: list[ArtifactBody]


class ArtifactBody(Resource):
    """A stored file of a measurement."""

    name: str
    bytes: int
    sha256: str
    url: str
    removed_at: datetime | None = Field(
        None, description="When it was removed, because better results took its place."
    )


class CurvePoint(Resource):
    """One line of a codebase's metrics file: claimed by the codebase, never a result."""

    seq: int
    step: float | None = None
    values: dict[str, float]


class SystemSample(Resource):
    """What a worker saw a measurement use, `seconds` after its start."""

    seq: int
    seconds: float
    values: dict[str, float]


class EventBody(Resource):
    """A change somebody may wait for."""

    id: int
    type: str
    batch: str | None = None
    experiment: str | None = None
    search: str | None = None
    data: dict[str, Any] = {}
    created_at: datetime


for _model in (BatchBody, IdeaBody, ConfirmationBody, ExperimentBody, MeasurementBody, ResultBody):
    _model.model_rebuild()
