"""The `toy` environment: milliseconds per experiment, noisy, and better than chance to improve."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from statistics import fmean, stdev

import pytest

from assay.environments.prepare import prepare_data
from assay.evaluation import EvaluationOutcome, EvaluationRequest, evaluate_artifact
from assay.sandbox import Limits, SandboxSettings
from tests.environments.conftest import Bundled, Tree


@pytest.fixture(scope="module")
def data(toy: Bundled, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare_data(toy.environment, "tiny", tmp_path_factory.mktemp("toy"))


class Lab:
    """Executes and scores codebases of the toy environment."""

    def __init__(self, toy: Bundled, data: Path, folder: Path) -> None:
        self.toy, self.data, self.folder = toy, data, folder
        self.out = folder / "out"
        self.out.mkdir()
        self.config = folder / "config.json"
        profile = toy.environment.profile("tiny")
        self.config.write_text(json.dumps({**profile.config, "budget": {"seconds": 20}}))

    def train(self, tree: Tree, seed: int) -> subprocess.CompletedProcess[str]:
        for path, text in tree.items():
            (self.folder / path).write_text(text)
        for left in self.out.iterdir():
            left.unlink()
        return subprocess.run(
            [sys.executable, "search.py"],
            cwd=self.folder,
            env={
                "PATH": os.environ["PATH"],
                "ASSAY_DATA": str(self.data / "train"),
                "ASSAY_OUT": str(self.out),
                "ASSAY_CONFIG": str(self.config),
                "ASSAY_SEED": str(seed),
            },
            capture_output=True,
            text=True,
            check=False,
        )

    def evaluate(self, split: str = "search") -> EvaluationOutcome:
        environment = self.toy.environment
        profile = environment.profile("tiny")
        return evaluate_artifact(
            EvaluationRequest(
                environment_dir=environment.folder,
                config=profile.config,
                predict=environment.manifest.entry_points.predict,
                codebase_dir=self.folder,
                artifact_dir=self.out,
                held_out=self.data / split,
                seed=0,
                metric_name=environment.manifest.metric.name,
                sandbox=SandboxSettings("subprocess", scratch=self.folder),
                limits=Limits(wall_seconds=10, memory_bytes=1 << 28),
                seconds=10.0,
                profile="tiny",
                hardware_class="cpu-fp32",
            )
        )

    def score(self, tree: Tree, seed: int) -> float:
        done = self.train(tree, seed)
        assert done.returncode == 0, done.stderr
        outcome = self.evaluate()
        assert outcome.metrics is not None, outcome.failure
        return outcome.metrics["score"]


@pytest.fixture
def lab(toy: Bundled, data: Path, tmp_path: Path) -> Lab:
    return Lab(toy, data, tmp_path)


def test_the_same_seed_gives_the_same_score_and_others_do_not(lab: Lab) -> None:
    scores = [lab.score(lab.toy.files, seed) for seed in (0, 0, 1, 2, 3)]
    assert scores[0] == scores[1]
    assert len(set(scores)) == 4
    assert 0.02 < stdev(scores) < 0.3
    assert all(0 < s < 1 for s in scores)


def test_every_recipe_does_what_it_says(lab: Lab) -> None:
    for name in lab.toy.names("edit"):
        assert 0 < lab.score(lab.toy.apply(name), 0) < 1, name
    for name in lab.toy.names("crash"):
        done = lab.train(lab.toy.apply(name), 0)
        assert done.returncode != 0, name
        assert "AttributeError" in done.stderr
        assert lab.evaluate().failure is not None


def test_ideas_can_be_better_and_worse_than_the_baseline(lab: Lab) -> None:
    seeds = range(6)
    baseline = fmean(lab.score(lab.toy.files, s) for s in seeds)
    better = fmean(lab.score(lab.toy.apply("decaying_step"), s) for s in seeds)
    worse = fmean(lab.score(lab.toy.apply("blurred_answer"), s) for s in seeds)
    assert worse + 0.1 < baseline < better - 0.1


def test_the_bottom_that_the_search_sees_is_not_the_one_that_scores(lab: Lab, data: Path) -> None:
    seen = json.loads((data / "train" / "landscape.json").read_text())["bottom"]
    bound = lab.toy.environment.manifest.metric.bound
    assert bound is not None
    for split in ("search", "sealed"):
        (lab.out / "answer.json").write_text(json.dumps({"x": seen}))
        metrics = lab.evaluate(split).metrics
        assert metrics is not None
        assert 0.9 < metrics["score"] < bound


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (None, "missing_artifact"),
        ("{", "wrong_type"),
        ("[1, 2, 3, 4, 5, 6]", "wrong_shape"),
        ('{"x": [1, 2]}', "wrong_shape"),
        ('{"x": "123456"}', "wrong_shape"),
        ('{"x": [1, 2, 3, 4, 5, "6"]}', "wrong_type"),
        ('{"x": [1, 2, 3, 4, 5, true]}', "wrong_type"),
        ('{"x": [1, 2, 3, 4, 5, NaN]}', "not_finite"),
        ('{"x": [1, 2, 3, 4, 5, 1e300]}', "not_finite"),
        ('{"x": [1, 2, 3, 4, 5, ' + "9" * 400 + "]}", "not_finite"),
        ('{"x": [1, 2, 3, 4, 5, 6], "pad": "' + "x" * 20_000 + '"}', "oversized"),
    ],
)
def test_answers_that_do_not_count(lab: Lab, answer: str | None, code: str) -> None:
    if answer is not None:
        (lab.out / "answer.json").write_text(answer)
    failure = lab.evaluate().failure
    assert failure is not None
    assert failure.code == code


def test_an_experiment_takes_milliseconds(lab: Lab) -> None:
    durations = []
    for seed in range(8):
        started = cpu_seconds_of_children()
        lab.train(lab.toy.files, seed)
        durations.append(cpu_seconds_of_children() - started)
    # About 17 ms, most of it the interpreter; of the processor, because others may be at work.
    assert min(durations) < 0.2


def cpu_seconds_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_the_curve_can_be_read(lab: Lab) -> None:
    lab.train(lab.toy.files, 0)
    points = [json.loads(line) for line in (lab.out / "metrics.jsonl").read_text().splitlines()]
    heights = [p["train/height"] for p in points]
    assert len(points) >= 3
    assert heights == sorted(heights, reverse=True)
