"""Prompts of the ideator for `nanogpt` tiny as files, to be read in reviews.

    .venv/bin/python -m tests.search.golden_prompts     # write them anew after a change

`test_golden_prompts.py` compares. Of the codebase only the beginning of each file is kept.
"""

from __future__ import annotations

import asyncio
import re
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from assay.contracts.environment import EnvironmentBody
from assay.environments.catalog import Catalog
from assay.llm import Completion, IdeaText, ModelIdeator, ModelName, Prompt, Usage, format_idea
from assay.llm.ideation import Baseline, CurveEnd, Standing, Trajectory
from assay.search import Ask, Situation, open_strategy
from assay.search.ask import Setting
from services.implementer.views.environments import environment_bodies
from tests.support.databases import sqlite_database

FOLDER = Path(__file__).parent / "golden"
OPERATORS = ("seed", "tried", "exploit", "explore", "refine", "combine", "ablate", "rescue")
_BASELINE = Baseline(1.3617, 0.0132, 20)
_IDEA = format_idea(IdeaText("Something else.", "In `model.py`, do it."))
#: Lines of each file of the codebase that are kept.
_KEPT = 1


def _tried(number: int, text: str, change: str, **more: object) -> Trajectory:
    fields: dict[str, object] = {
        "id": f"exp_{number:04d}",
        "epoch": 0,
        "position": number,
        "idea_text": format_idea(IdeaText(text, change)),
        "reward": 0.0,
        "state": "failed",
        "operator": "seed",
    }
    return Trajectory(**{**fields, **more})  # type: ignore[arg-type]


def _scored(loss: float, verdict: str, **more: object) -> dict[str, object]:
    return {
        "state": "succeeded",
        "metric": loss,
        "reward": 1 / loss,
        "seeds": 1,
        "seconds": 14.0,
        "standing": Standing(verdict, _BASELINE),
        "curve": CurveEnd(
            "train/loss", ((260.0, loss + 0.03), (270.0, loss + 0.01), (280.0, loss))
        ),
        **more,
    }


TRIED = (
    _tried(
        1,
        "Share one matrix between query and key.",
        "In `Attention` of model.py, drop `self.k`.",
        **_scored(1.2911, "better"),
        source="by people, in batch bat_0001",
        epoch=-1,
        elsewhere="measured on another version of the environment (nanogpt@0123456789ab)",
    ),
    _tried(
        2,
        "Raise the learning rate.",
        "In `Tiny` of config.py, set `learning_rate` to 0.006.",
        **_scored(1.3204, "better", diff="--- a/config.py\n+++ b/config.py\n…\n"),
    ),
    _tried(
        3,
        "Halve the width of the MLP.",
        "In `Tiny` of config.py, set `mlp_ratio` to 2.",
        **_scored(1.4294, "worse", diff="--- a/config.py\n+++ b/config.py\n…\n"),
    ),
    _tried(
        4,
        "Add dropout of 0.5 after attention.",
        "In `Attention.forward` of model.py, apply `F.dropout`.",
        failure="train (crashed): RuntimeError: mat1 and mat2 shapes cannot be multiplied",
    ),
    _tried(
        5,
        "Rename a variable.",
        "In train.py, call the clock `watch`.",
        **_scored(1.3617, "identical", epoch=1, operator="exploit", parents=("exp_0002",)),
    ),
)


#: What is not told of ideas that were only submitted.
_UNTOLD: dict[str, Any] = {
    "state": "submitted", "metric": None, "reward": 0.0, "seeds": 0, "seconds": None,
    "standing": None, "curve": None, "diff": "",
}  # fmt: skip


def prompts() -> dict[str, str]:
    """Return the text of each operator's prompt: epoch 0, and what follows two epochs.

    `tried` is what best-of-n asks once it has had ideas.
    """
    files = Catalog().get("nanogpt").codebase
    setting = Setting(_environment(), "tiny", files, seed=7)
    strategy = open_strategy("evolution")
    found: dict[str, str] = {}
    for situation in (Situation(0, 4, 7), Situation(2, 4, 7, TRIED, 1 / _BASELINE.mean)):
        asks = list(strategy.plan(situation))
        for ask in asks + (_builds() if situation.epoch else []):
            baseline = _BASELINE if situation.epoch else None
            found[ask.operator] = _asked(setting, ask, baseline)
    untold = tuple(replace(past, **_UNTOLD) for past in TRIED[1:3])
    found["tried"] = _asked(setting, Ask("seed", 2, 7, untold), None)
    return found


def _builds() -> list[Ask]:
    """A question of each operator that only asynchronous strategies use."""
    promising, single = (TRIED[1], TRIED[4]), (TRIED[1],)
    return [
        Ask("refine", 2, 7, TRIED, promising),
        Ask("combine", 2, 7, TRIED, promising),
        Ask("ablate", 2, 7, TRIED, single),
        Ask("rescue", 2, 7, TRIED, (TRIED[3],)),
    ]


def _asked(setting: Setting, ask: Ask, baseline: Baseline | None) -> str:
    model = _Keeps()
    request = setting.request(ask, ask.count, ask.seed, baseline)
    asyncio.run(ModelIdeator(model, spare_calls=0).propose(request))
    return render(model.prompts[0])


def render(prompt: Prompt) -> str:
    """Return a prompt as text, with a line in front of each part that is cached on its own."""
    parts = [("system", prompt.system), *(("cached", part) for part in prompt.cached_parts)]
    parts += [(message.role, message.text) for message in prompt.messages]
    return "\n\n".join(f"##### {name}\n{_shortened(text)}" for name, text in parts) + "\n"


def _shortened(text: str) -> str:
    """The text with the files of the codebase cut."""

    def cut(match: re.Match[str]) -> str:
        lines = match[0].split("\n")
        left = len(lines) - 1 - _KEPT
        return "\n".join([*lines[: _KEPT + 1], f"[… {'more' if left > 0 else 'no more'} lines]"])

    return re.sub(r"^=== \S+\n(?: *\d+\t.*(?:\n|\Z))*", cut, text, flags=re.MULTILINE)


class _Keeps:
    """A model that keeps the prompt."""

    name = ModelName.parse("anthropic:claude-opus-4-5")
    takes_temperature = True

    def __init__(self) -> None:
        self.prompts: list[Prompt] = []

    async def complete(self, prompt: Prompt, **_: object) -> Completion:
        self.prompts.append(prompt)
        return Completion(_IDEA, "", "end", Usage(), "m")

    async def aclose(self) -> None:
        return None


def _environment() -> EnvironmentBody:
    with tempfile.TemporaryDirectory() as folder:
        db = sqlite_database(Path(folder) / "golden.db")
        with db.read() as session:
            (body,) = environment_bodies(session, [Catalog().get("nanogpt")])
    return body


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for operator, text in prompts().items():
        (FOLDER / f"nanogpt_tiny_{operator}.txt").write_text(text, encoding="utf-8")
