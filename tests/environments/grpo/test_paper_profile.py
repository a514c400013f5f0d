"""The path of `paper` on a CPU: MATH rows and a Qwen2 folder of one's own, r1_zero, math-verify.

The weights are random and small, so every answer is wrong: what is tested is that the same files
that train Qwen2.5-Math-1.5B go from data to a scored result.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from assay.domain.states import MeasurementKind
from assay.environments.bundle import read_tree, write_tree
from assay.environments.catalog import Environment
from assay.environments.prepare import prepare_data
from assay.evaluation import Evaluation, EvaluationRequest
from assay.sandbox import Limits, SandboxSettings
from tests.environments.grpo.conftest import ENVIRONMENT
from tests.support.measuring import Bench

pytestmark = pytest.mark.slow

NAME = "Qwen2.5-Math-1.5B"
SMALL = (
    "--steps 2 --prompts_per_step 2 --group_size 2 --batch_size 4 --microbatch_size 2 "
    "--max_new_tokens 6 --checkpoints 2 --reserve_seconds 1"
)


@pytest.fixture
def own_environment(tmp_path: Path) -> Environment:
    """The environment with few problems, and flags for a small training."""
    folder = tmp_path / "environments" / "grpo"
    write_tree(read_tree(ENVIRONMENT), folder)
    manifest = (folder / "environment.toml").read_text()
    head, paper = manifest.split("[profiles.paper]")
    for old, new in (
        ("gpus = 1", "gpus = 0"),
        ("cpus = 8", "cpus = 1"),
        ("cpus = 2", "cpus = 1"),  # of its smoke
        ("train = 7500", "train = 12"),
        ("sealed = 500", "sealed = 5"),
        ("probe = 500", "probe = 6"),
        ("samples = 4", "samples = 2"),
        ("max_new_tokens = 1024", "max_new_tokens = 6"),
    ):
        assert paper.count(old) == 1, old
        paper = paper.replace(old, new)
    (folder / "environment.toml").write_text(f"{head}[profiles.paper]{paper}")
    launch = (folder / "codebase" / "launch.py").read_text()
    assert launch.count("FLAGS = []") == 1
    flags = launch.replace("FLAGS = []", f"FLAGS = {SMALL.split()!r}")
    (folder / "codebase" / "launch.py").write_text(flags)
    return Environment.load(folder)


@pytest.fixture
def datasets(tmp_path: Path, code: Any) -> Path:
    """What a user puts into $ASSAY_DATASETS: the problems and the model."""
    folder = tmp_path / "datasets"
    (folder / "math").mkdir(parents=True)
    for split, count in (("train", 17), ("test", 8)):
        rows = [
            {"problem": f"Write {split} {i} as a fraction.", "answer": f"\\frac{{{i}}}{{2}}"}
            for i in range(1, count + 1)
        ]
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / "math" / f"{split}.jsonl").write_text(text)
    tokenizer = byte_tokenizer()
    shape = code.model.ModelConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    code.model.save(
        code.model.Model(shape), str(folder / NAME), [("tokenizer.json", tokenizer.to_str())]
    )
    return folder


def byte_tokenizer() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def test_from_problems_to_a_scored_result(
    own_environment: Environment,
    datasets: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ASSAY_DATASETS", str(datasets))
    data = prepare_data(own_environment, "paper", tmp_path / "cache", held_out_key="k")
    counts = {
        str(p.relative_to(data)): len(p.read_text().splitlines()) for p in data.rglob("*.jsonl")
    }
    assert counts == {
        "train/problems.jsonl": 12,
        "search/problems.jsonl": 8,
        "sealed/problems.jsonl": 5,
        "sealed/probe.jsonl": 6,
    }
    (tmp_path / "scratch").mkdir()
    settings = SandboxSettings("subprocess", scratch=tmp_path / "scratch")
    bench = Bench(own_environment, "paper", data, "cpu", settings)
    ordinary = {
        "accuracy",
        "accuracy/01",
        "accuracy/02",
        "accuracy/sampled",
        "accuracy/se",
        "best_checkpoint",
    }
    sealed = {
        "sealed_accuracy",
        "sealed_accuracy/sampled",
        "sealed_accuracy/se",
        "probe_accuracy",
    }
    for kind, names in (("confirm", ordinary | sealed), ("score", ordinary)):
        result = bench.measure(bench.baseline, 0, MeasurementKind(kind))
        assert result.error == ""
        assert result.metrics["accuracy"] == 0.0
        assert set(result.metrics) == names


def test_math_verify_grades_in_a_sandbox(tmp_path: Path, grader: Any) -> None:
    """What plain comparison cannot decide, decided by the environment's own grader."""
    (tmp_path / "codebase").mkdir()
    nowhere = tmp_path / "codebase"
    request = EvaluationRequest(
        environment_dir=ENVIRONMENT,
        config={"grader": "grade.py"},
        predict=None,
        codebase_dir=nowhere,
        artifact_dir=nowhere,
        held_out=nowhere,
        seed=0,
        metric_name="accuracy",
        sandbox=SandboxSettings("subprocess", scratch=tmp_path),
        limits=Limits(wall_seconds=120, memory_bytes=4 << 30),
        seconds=120.0,
        profile="paper",
        hardware_class="cpu",
    )
    run = Evaluation.begin(replace(request, seconds=120))
    references = ["\\frac{1}{2}", "x^2+1", "(0, \\frac{\\pi}{2})", "3\\sqrt{2}", "\\{1, 2\\}", "7"]
    answers = ["0.5", "1 + x^2", "(0, \\pi/2)", "4\\sqrt{2}", "9**9**9**9", "7"]
    texts = [f"so</think> <answer>{answer}</answer>" for answer in answers]
    assert grader.grade(run, texts, references) == [1.0, 1.0, 1.0, 0.0, 0.0, 1.0]


def test_weights_that_are_missing_end_the_preparation(
    own_environment: Environment, datasets: Path, tmp_path: Path
) -> None:
    shutil.rmtree(datasets / NAME)
    complete = tmp_path / "complete"
    write_tree(own_environment.files, complete)
    done = subprocess.run(
        [sys.executable, "prepare.py", "--profile", "paper", "--out", str(tmp_path / "out")],
        cwd=complete,
        env=os.environ
        | {
            "ASSAY_DATASETS": str(datasets),
            "HF_ENDPOINT": "http://127.0.0.1:9",
            "HF_HOME": str(tmp_path / "hub"),
            "PYTHONDONTWRITEBYTECODE": "1",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "Set HF_ENDPOINT to a mirror, or ASSAY_DATASETS to a folder that holds" in done.stderr
