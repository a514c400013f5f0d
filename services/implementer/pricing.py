"""What a batch would cost, from the price table and the size of its prompts."""

from __future__ import annotations

from typing import Any

from assay.contracts.batch import BatchRequest
from assay.environments.catalog import Environment
from assay.llm.names import ModelName
from assay.llm.prices import estimate
from services.implementer.views.batches import dollars


def dry_run(request: BatchRequest, environment: Environment) -> dict[str, Any]:
    """The answer to `?dry_run=true`: what would be done, and for how much."""
    return {
        "object": "dry_run",
        "environment": environment.id,
        "profile": request.profile,
        "ideas": len(request.ideas),
        "measurements": len(request.ideas) * len(set(request.options.seeds)),
        "cost_usd": cost_range(request, environment),
        "max_cost_usd": None
        if request.options.max_cost_usd is None
        else dollars(request.options.max_cost_usd),
    }


def cost_range(request: BatchRequest, environment: Environment) -> dict[str, str | None]:
    """Between what and what the model calls of a batch may cost; null where no price is known."""
    ideas = request.ideas
    estimated = estimate(
        ModelName.parse(request.executor),
        ideas=len(ideas),
        samples=request.options.samples,
        revisions=request.options.revisions,
        codebase_characters=sum(len(text) for text in environment.codebase.values()),
        idea_characters=sum(len(idea.text) for idea in ideas) // len(ideas),
    )
    return {
        "low": None if estimated.low is None else dollars(estimated.low),
        "high": None if estimated.high is None else dollars(estimated.high),
    }
