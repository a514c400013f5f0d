"""A provider whose answers follow from a seed, the idea and the number of its revisions.

They do not depend on who asks, or how often. So it is known beforehand which ideas end in a
codebase, whatever happens to the process that asks.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from dataclasses import dataclass

from assay.llm import Usage
from tests.support.provider import openai
from tests.support.provider.counting import STEP_DIFF
from tests.support.provider.reply import Reply
from tests.support.provider.server import ProviderServer, Request

#: For how many ideas in a hundred each revision is the first that applies; for the rest, none is.
FITS = {0: 60, 1: 27, 2: 8}
SECONDS = 0.1, 0.4  # from the first to the last event of an answer
_STEP = re.compile(r"Take steps of ([\d.]+)\.\n")
_TRY = re.compile(r"^Try (\d+)\.")


@dataclass(frozen=True)
class Plan:
    """What a seed decides about ideas; an idea is named by its size of step."""

    seed: int

    def fits_at(self, idea: str) -> int | None:
        """Return the first revision whose diff applies; None if there is none."""
        drawn = random.Random(f"{self.seed} {idea}").uniform(0, 100)
        for revision, share in FITS.items():
            drawn -= share
            if drawn < 0:
                return revision
        return None

    def answer(self, idea: str, revision: int) -> tuple[str, str]:
        """Return the answer and its `finish_reason`."""
        fits = self.fits_at(idea)
        good = STEP_DIFF.format("0.6", idea)
        if fits is not None and revision >= fits:
            return f"Try {revision}.\n\n{good}", "stop"
        wrong = [
            (STEP_DIFF.format("99", idea), "stop"),
            (STEP_DIFF.format("0.6", f"({idea}"), "stop"),
            ("I would rather not.", "stop"),
            (good, "length"),
        ]
        text, reason = random.Random(f"{self.seed} {idea} {revision}").choice(wrong)
        return f"Try {revision}.\n\n{text}", reason


@dataclass(frozen=True)
class Asked:
    """A request, what it was for, and the usage that its answer reports."""

    request: Request
    idea: str
    revision: int
    usage: Usage


class SeededProvider(ProviderServer):
    """Streams the answers of a plan, and remembers what it was asked."""

    def __init__(self, seed: int) -> None:
        self.plan = Plan(seed)
        self.asked: list[Asked] = []
        self._times: Counter[tuple[str, int]] = Counter()
        super().__init__(self._stream_answer)

    def _stream_answer(self, request: Request) -> Reply:
        asked = self._understand(request)
        self.asked.append(asked)
        self._times[asked.idea, asked.revision] += 1
        key = f"{self.plan.seed} {asked.idea} {asked.revision}"
        text, reason = self.plan.answer(asked.idea, asked.revision)
        usage = {
            "prompt_tokens": asked.usage.all_input_tokens,
            "completion_tokens": asked.usage.output_tokens,
            "prompt_tokens_details": {"cached_tokens": asked.usage.cached_input_tokens},
        }
        times = self._times[asked.idea, asked.revision]
        seconds = random.Random(f"seconds {key} {times}").uniform(*SECONDS)
        return openai.completion(text, finish_reason=reason, usage=usage).over(seconds)

    def _understand(self, request: Request) -> Asked:
        (idea,) = set(_STEP.findall(request.texts("user")[0]))
        # A revision contains the answer that it is about, which says its number.
        tries = [_TRY.match(text) for text in request.texts("assistant")]
        revision = next((int(found[1]) + 1 for found in tries if found), 0)
        chance = random.Random(f"usage {self.plan.seed} {idea} {revision}")
        tokens = sum(map(len, request.texts())) // 4
        usage = Usage(tokens - tokens // 2, chance.randint(200, 900), tokens // 2)
        return Asked(request, idea, revision, usage)
