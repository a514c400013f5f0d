"""SkyDiscover: `run_discovery` with its default settings, by the searches `topk` and `adaevolve`.

It measures through `assay.adapters.skydiscover`. Its models are the mutator, which reads
SkyDiscover's own prompts: the parent, the programs that are shown beside it, what failed a moment
ago, whether to explore, and, in `adaevolve`, the request for ideas that break through.
"""

from __future__ import annotations

import json
from typing import Any

from skydiscover import run_discovery
from skydiscover.config import Config, LLMConfig, LLMModelConfig
from skydiscover.llm.base import LLMInterface

from assay.adapters.skydiscover import ProgramEvaluator
from benchmarks.search.peers.model import MutatorModel
from benchmarks.search.peers.program import FILE
from benchmarks.search.peers.service import PROFILE, LabService

# Marks in SkyDiscover's prompts.
_CURRENT = "# Current Program\n"
_FAILED = "Previous Failed Attempts (this retry)"
_EXPLORE = "### EXPLORATION GUIDANCE"
_IMPLEMENT = "## BREAKTHROUGH IDEA - IMPLEMENT THIS"
_INVENT = "breakthrough ideas of DIFFERENT types"
#: How many ideas are invented at a time, as SkyDiscover asks for by default.
_INVENTED = 3


def topk(service: LabService, model: MutatorModel, seed: int) -> None:
    """Search until the budget is spent. Raises Spent."""
    _search(service, model, seed, "topk")


def adaevolve(service: LabService, model: MutatorModel, seed: int) -> None:
    """Search until the budget is spent. Raises Spent."""
    _search(service, model, seed, "adaevolve")


def _search(service: LabService, model: MutatorModel, seed: int, search: str) -> None:
    evaluate = ProgramEvaluator(service.world.name, PROFILE, file=FILE, client=service.client)
    mutator = LLMModelConfig(name="mutator", init_client=lambda _: _Client(model))
    config = Config(llm=LLMConfig(models=[mutator]))
    config.random_seed = seed % 2**32
    run_discovery(
        evaluate.program,
        evaluate,
        config,
        iterations=model.most,
        search=search,
        system_prompt=evaluate.problem,
    )


class _Client(LLMInterface):  # type: ignore[misc]
    """The mutator behind SkyDiscover's interface of models."""

    def __init__(self, mutator: MutatorModel) -> None:
        self._mutator = mutator

    async def generate(
        self, system_message: str, messages: list[dict[str, Any]], **options: Any
    ) -> str:
        prompt = str(messages[-1]["content"])
        return self._ideas(prompt) if _INVENT in prompt else self._edits(prompt)

    def _edits(self, prompt: str) -> str:
        programs = self._mutator.programs
        before, _, after = prompt.rpartition(_CURRENT)
        current = self._mutator.read(after)[0]
        others, _, failed = before.partition(_FAILED)
        idea = programs.read(after.partition(_IMPLEMENT)[2])
        if idea:
            new = self._mutator.program(idea[0].point)
        elif failures := programs.read(failed):
            new = self._mutator.next(failures[-1:])
        elif _EXPLORE in after:
            new = self._mutator.next([], "explore")
        else:
            new = self._mutator.next([current, *programs.read(others)])
        return programs.edits(current, new)

    def _ideas(self, prompt: str) -> str:
        """Answer the request for ideas with programs, which later prompts then contain."""
        programs = self._mutator.programs
        found = self._mutator.several(_INVENTED, self._mutator.read(prompt)[:1])
        texts = map(programs.text, found)
        return json.dumps(
            [{"idea": "Other settings", "description": t, "approach_type": "new"} for t in texts]
        )
