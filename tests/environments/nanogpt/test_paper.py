"""Every idea of the paper for nanoGPT can be patched in, trained and scored."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from assay.patching import apply_answer, check_codebase
from tests.environments.conftest import Bundled, Trained, TrainMany, Tree
from tests.environments.nanogpt.paper_ideas import IDEAS
from tests.environments.test_nanogpt import STEP, evaluate

pytestmark = pytest.mark.slow

PAPER = Path(__file__).with_name("paper")
# The whole schedule in 12 steps: warm-up, plateau and both phases have some.
STEPS, FLAGS = 12, ("--warmup_steps", "3")


def implemented(nanogpt: Bundled, name: str) -> Tree:
    """The codebase with the diff of an idea, having passed what runs before a training."""
    protected = nanogpt.environment.manifest.codebase.protected
    diff = (PAPER / f"{name}.diff").read_text()
    files = apply_answer(nanogpt.files, diff, protected=protected).files
    check_codebase(files, nanogpt.files, protected)
    for path, text in files.items():
        compile(text, f"{name}/{path}", "exec")
    assert files != nanogpt.files
    return files


def last_loss(trained: Trained) -> float:
    """The loss of the last training step, to the last bit."""
    lines = (trained.folder / "out" / "metrics.jsonl").read_text().splitlines()
    return float(json.loads(lines[-1])["train/loss"])


def test_every_idea_is_named_and_every_diff_is_an_idea() -> None:
    assert {path.stem for path in PAPER.glob("*.diff")} == set(IDEAS)


@pytest.mark.parametrize("kinds", [("top", "atomic"), ("failed", "collapse")], ids="-".join)
def test_ideas_train_and_are_scored_and_change_the_result(
    kinds: tuple[str, str],
    nanogpt: Bundled,
    train_many: TrainMany,
    nanogpt_data: Path,
    hardware_class: str,
) -> None:
    names = [name for name in IDEAS if name.startswith(kinds)]
    trees = {name: implemented(nanogpt, name) for name in names}
    trained = train_many({"baseline": nanogpt.files, **trees}, STEPS * STEP, flags=FLAGS)
    found = {}
    for name, result in trained.items():
        assert result.error is None, f"{name}\n{result.error}"
        outcome = evaluate(nanogpt, result, nanogpt_data, hardware_class, windows=64)
        assert outcome.metrics is not None, (name, outcome.failure)
        loss = outcome.metrics["val_loss"]
        assert math.isfinite(loss), name
        assert 0.45 < loss < math.log(256) + 0.1, name
        # Other code is asked at other secret positions; without their correction the same weights
        # have the same loss but for its rounding.
        found[name] = loss - outcome.metrics["val_loss/correction"], last_loss(result)
    baseline, curve = found.pop("baseline")
    for name, (loss, last) in found.items():
        # The weights that are saved differ, or training did before.
        assert abs(loss - baseline) > 3e-4 or last != curve, f"{name} changes nothing"
