"""OpenEvolve: `run_evolution` with its default settings: five islands, one evaluation at a time.

It measures through `assay.adapters.openevolve`. Its model is the mutator, which reads OpenEvolve's
own prompt: the parent, and the programs that are shown beside it. The pool of processes is
replaced by a thread, so that the model and the account of costs are in one process.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

from openevolve import process_parallel, run_evolution
from openevolve.config import Config, LLMConfig, LLMModelConfig
from openevolve.llm.base import LLMInterface

from assay.adapters.openevolve import ProgramEvaluator
from benchmarks.search.peers.model import MutatorModel
from benchmarks.search.peers.program import FILE
from benchmarks.search.peers.service import PROFILE, LabService

_CURRENT = "# Current Program\n"
#: What measures in this process. OpenEvolve pickles what it is given, so that is a function.
_measuring: list[ProgramEvaluator] = []


def search(service: LabService, model: MutatorModel, seed: int) -> None:
    """Search until the budget is spent. Raises Spent."""
    evaluate = ProgramEvaluator(service.world.name, PROFILE, file=FILE, client=service.client)
    process_parallel.ProcessPoolExecutor = _OneThread
    config = Config(
        llm=LLMConfig(models=[LLMModelConfig(name="mutator", init_client=_client_of(model))]),
        random_seed=seed % 2**32,
    )
    config.prompt.system_message = evaluate.problem
    _measuring[:] = [evaluate]
    run_evolution(evaluate.program, _measure, config, iterations=model.most)


def _measure(program_path: str) -> Any:
    return _measuring[0](program_path)


class _Client(LLMInterface):  # type: ignore[misc]
    """The mutator behind OpenEvolve's interface of models."""

    def __init__(self, mutator: MutatorModel) -> None:
        self.model = "mutator"  # OpenEvolve logs it
        self._mutator = mutator

    async def generate(self, prompt: str, **options: Any) -> str:
        before, _, after = prompt.rpartition(_CURRENT)
        programs = self._mutator.programs
        current = self._mutator.read(after)[0]
        new = self._mutator.next([current, *programs.read(before)])
        return programs.edits(current, new)

    async def generate_with_context(
        self, system_message: str, messages: list[dict[str, str]], **options: Any
    ) -> str:
        return await self.generate(messages[-1]["content"])


def _client_of(mutator: MutatorModel) -> Callable[[LLMModelConfig], _Client]:
    # A closure: OpenEvolve copies its settings deeply, which would copy an object.
    return lambda _: _Client(mutator)


class _OneThread:
    """A pool of one worker that is done with a task before it takes the next.

    OpenEvolve with one worker has as many iterations under way as islands. It decides on each when
    it submits it, and takes in the results in the order in which they were submitted: so it does
    here, whatever the machine's load is.
    """

    def __init__(
        self, *, initializer: Callable[..., None], initargs: tuple[Any, ...], **_: Any
    ) -> None:
        self._pool = ThreadPoolExecutor(1, initializer=initializer, initargs=initargs)

    def submit(self, *task: Any) -> Future[Any]:
        future = self._pool.submit(*task)
        wait([future])
        return future

    def shutdown(self, **how: Any) -> None:
        self._pool.shutdown(**how)
