"""A provider that proposes edits of single lines and writes them, with the troubles of a real one.

What it answers follows from what it is asked, less the ids and numbers that differ between runs.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from assay.domain.hashing import derive_seed
from assay.llm import ModelName, Usage, price
from tests.support.provider import openai
from tests.support.provider.reply import Reply
from tests.support.provider.server import ProviderServer, Request

MODEL = "openai:gpt-5.4-mini"
_ASKED = re.compile(r"Propose (\d+) ")
_NUMBERS = re.compile(r"(?:exp|bat|srch)_\w+|[-+]?\d[\d.,e]*")
_BLOCK = re.compile(r"`([^`]+)`:\n+((?:<<<<<<< SEARCH\n.*?>>>>>>> REPLACE\n*)+)", re.DOTALL)
#: Of ideas, one in so many crashes, and one in so many meets trouble before it is written.
_CRASHES, _TROUBLES = 8, 3


@dataclass(frozen=True)
class Line:
    """A line of a file, and what may stand in its place."""

    file: str
    text: str
    values: Sequence[str]


class SearchingProvider(ProviderServer):
    """Ideator and executor of a search. `seconds`: how long an answer takes to come."""

    def __init__(
        self, lines: Sequence[Line], *, troubles: bool = False, seconds: float = 0.0
    ) -> None:
        super().__init__(self._reply)
        self._lines = lines
        self._troubles = troubles
        self._seconds = seconds
        self._seen: Counter[int] = Counter()
        self.charged = Decimal(0)
        """Dollars for the answers that were sent, by the price of `MODEL`."""
        self.ideas = 0

    def _reply(self, request: Request) -> Reply:
        asked = "\n".join(request.texts())
        proposes = "You are a researcher" in asked
        # Ids, times and the marks around experiments differ between runs; how many there are
        # and what is asked do not.
        question = _NUMBERS.sub("", asked[asked.rindex("Propose ") :]) if proposes else asked
        key = derive_seed(0, asked.count("<<<EXPERIMENT"), question)
        self._seen[key] += 1
        answer = self._propose if proposes else self._write
        return answer(asked, random.Random(key), self._seen[key])

    def _propose(self, asked: str, rng: random.Random, times: int) -> Reply:
        count = int(_ASKED.findall(asked)[-1])
        if self._troubles and times == 1 and rng.random() < 1 / _TROUBLES:
            return openai.error(rng.choice([429, 500, 503]), retry_after="0.01")
        ideas = [self._idea(rng) for _ in range(count)]
        is_repair = "could not be read as ideas" in asked
        if self._troubles and not is_repair and rng.random() < 1 / _TROUBLES:
            ideas[0] = f"[Experiment] {ideas[0].split(']')[1][:60]}\n[End]"  # without its changes
        self.ideas += count
        return self._charge(asked, "\n\n".join(ideas))

    def _idea(self, rng: random.Random) -> str:
        line = rng.choice(self._lines)
        new = line.text.rpartition("= ")[0] + "= " + rng.choice(line.values)
        crash = '\n    raise RuntimeError("odd")' if rng.random() < 1 / _CRASHES else ""
        broken = crash if self._troubles else ""
        return (
            f"[Experiment] Line `{line.text.strip()}`, draw {rng.random():.9f}.\n\n"
            f"[Code Changes] In `{line.file}`:\n<<<<<<< SEARCH\n{line.text}\n=======\n"
            f"{new}{broken}\n>>>>>>> REPLACE\n\n[End]"
        )

    def _write(self, asked: str, rng: random.Random, times: int) -> Reply:
        file, block = _BLOCK.findall(asked)[-1]
        trouble = rng.randrange(2 * _TROUBLES) if self._troubles and times == 1 else None
        if trouble == 0:
            return openai.error(429, retry_after="0.01")
        if trouble == 1:
            block = block.replace("SEARCH\n", "SEARCH\nno such line\n")
        return self._charge(asked, f"The line is replaced.\n\n{file}\n{block}\n")

    def _charge(self, asked: str, text: str) -> Reply:
        used = Usage(len(asked) // 4, len(text) // 4)
        cost = price(ModelName.parse(MODEL), used)
        assert cost is not None
        self.charged += cost
        usage = {
            "prompt_tokens": used.input_tokens,
            "completion_tokens": used.output_tokens,
            "total_tokens": used.input_tokens + used.output_tokens,
        }
        reply = openai.completion(text, usage=usage, pieces=8)
        return reply.over(self._seconds) if self._seconds else reply
