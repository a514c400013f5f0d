"""Searches and their epochs. The service keeps the record; a client or the service drives."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from assay.contracts.base import (
    MAX_INTEGER,
    READ_INTEGER,
    Dollars,
    GpuHours,
    Integer,
    Items,
    JsonObject,
    Message,
    Metadata,
    Name,
    Number,
    Request,
    Resource,
    Seed,
    ShortName,
    Text,
)
from assay.contracts.batch import (
    MAX_IDEAS,
    MAX_SEEDS,
    MAX_THINKING,
    BaseBody,
    CallFacts,
    IdeaRequest,
    Operator,
    Usage,
)
from assay.contracts.caps import SearchSpending
from assay.domain.states import SearchState

#: What the ideas of an epoch may take, as JSON. Model ideators answer in at most 24,000 tokens, so
#: an idea with its `thinking` takes about 0.1 MB: 80 of them fit twice over.
MAX_EPOCH_BYTES = 16 << 20


#: Characters of an ideator's answer that are kept.
MAX_ANSWER = 1 << 20


#: Who runs the loop of a search.
DriverName = Literal["client", "service"]


class SearchRequest(Request):
    """A new search. `config` is the strategy's, kept verbatim so that a search can be resumed."""

    environment: Name
    profile: Name
    strategy: ShortName
    seed: Seed = 0
    epochs: Integer = Field(
        ge=1, le=10_000, description="Rounds after which the search is finished."
    )
    batch_size: Integer = Field(ge=1, le=MAX_IDEAS)
    ideator: Name = "offline:ideator"
    executor: Name = "offline:literal"
    hardware_class: ShortName | None = None
    conditions: ShortName | None = Field(
        None,
        description="Under which conditions all epochs are measured (`GET /v1/conditions`); by "
        "default those of most live capacity when the first one is submitted.",
    )
    base: ShortName | None = Field(
        None, description="What the ideas of all epochs change, as in a batch."
    )
    config: JsonObject = {}
    caps: SearchSpending = Field(SearchSpending(), description="For all its epochs together.")
    driver: DriverName = Field(
        "client",
        description="Who runs its loop: client, or service, with the models' keys that it has.",
    )
    metadata: Metadata = {}


class ResumeRequest(Request):
    """Who runs the loop of a search from now on."""

    driver: DriverName = "client"


class EpochRequest(Request):
    """The ideas of one epoch, stored before they are submitted."""

    ideas: Items[IdeaRequest] = Field(
        min_length=1,
        max_length=MAX_IDEAS,
        description="At most the search's `batch_size`, and at most "
        f"{MAX_EPOCH_BYTES >> 20} MiB as JSON.",
    )


class DecidedAsk(Request):
    """A question that a strategy decided to put to the ideator."""

    operator: Literal["seed", "exploit", "explore", "refine", "combine", "ablate", "rescue"]
    count: Integer = Field(ge=1, le=MAX_IDEAS, description="Ideas that are asked for.")
    seed: Integer = Field(0, ge=0, le=MAX_INTEGER)
    parents: Items[ShortName] = Field(
        [], max_length=1_000, description="Experiments that the ideas build on."
    )


class DecidedRemeasure(Request):
    """Codebases that a strategy decided to measure on more seeds."""

    experiments: Items[ShortName] = Field(min_length=1, max_length=MAX_IDEAS)
    seeds: Integer = Field(
        ge=1, le=MAX_SEEDS, description="Seeds that each codebase has afterwards."
    )


class SeenBaseline(Request):
    """The baseline as a strategy saw it. `mean` and `spread` are in units of the metric."""

    reward: Number
    mean: Number | None = Field(None, description="Null where ideators are not told of it.")
    spread: Number | None = None
    seeds: Integer = Field(0, ge=0, le=MAX_INTEGER)


class DecisionRequest(Request):
    """What an asynchronous strategy decided, and all that the decision depends on.

    With the search's settings and the decisions before, the strategy decides the same again.
    """

    asks: Items[DecidedAsk] = Field([], max_length=64, description="Questions to the ideator.")
    remeasure: DecidedRemeasure | None = Field(
        None, description="Measure again instead; then there are no `asks`."
    )
    seen: Items[ShortName] = Field(
        [],
        max_length=100_000,
        description="Experiments whose results were known to it and to no decision before.",
    )
    pending: Items[Annotated[int, Field(ge=0, le=10_000), READ_INTEGER]] = Field(
        [],
        max_length=10_000,
        description="Numbers of the earlier decisions that had not ended.",
    )
    baseline: SeenBaseline | None = Field(None, description="Null before it was measured.")

    @model_validator(mode="after")
    def _one_of_both(self) -> DecisionRequest:
        if bool(self.asks) == (self.remeasure is not None):
            raise ValueError("name either `asks` or `remeasure`")
        return self

    @property
    def in_words(self) -> str:
        """What is asked for: `2 refine, 2 explore`, or `3 remeasure on 2 seeds`."""
        if self.remeasure is not None:
            return f"{len(self.remeasure.experiments)} remeasure on {self.remeasure.seeds} seeds"
        return ", ".join(f"{ask.count} {ask.operator}" for ask in self.asks)

    @property
    def ideas(self) -> int:
        """How many ideas the epoch will hold, if the ideator has as many."""
        if self.remeasure is not None:
            return len(self.remeasure.experiments)
        return sum(ask.count for ask in self.asks)


