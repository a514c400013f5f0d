"""Answers that a language model wrote to the real prompts, having seen nothing else.

`blind/seed.md`, `exploit.md` and `explore.md` answer the prompts of which `tests/search/golden`
shows the beginning of each file; `blind/edit_NN.md` answers the executor's prompt for each of the
ten ideas. All were written before any was tried, and none was corrected. They show whether a model
that has the prompt alone knows the form, and which code the profile `tiny` executes.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from assay.llm import read_answer
from assay.patching import apply_answer, check_codebase
from services.implementer.canonical import canonical
from tests.environments.conftest import Bundled, Trained, TrainMany, Tree
from tests.environments.test_nanogpt import STEP

ANSWERS = Path(__file__).with_name("blind")
#: How many ideas each prompt asked for.
ASKED = {"seed": 4, "exploit": 3, "explore": 3}
EDITS = sorted(path.stem for path in ANSWERS.glob("edit_*.md"))
#: The whole schedule in 6 steps, the last fifth of which has some.
STEPS, FLAGS = 6, ("--warmup_steps", "2")


def implemented(nanogpt: Bundled, name: str) -> Tree:
    """The codebase with an edit, having passed what runs before a training."""
    protected = nanogpt.environment.manifest.codebase.protected
    answer = (ANSWERS / f"{name}.md").read_text(encoding="utf-8")
    files = apply_answer(nanogpt.files, answer, protected=protected).files
    check_codebase(files, nanogpt.files, protected)
    return files


@pytest.mark.parametrize("operator", ASKED)
def test_every_idea_is_read(operator: str) -> None:
    found = read_answer((ANSWERS / f"{operator}.md").read_text(encoding="utf-8"))
    assert (len(found.ideas), found.unread) == (ASKED[operator], ())
    named = {"Parents: exp_0002" in each.idea.experiment for each in found.ideas}
    assert named == {operator == "exploit"}


def test_every_idea_has_an_edit() -> None:
    assert len(EDITS) == sum(ASKED.values()) == 10


@pytest.mark.parametrize("name", EDITS)
def test_every_edit_applies_and_changes_the_code(nanogpt: Bundled, name: str) -> None:
    files = implemented(nanogpt, name)
    for path, text in files.items():
        compile(text, f"{name}/{path}", "exec")
    assert canonical(files, nanogpt.files) != canonical(nanogpt.files, nanogpt.files)


@pytest.mark.slow
def test_edits_change_what_the_profile_trains(nanogpt: Bundled, train_many: TrainMany) -> None:
    elsewhere = dict(nanogpt.files)
    elsewhere["config.py"] = elsewhere["config.py"].replace(
        "    learning_rate: float = 0.0015\n", "    learning_rate: float = 0.5\n"
    )
    assert elsewhere != nanogpt.files
    trees = {name: implemented(nanogpt, name) for name in EDITS}
    trained = train_many(
        {"baseline": nanogpt.files, "elsewhere": elsewhere, **trees}, STEPS * STEP, flags=FLAGS
    )
    assert {name: result.error for name, result in trained.items() if result.error} == {}
    baseline = _made(trained.pop("baseline"))
    assert _made(trained.pop("elsewhere")) == baseline, "an edit of what `tiny` does not use"
    assert [name for name, result in trained.items() if _made(result) == baseline] == []
    assert max(result.checks["future"] for result in trained.values()) < 1e-2


def _made(result: Trained) -> tuple[str, list[float]]:
    """The weights that a training left, and its losses."""
    lines = (result.folder / "out" / "metrics.jsonl").read_text().splitlines()
    points = [json.loads(line) for line in lines]
    return result.checks["weights"], [p["train/loss"] for p in points if "train/loss" in p]
