"""What a batch would cost, from the price table and the size of its prompts."""

from __future__ import annotations

from typing import Any

from assay.contracts.batch import BatchRequest
from assay.domain.isolation import NO_MODEL
from assay.domain.states import MeasurementKind
from assay.environments.catalog import Environment
from assay.llm.names import ModelName
from assay.llm.prices import estimate
from assay.storage.baselines import seeds_of
from assay.storage.bases import distinct
from assay.storage.batches import kind_of
from assay.storage.environments import get_codebase
from services.implementer import novelty
from services.implementer.context import Context
from services.implementer.submission import Checked
from services.implementer.views.calls import dollars


def dry_run(
    context: Context, request: BatchRequest, checked: Checked, owner: str
) -> dict[str, Any]:
    """The answer to `?dry_run=true`: what would be done, and for how much.

    `base_measurements` are those of all bases; what was measured before is not repeated.
    """
    environment, based_on = checked
    profile, options = environment.profile(request.profile), request.options
    seeds = seeds_of(profile, options.model_dump(), kind_of(request).baseline)
    return {
        "object": "dry_run",
        "environment": environment.id,
        "profile": request.profile,
        "ideas": len(request.ideas),
        "measurements": len(request.ideas) * len(set(request.options.seeds)),
        "base_measurements": len(distinct(based_on)) * len(seeds),
        "cost_usd": cost_range(request, _characters(context, checked)),
        "gpu_hours": gpu_hours(request, environment),
        "max_cost_usd": None
        if request.options.max_cost_usd is None
        else dollars(request.options.max_cost_usd),
        "max_gpu_hours": request.options.max_gpu_hours,
        "similar": _similar(context, request, checked, owner),
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
    context: Context, request: BatchRequest, checked: Checked, owner: str
) -> list[dict[str, Any]]:
    """Ideas, by position, that say what an earlier one said."""
    environment, based_on = checked
    found = novelty.find(context, request, environment.name, owner, based_on)
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


def _characters(context: Context, checked: Checked) -> int:
    """The size of the code that an idea changes, on average over the ideas."""
    own = sum(map(len, checked.environment.codebase.values()))
    sizes = {
        base.codebase: sum(map(len, get_codebase(context.store, base.codebase).values()))
        for base in distinct(checked.based_on)
    }
    each = [own if base is None else sizes[base.codebase] for base in checked.based_on]
    return sum(each) // len(each)


def cost_range(request: BatchRequest, codebase_characters: int) -> dict[str, str | None]:
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
        codebase_characters=codebase_characters,
        idea_characters=sum(len(idea.text) for idea in ideas) // len(ideas),
    )
    return {
        "low": None if estimated.low is None else dollars(estimated.low),
        "high": None if estimated.high is None else dollars(estimated.high),
    }