#: Tokens of a call, at most: far more than any model reads or writes.
_MOST_TOKENS = 1_000_000_000
#: Characters of what a model thought, at most: the column holds 32 bits.
_MOST_CHARACTERS = 1_000_000_000
_LOOP = "Who makes it: a word that only this loop knows. Its end must name the same."


class IdeatorCallRequest(Request):
    """A request to the ideator's model that is about to be sent."""

    epoch: Integer = Field(ge=0, le=10_000, description="The epoch whose ideas are asked for.")
    place: ShortName = Field(
        description="Which call of the epoch it is. A call that is made again, by a search that "
        "was resumed or after an error, has the same place."
    )
    operator: Operator
    asked: Integer = Field(ge=1, le=MAX_IDEAS, description="Ideas that the question is for.")
    number: Integer = Field(1, ge=1, le=1_000, description="Of its tries, from 1.")
    request_hash: ShortName = Field(description="Of all that decides the answer, but chance.")
    prompt_version: ShortName
    input_tokens: Integer = Field(
        0, ge=0, le=_MOST_TOKENS, description="About those of the prompt."
    )
    output_tokens: Integer = Field(0, ge=0, le=_MOST_TOKENS, description="Expected of the answer.")
    loop: ShortName = Field(description=_LOOP)
    is_replay: bool = Field(False, description="The answer is a recorded one and costs nothing.")


class AnswerRequest(Request):
    """An answer of the ideator, kept whether or not ideas could be read from it."""

    ideas: Integer = Field(ge=0, le=MAX_IDEAS, description="Ideas that could be read from it.")
    unread: Integer = Field(
        ge=0,
        le=1_000_000,
        description="Passages that look like ideas and could not be read; 1 if there is no idea "
        "in it.",
    )
    stop: Literal["end", "truncated", "refused"] = Field(description="How it ended.")
    text: Text = Field(max_length=MAX_ANSWER)
    thinking: Annotated[Text, Field(max_length=MAX_THINKING)] | None = Field(
        None, description="What the model thought in private before it answered."
    )
    thinking_length: Integer = Field(
        0, ge=0, le=_MOST_CHARACTERS, description="Characters of the thinking as it came."
    )


class IdeatorCallEndRequest(Request):
    """What came of a request to the ideator's model. Kinds of tokens do not overlap."""

    state: Literal["returned", "failed", "cancelled"]
    loop: ShortName = Field(description=_LOOP)
    code: ShortName | None = None
    message: Message | None = None
    input_tokens: Integer = Field(0, ge=0, le=_MOST_TOKENS)
    cached_input_tokens: Integer = Field(0, ge=0, le=_MOST_TOKENS)
    cache_write_tokens: Integer = Field(0, ge=0, le=_MOST_TOKENS)
    output_tokens: Integer = Field(0, ge=0, le=_MOST_TOKENS)
    is_estimate: bool = False
    seconds: Number = Field(0.0, ge=0, le=1_000_000)
    request_id: Annotated[Text, Field(max_length=200)] | None = None
    answer: AnswerRequest | None = None


class IdeatorCallBody(CallFacts):
    """A request to the model of a search's ideator, and the answer as it came."""

    object: Literal["ideator_call"] = "ideator_call"
    search: str
    epoch: int
    place: str
    operator: str
    asked: int
    ideas: int | None
    unread: int | None
    stop: str | None
    text: str | None
    thinking: str | None
    thinking_length: int | None


def bytes_of(ideas: Iterable[IdeaRequest]) -> int:
    """Return the size of ideas as JSON in UTF-8, in bytes."""
    return sum(len(idea.model_dump_json().encode()) for idea in ideas)


