"""What a batch would cost, from the price table and the size of its prompts."""

from __future__ import annotations

from typing import Any

from assay.contracts.batch import BatchRequest
from assay.domain.isolation import NO_MODEL
from assay.domain.states import MeasurementKind
from assay.environments.catalog import Environment
from assay.llm.names import ModelName
from assay.llm.prices import estimate
from assay.storage.batches import kind_of
from services.implementer import novelty
from services.implementer.context import Context
from services.implementer.views.calls import dollars


def dry_run(
    context: Context, request: BatchRequest, environment: Environment, owner: str
) -> dict[str, Any]:
    """The answer to `?dry_run=true`: what would be done, and for how much."""
    return {
        "object": "dry_run",
        "environment": environment.id,
        "profile": request.profile,
        "ideas": len(request.ideas),
        "measurements": len(request.ideas) * len(set(request.options.seeds)),
        "cost_usd": cost_range(request, environment),
        "gpu_hours": gpu_hours(request, environment),
        "max_cost_usd": None
        if request.options.max_cost_usd is None
        else dollars(request.options.max_cost_usd),
        "max_gpu_hours": request.options.max_gpu_hours,
        "similar": _similar(context, request, environment, owner),
    }


def gpu_hours(request: BatchRequest, environment: Environment) -> float:
    """What the measurements and smokes of a batch may take, each its whole budget."""
    profile = environment.profile(request.profile)
    seconds = len(set(request.options.seeds)) * profile.gpus * profile.budget.training_seconds
    smoke = environment.manifest.smoke_profile(request.profile)
    if request.options.preflight == "smoke" and smoke is not None:
        _, small = smoke
        seconds += small.gpus * small.budget.seconds
    return round(len(request.ideas) * seconds / 3600, 4)


def _similar(
    context: Context, request: BatchRequest, environment: Environment, owner: str
) -> list[dict[str, Any]]:
    """Ideas, by position, that say what an earlier one said."""
    found = novelty.find(context, request, environment.name, owner)
    return [
        {
            "position": position,
            "experiment": alike[0].experiment,
            "like_position": None if alike[0].experiment else alike[0].position,
            "similarity": alike[0].similarity,
        }
        for position, alike in enumerate(found)
        if alike
    ]


def cost_range(request: BatchRequest, environment: Environment) -> dict[str, str | None]:
    """Between what and what the model calls of a batch may cost; null where no price is known."""
    if request.executor == NO_MODEL:
        return {"low": "0", "high": "0"}
    ideas = request.ideas
    if kind_of(request) is MeasurementKind.CONFIRM:  # the codebases are there
        return {"low": "0", "high": "0"}
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
