"""Trajectories: what was proposed, what was changed, and what came of it, as flat records.

`docs/export.md` describes every field; a test compares it with this module. The service sends
these records, and the client writes them to JSONL, Parquet and pandas.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, Field

from assay.contracts.base import Resource

#: Raised when a field changes its meaning, its type or its name. New fields do not raise it.
SCHEMA_VERSION = 1


class CurvePointBody(Resource):
    """One line of what the code logged about itself."""

    seq: int = Field(description="Number of the line, from 0.")
    step: float | None = Field(None, description="Step of training; null if the code named none.")
    values: dict[str, float] = Field(description="What the code logged there.")


class SeedBody(Resource):
    """One seed of an experiment."""

    seed: int = Field(description="What the code derives its random numbers from.")
    measurement: str = Field(description="Id of the measurement.")
    state: str = Field(description="queued, running, succeeded, failed or cancelled.")
    metric: float | None = Field(description="As shown (rounded); null without a result.")
    seconds: float | None = Field(
        description="Wall clock of training and evaluation, whole seconds; null without a result."
    )
    failure_code: str | None = Field(description="Null unless the measurement failed.")


class TrajectoryBody(Resource):
    """One experiment as a flat record."""

    schema_version: int = Field(SCHEMA_VERSION, description="Version of this schema.")
    kind: str = Field(
        description="score; confirm for a confirmation on fresh seeds and the sealed split; "
        "control for a reproduction."
    )
    experiment: str = Field(description="Id of the experiment.")
    batch: str = Field(description="Id of its batch.")
    search: str | None = Field(description="Id of its search; null outside of searches.")
    epoch: int | None = Field(description="Round of the search, from 0; null if it is in none.")
    position: int = Field(description="Place of the idea in its batch, from 0.")
    environment: str = Field(description="Environment as `name@hash`.")
    profile: str = Field(description="Size at which the environment ran.")
    hardware_class: str = Field(description="What it was measured on.")
    conditions: str | None = Field(
        description="Hash of what decides whether results may be compared; null if none was "
        "recorded."
    )
    ideator: str | None = Field(description="Who had the idea; null for a person.")
    executor: str = Field(description="Who wrote the code; `none` for a codebase that was given.")
    operator: str = Field(description="seed, exploit or explore.")
    parents: list[str] = Field(description="Ids of the experiments that the idea builds on.")
    client_key: str | None = Field(description="The submitter's name for the idea; null if none.")
    confirms: str | None = Field(
        description="The experiment that is confirmed; null unless `kind` is confirm."
    )
    retries: str | None = Field(
        description="The failed experiment that is measured again; null unless it is a retry."
    )
    reproduces: str | None = Field(
        description="The experiment whose measurements are repeated; null unless it is a "
        "reproduction."
    )
    retried_as: list[str] = Field(description="Experiments that measured it again, oldest first.")
    idea: str = Field(description="Text of the idea, as submitted.")
    thinking: str | None = Field(
        description="What the model thought before it wrote the idea; null if it was not kept."
    )
    base: str | None = Field(
        description="Hash of the codebase that the idea changes; null for the environment's own."
    )
    base_name: str | None = Field(
        description="What the base was asked for as; null without a base, and for a hash."
    )
    codebase: str | None = Field(
        description="Hash of the resulting codebase; null if no diff was accepted."
    )
    diff: str | None = Field(
        description="Unified diff of `codebase` against its base; null without a `codebase`."
    )
    state: str = Field(
        description="submitted, implementing, queued, running, succeeded, failed or cancelled."
    )
    failure_stage: str | None = Field(
        description="implement, schedule, start, train, score or guard; null unless it failed."
    )
    failure_code: str | None = Field(description="Null unless it failed.")
    failure_blame: str | None = Field(
        description="idea, host, service, environment, settings, nobody or unclear; null unless "
        "it failed."
    )
    failure_message: str | None = Field(description="Null unless it failed.")
    metric_name: str = Field(description="Name of the metric.")
    direction: str = Field(description="minimize or maximize.")
    metric: float | None = Field(
        description="As shown (rounded): the mean over seeds, or the best where artifacts are "
        "judged; null unless it succeeded."
    )
    reward: float = Field(description="What search maximises; 0 unless it succeeded.")
    seeds: list[SeedBody] = Field(
        description="One entry per seed, in the order of seeds; empty before it is measured."
    )
    seconds: float | None = Field(
        description="Wall clock of training and evaluation over all seeds, whole seconds; null "
        "without a result."
    )
    warm_up_seconds: float | None = Field(
        description="Before the clock of training started, over all seeds; null if there was none."
    )
    verdict: str | None = Field(
        description="better, worse, undecided, identical, provisional or not comparable; null "
        "unless it succeeded and there is a baseline."
    )
    effect: float | None = Field(
        description="By how much the metric improves on the baseline, in units of the metric; "
        "null where `verdict` is."
    )
    effect_low: float | None = Field(
        description="Lower end of the 95 % interval of `effect`; null where nothing tells it."
    )
    effect_high: float | None = Field(
        description="Upper end of the 95 % interval of `effect`; null where nothing tells it."
    )
    standard_error: float | None = Field(
        description="Of `effect`, the baseline's own included; null where nothing tells it."
    )
    p: float | None = Field(
        description="Two-sided p value of no effect, uncorrected; null where nothing tells it."
    )
    exploratory: bool | None = Field(
        description="Whether some seeds had been seen when the others were asked for; null where "
        "`verdict` is."
    )
    baseline_mean: float | None = Field(
        description="Mean metric of what it is compared with: its base, or the environment's "
        "codebase; null where `verdict` is."
    )
    baseline_spread: float | None = Field(
        description="Standard deviation of that over seeds; null with fewer than two."
    )
    baseline_n: int | None = Field(description="Number of its seeds; null where `verdict` is.")
    claimed: bool | None = Field(
        description="Whether it may be claimed to be better, by Holm's procedure over its batch; "
        "null unless `kind` is confirm and the batch is decided."
    )
    implementation: str = Field(description="Id of the record of every diff that was tried.")
    executor_calls: int = Field(description="Requests to the executor's model.")
    executor_input_tokens: int = Field(description="Tokens read, cached ones included.")
    executor_cached_input_tokens: int = Field(
        description="Of those, tokens from the provider's cache."
    )
    executor_output_tokens: int = Field(description="Tokens written, thinking included.")
    executor_cost_usd: float | None = Field(
        description="US dollars; null where a price is unknown."
    )
    created_at: datetime = Field(description="When the idea was submitted, UTC.")
    finished_at: datetime | None = Field(description="When it ended, UTC; null before.")
    curve: list[CurvePointBody] | None = Field(
        None,
        description="What the code logged while it trained, on the first seed, thinned evenly: a "
        "claim, never a result; null unless curves are asked for.",
    )


Kind = Literal["text", "integer", "number", "truth", "time", "list", "map"]
_KINDS: dict[Any, Kind] = {
    str: "text", int: "integer", float: "number", bool: "truth", datetime: "time",
}  # fmt: skip


@dataclass(frozen=True)
class Column:
    """A field of a record. `fields`: those of the records in a list; `items`: what else a list
    holds."""

    name: str
    kind: Kind
    nullable: bool
    description: str
    items: Kind | None = None
    fields: tuple[Column, ...] = ()


def columns(model: type[BaseModel] = TrajectoryBody) -> Iterator[Column]:
    """The fields of a record, in their order."""
    for name, field in model.model_fields.items():
        about = field.description or ""
        kind, nullable = _without_null(field.annotation)
        if get_origin(kind) is dict:
            yield Column(name, "map", nullable, about)
        elif get_origin(kind) is not list:
            yield Column(name, _KINDS[kind], nullable, about)
        elif (of := get_args(kind)[0]) in _KINDS:
            yield Column(name, "list", nullable, about, items=_KINDS[of])
        else:
            yield Column(name, "list", nullable, about, fields=tuple(columns(of)))


def _without_null(annotation: Any) -> tuple[Any, bool]:
    if get_origin(annotation) not in (Union, types.UnionType):
        return annotation, False
    (kind,) = (each for each in get_args(annotation) if each is not type(None))
    return kind, True
