"""GEPA: `optimize_anything` with its default settings, one candidate at a time.

It measures through `assay.adapters.gepa`. Its reflection model is the mutator, which reads GEPA's
own prompt: the candidate that GEPA selected, and what is known of it.
"""

from __future__ import annotations

from typing import Any

from gepa.optimize_anything import EngineConfig, GEPAConfig, ReflectionConfig, optimize_anything

from assay.adapters.gepa import CandidateEvaluator
from benchmarks.search.peers.model import MutatorModel
from benchmarks.search.peers.program import FILE
from benchmarks.search.peers.service import PROFILE, LabService


def search(service: LabService, model: MutatorModel, seed: int) -> None:
    """Search until the budget is spent. Raises Spent."""
    evaluate = CandidateEvaluator(service.world.name, PROFILE, client=service.client)

    def reflect(prompt: str | list[dict[str, Any]]) -> str:
        new = model.next(model.read(str(prompt)))
        return f"```\n{model.programs.text(new)}```"

    optimize_anything(
        evaluate.candidate(FILE),
        batch_evaluator=evaluate,
        objective=evaluate.problem,
        config=GEPAConfig(
            engine=EngineConfig(seed=seed, max_candidate_proposals=model.most),
            reflection=ReflectionConfig(reflection_lm=reflect),
        ),
    )
