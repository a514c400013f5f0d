"""Record the answers that an ideator gets, and give them again without a provider.

A folder holds one file per answer, named by where in its search the answer belongs:
`ideas-<epoch>-<place>.json`. A replay goes by that, since a later search has other ids and times
in its prompts.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from assay.llm.ideation import IdeatorCall
from assay.llm.interface import Completion, Effort, Gate, OnTry, Prompt
from assay.llm.names import ModelName
from assay.llm.recording import ReplayMiss, completion_of, read, write


@dataclass(frozen=True)
class RecordedIdeas:
    """A folder of answers, which keeps them or, in a replay, gives them."""

    folder: Path
    is_replay: bool = False

    def keep(self, epoch: int, place: str, call: IdeatorCall, completion: Completion) -> None:
        """Keep an answer, over an earlier one for the same place."""
        answer = asdict(completion)
        del answer["request_id"]
        record = {
            "model": completion.model,
            "request_hash": call.request_hash,
            "epoch": epoch,
            "place": place,
            "asked": call.asked,
            "answer": answer,
        }
        write(self._file(epoch, place), record)

    def answer(self, epoch: int, place: str, call: IdeatorCall) -> Completion:
        """The recorded answer.

        Raises:
            ReplayMiss: none was recorded for this place, or one for another number of ideas.
        """
        path = self._file(epoch, place)
        if not path.is_file():
            raise ReplayMiss(
                f"{self.folder} holds no answer for epoch {epoch}, place {place}: the recorded "
                "search asked less, or another search was recorded"
            )
        record = read(path)
        if record["asked"] != call.asked:
            raise ReplayMiss(
                f"{path} answers a question for {record['asked']} ideas, and {call.asked} are "
                "asked for: replay with the strategy and the batch size that were recorded"
            )
        return completion_of(record["answer"])

    def _file(self, epoch: int, place: str) -> Path:
        return self.folder / f"ideas-{epoch:04d}-{place}.json"


@dataclass(frozen=True)
class NoModel:
    """Takes the place of a model whose answers all are recorded."""

    name: ModelName
    takes_temperature: bool = True

    async def complete(
        self,
        prompt: Prompt,
        *,
        max_tokens: int | None = None,
        temperature: float | None = None,
        effort: Effort | None = None,
        timeout_s: float = 600.0,
        on_try: OnTry | None = None,
        gate: Gate | None = None,
    ) -> Completion:
        """Raise ReplayMiss."""
        raise ReplayMiss(f"no answer of {self.name} to this question is recorded")

    async def aclose(self) -> None:
        """Nothing to close."""