class PauseRequest(Request):
    """Why the loop that drives a search stops after an epoch."""

    code: ShortName = Field(description="The code with which most of its ideas failed.")
    failed: Integer = Field(ge=1, le=MAX_IDEAS, description="Ideas that failed with it.")
    total: Integer = Field(ge=1, le=MAX_IDEAS, description="Ideas of the epoch that ended.")
    message: Message = Field(description="What to look at, and what to do.")


#: A number of epochs.
Epochs = Annotated[int, Field(ge=1, le=10_000), READ_INTEGER]


class ExtendRequest(Request):
    """New totals for a search. What is null stays as it is; nothing can be lowered."""

    epochs: Epochs | None = Field(
        None, description="Rounds in all, those that are finished included."
    )
    max_cost_usd: Dollars | None = Field(
        None, description="The cap on dollars for the whole search, if it has one."
    )
    max_ideator_cost_usd: Dollars | None = Field(
        None, description="The cap on dollars for ideas, if it has one."
    )
    max_executor_cost_usd: Dollars | None = Field(
        None, description="The cap on dollars for code, if it has one."
    )
    max_gpu_hours: GpuHours | None = Field(
        None, description="The cap on GPU-hours for the whole search, if it has one."
    )


class FinishRequest(Request):
    """When a search is finished."""

    epochs: Epochs | None = Field(
        None,
        description="Only if the search still has so many epochs; null: in any case.",
    )


class PauseBody(Resource):
    """A stop of the loop."""

    reason: str = Field(
        "failures",
        description="failures: one code ended most of an epoch; person: somebody asked for it; "
        "error: the loop in the service could not continue.",
    )
    epoch: int | None = Field(
        None, description="The one that failed; of an error, the one under way; else null."
    )
    code: str | None = Field(
        None, description="Of the failures, or of the error; null for a person's."
    )
    failed: int | None = Field(None, description="Ideas that failed with the code.")
    total: int | None = Field(None, description="Ideas of the epoch that ended.")
    message: str
    paused_at: datetime
    resumed_at: datetime | None = Field(description="Null while the search is paused.")


class EpochBody(Resource):
    """One round of a search."""

    object: Literal["epoch"] = "epoch"
    search: str
    number: int
    state: str = Field(description="decided, proposed, submitted or finished.")
    batch: str | None
    ideas: list[IdeaRequest] = Field(description="Empty while it is only decided.")
    decision: DecisionRequest | None = Field(
        None, description="What an asynchronous strategy decided; null for the others."
    )
    created_at: datetime


class SearchBody(Resource):
    """A search."""

    object: Literal["search"] = "search"
    id: str
    owner: str
    environment: str
    profile: str
    strategy: str
    seed: int
    epochs: int
    batch_size: int
    ideator: str
    executor: str
    hardware_class: str | None
    conditions: str | None = Field(
        None, description="Those that were asked for; those in use are the ones of its batches."
    )
    base: BaseBody | None = Field(
        None, description="What its ideas change; null for the environment's own codebase."
    )
    config: dict[str, Any]
    caps: SearchSpending = SearchSpending()
    state: str = Field(description="running, finished or cancelled.")
    epochs_finished: int
    best: list[BestOfEpoch] = Field(description="Best metric so far, per finished epoch.")
    ideator_usage: Usage = Field(Usage(), description="What its calls for ideas used.")
    executor_usage: Usage = Field(Usage(), description="What its calls for code used.")
    answers: int = Field(0, description="Answers of its ideator that are kept.")
    answers_unread: int = Field(
        0, description="Those of them with passages that could not be read as ideas."
    )
    pauses: list[PauseBody] = Field([], description="Where its loop stopped, and why.")
    driver: str = Field("client", description="Who runs its loop: client or service.")
    metadata: dict[str, str]
    tags: list[str] = Field([], description="Given by its owner, in their order.")
    note: str = Field("", description="Of its owner: plain text, shown as it is.")
    created_at: datetime
    finished_at: datetime | None

    @property
    def slots(self) -> int | None:
        """Return how many experiments its strategy keeps under way; None: it works in epochs."""
        settings = self.config.get("strategy")
        keep = settings.get("keep") if isinstance(settings, dict) else None
        return keep if isinstance(keep, int) else None

    @property
    def open_pause(self) -> PauseBody | None:
        """Return the pause that the search is in, if it is in one."""
        open_ = (p for p in self.pauses if p.resumed_at is None)
        return next(open_, None) if self.state == SearchState.RUNNING else None


class BestOfEpoch(Resource):
    """The best of an epoch, and the best so far."""

    epoch: int
    batch: str
    experiment: str | None
    metric: float | None
    best_so_far: float | None
    scored: int
    total: int


SearchBody.model_rebuild()
