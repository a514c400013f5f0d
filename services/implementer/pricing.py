"""What a batch would cost, from the price table and the size of its prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from assay.contracts.batch import BatchRequest
from assay.domain.failure_codes import FailureCode
from assay.domain.isolation import NO_MODEL
from assay.domain.states import MeasurementKind
from assay.environments.catalog import Environment
from assay.llm.names import ModelName
from assay.llm.offline import literal
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

    `base_measurements` are those of all bases; what was measured before is not repeated. Ideas
    that `novelty: skip` leaves out are not counted in what would be done.
    `warnings` name fields that will make an experiment fail.
    """
    environment, based_on = checked
    profile, options = environment.profile(request.profile), request.options
    seeds = seeds_of(profile, options.model_dump(), kind_of(request).baseline)
    files = _files(context, checked)
    similar = _similar(context, request, checked, owner)
    skipped = {each["position"] for each in similar if options.novelty == "skip"}
    ideas = [idea for place, idea in enumerate(request.ideas) if place not in skipped]
    kept = request.model_copy(update={"ideas": ideas})
    return {
        "object": "dry_run",
        "environment": environment.id,
        "profile": request.profile,
        "ideas": len(request.ideas),
        "measurements": len(ideas) * len(set(options.seeds)),
        "base_measurements": len(distinct(based_on)) * len(seeds),
        "cost_usd": cost_range(kept, _characters(files)),
        "gpu_hours": gpu_hours(kept, environment),
        "max_cost_usd": None if options.max_cost_usd is None else dollars(options.max_cost_usd),
        "max_gpu_hours": options.max_gpu_hours,
        "similar": similar,
        "warnings": _warnings(context, request, files),
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


def _files(context: Context, checked: Checked) -> list[Mapping[str, str]]:
    """The files that each idea changes; those of a base are read once."""
    of_bases = {
        base.codebase: get_codebase(context.store, base.codebase)
        for base in distinct(checked.based_on)
    }
    own = checked.environment.codebase
    return [own if base is None else of_bases[base.codebase] for base in checked.based_on]


def _characters(files: Sequence[Mapping[str, str]]) -> int:
    """The size of the code that an idea changes, on average over the ideas."""
    sizes = {id(each): sum(map(len, each.values())) for each in files}
    return sum(sizes[id(each)] for each in files) // len(files)


def _warnings(
    context: Context, request: BatchRequest, files: Sequence[Mapping[str, str]]
) -> list[dict[str, str]]:
    """What will fail as it stands. It is not refused: a failure is a result, too."""
    if request.executor != literal.NAME or context.settings.replay is not None:
        return []
    return [
        {
            "pointer": f"/ideas/{place}/text",
            "code": FailureCode.NO_DIFF,
            "message": f"this will fail with {FailureCode.NO_DIFF}, since {literal.NAME} only "
            f"carries out edits and {why}; write the edit as a SEARCH/REPLACE block that names "
            "its file, or choose a model as `executor`",
        }
        for place, (idea, of) in enumerate(zip(request.ideas, files, strict=True))
        if idea.confirms is None and (why := literal.why_no_edit(idea.text, of)) is not None
    ]


def cost_range(request: BatchRequest, codebase_characters: int) -> dict[str, str | None]:
    """Between what and what the model calls of a batch may cost; null where no price is known."""
    ideas = request.ideas
    if request.executor == NO_MODEL or not ideas:
        return {"low": "0", "high": "0"}
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
