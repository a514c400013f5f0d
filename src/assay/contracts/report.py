"""Reports: how many ideas came to a result, and where the others ended."""

from __future__ import annotations

from datetime import date
from typing import Literal

from pydantic import Field

from assay.contracts.base import Resource
from assay.contracts.batch import Funnel, Usage

#: Who carries an idea out: the model that had it, another one, or a model for a person.
Execution = Literal["self", "cross", "person"]


class Shares(Resource):
    """The stages of a funnel as shares of what was submitted; null where nothing was."""

    applied: float | None
    patched: float | None
    started: float | None
    scored: float | None = Field(description="The execution rate.")


class FailureCount(Resource):
    """How many experiments ended so."""

    stage: str
    code: str
    count: int


class RepairCounts(Resource):
    """Experiments whose codebase crashed early and was sent back, and how many of them scored."""

    experiments: int = 0
    scored: int = 0


class PerIdea(Resource):
    """What one idea took of the executor, on average."""

    calls: float
    input_tokens: float
    output_tokens: float
    cost_usd: str | None = Field(description="Decimal; null when a price is unknown.")


class MetricSummary(Resource):
    """What the scored experiments reached, each the mean over its seeds."""

    name: str
    direction: str
    average: float | None
    best: float | None
    worn: bool = Field(
        False,
        description="The split it is measured on is worn: confirm the best on a fresh split.",
    )
    baseline_mean: float | None = Field(
        description="Null before it is measured, and where the row holds several hardware classes."
    )
    baseline_n: int


class ExecutionRow(Resource):
    """The ideas of one ideator, carried out by one executor; cancelled ones count nowhere else."""

    environment: str
    profile: str
    hardware_classes: list[str]
    ideator: str | None
    executor: str
    execution: Execution = Field(
        description="self: the ideator's own; cross: another model's; person: no ideator given."
    )
    batches: int
    funnel: Funnel
    shares: Shares
    unfinished: int = Field(description="Of the submitted: neither scored nor failed yet.")
    cancelled: int = Field(description="Not among the submitted.")
    near_duplicates: int = Field(description="Of the cancelled: `near_duplicate`.")
    failures: list[FailureCount] = Field(description="Most frequent first.")
    repairs: RepairCounts
    wasted_seconds: float = Field(
        description="Of attempts to measure that did not succeed; a shared measurement's once."
    )
    usage: Usage
    per_submitted: PerIdea | None = Field(description="Null where nothing was submitted.")
    per_patched: PerIdea | None = Field(description="Null where nothing was patched.")
    metric: MetricSummary


class ExecutionReport(Resource):
    """The execution rate per environment, profile, ideator and executor."""

    object: Literal["execution_report"] = "execution_report"
    environment: str | None
    batches: list[str]
    search: str | None
    since: date | None
    data: list[ExecutionRow]
