"""Every idea of the paper for GRPO can be patched in, trained and scored."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from assay.domain.states import MeasurementKind
from assay.environments.bundle import write_tree
from assay.patching import apply_answer, check_codebase
from tests.environments.conftest import Bundled, Tree
from tests.environments.grpo.conftest import variables
from tests.environments.grpo.paper_ideas import IDEAS
from tests.environments.grpo.test_training import evaluate

pytestmark = pytest.mark.slow

PAPER = Path(__file__).with_name("paper")
# In the third step what earlier ones remember (buffers, running means) has an effect.
FLAGS = ("--steps", "3", "--checkpoints", "1", "--prompts_per_step", "16", "--batch_size", "32")
PROBLEMS = 200
SCORES = ("accuracy", "sealed_accuracy", "sealed_accuracy/sampled")


def implemented(grpo: Bundled, name: str) -> Tree:
    """The codebase with the diff of an idea, having passed what runs before a training."""
    baseline, protected = grpo.environment.codebase, grpo.environment.manifest.codebase.protected
    diff = (PAPER / f"{name}.diff").read_text()
    files = apply_answer(baseline, diff, protected=protected).files
    check_codebase(files, baseline, protected)
    for path, text in files.items():
        if path.endswith(".py"):
            compile(text, f"{name}/{path}", "exec")
    return files


@pytest.fixture(scope="module")
def fewer_problems(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fewer") / "data"
    shutil.copytree(data, folder)
    for split in ("search", "sealed"):
        path = folder / split / "problems.jsonl"
        rows = path.read_text().splitlines(keepends=True)
        path.write_text("".join(rows[:PROBLEMS]))
    return folder


def test_every_idea_is_named_and_every_diff_is_an_idea() -> None:
    assert {path.stem for path in PAPER.glob("*.diff")} == set(IDEAS)


@pytest.fixture(scope="module")
def trained(grpo: Bundled, fewer_problems: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `code` and `out` for the baseline and every idea."""
    folder = tmp_path_factory.mktemp("ideas")
    trees = {"baseline": grpo.environment.codebase}
    trees |= {name: implemented(grpo, name) for name in IDEAS}
    for name, files in trees.items():
        write_tree({path: text.encode() for path, text in files.items()}, folder / name / "code")
        (folder / name / "out").mkdir()
    driver, folders = Path(__file__).with_name("train_forks.py"), [str(folder / n) for n in trees]
    done = subprocess.run(
        [sys.executable, str(driver), *folders, "--", *FLAGS],
        env=variables(fewer_problems / "train", folder, 0),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    errors = json.loads(done.stdout.splitlines()[-1])
    assert not any(errors.values()), [error for error in errors.values() if error]
    return folder


def score(grpo: Bundled, data: Path, folder: Path) -> tuple[float, ...]:
    out, code = folder / "out", folder / "code"
    outcome = evaluate(grpo, data, out, code, MeasurementKind.CONFIRM, samples=1)
    assert outcome.metrics is not None, outcome.failure
    return tuple(outcome.metrics[name] for name in SCORES)


@pytest.fixture(scope="module")
def baseline(grpo: Bundled, fewer_problems: Path, trained: Path) -> tuple[float, ...]:
    return score(grpo, fewer_problems, trained / "baseline")


# Each score starts a predictor. All ideas are trained, and the last test tells their weights
# apart.
@pytest.mark.parametrize("name", list(IDEAS)[::3])
def test_an_idea_is_scored_and_changes_the_result(
    name: str, grpo: Bundled, fewer_problems: Path, trained: Path, baseline: tuple[float, ...]
) -> None:
    scores = score(grpo, fewer_problems, trained / name)
    # Three steps: some ideas have hardly begun to recover from a new prompt, and none knows all.
    assert all(0.0 <= value < 1.0 for value in scores), scores
    assert max(scores) > 0.01, scores
    assert scores != baseline


def test_no_two_ideas_come_to_the_same_weights(trained: Path) -> None:
    """A rate or a loss that goes with an idea does not hide that the idea itself does nothing."""
    file = Path("out", "checkpoints", "01", "model.safetensors")
    weights = {(trained / name / file).read_bytes() for name in ("baseline", *IDEAS)}
    assert len(weights) == 1 + len(IDEAS)
