"""Which problems an evaluation asks: a confirmation those of sealed/, too, and no other one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from assay.domain.states import MeasurementKind
from assay.evaluation import Evaluation, EvaluationRequest
from assay.evaluation.checkpoints import Checkpoint
from assay.sandbox import Limits, SandboxSettings
from services.worker.scoring import Splits
from tests.environments.conftest import Bundled

#: In each file of problems one, which adds 1 to this number.
FILES = {
    "search/problems.jsonl": 100,
    "sealed/problems.jsonl": 200,
    "sealed/probe.jsonl": 300,
}
ORDINARY = {
    "accuracy",
    "accuracy/01",
    "accuracy/02",
    "accuracy/se",
    "accuracy/sampled",
    "best_checkpoint",
}
CONFIRMED = {
    "sealed_accuracy",
    "sealed_accuracy/se",
    "sealed_accuracy/sampled",
    "probe_accuracy",
}


@dataclass
class Asked(Evaluation):
    """An evaluation whose checkpoint 02 adds numbers rightly, and whose checkpoint 01 does not."""

    asked: set[tuple[str, int]] = field(default_factory=set)

    def predictor(self, checkpoint: str | None = None) -> AbstractContextManager[Any]:
        return nullcontext()

    def ask_questions(self, questions: Sequence[str], **_: Any) -> tuple[str | None, ...]:
        answers = []
        for question in questions:
            checkpoint, number = question[:2], int(question.split("\n")[1].split("+")[0])
            self.asked.add((checkpoint, number))
            answer = number + 1 if checkpoint == "02" else 0
            answers.append(f"so</think> <answer>{answer}</answer>")
        return tuple(answers)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    for name, number in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        row = {"problem": f"{number}+1", "answer": str(number + 1)}
        (tmp_path / name).write_text(json.dumps(row))
    start, out = tmp_path / "search" / "model", tmp_path / "out" / "checkpoints"
    for folder, shape in ((start, "shape"), (out / "01", "config"), (out / "02", "config")):
        folder.mkdir(parents=True)
        (folder / "tokenizer.json").write_text("{}")
        (folder / f"{shape}.json").write_text('{"hidden_size": 8}')
    return tmp_path


def asked(grpo: Bundled, data: Path, kind: MeasurementKind) -> Asked:
    spec, config = grpo.environment.manifest.metric, grpo.environment.profile("tiny").config
    splits = Splits.of(spec, data, kind)
    return Asked.begin(
        EvaluationRequest(
            environment_dir=grpo.environment.folder,
            config={**config, "checkpoints": 2},
            predict=("predict.py",),
            codebase_dir=data,
            artifact_dir=data / "out",
            held_out=splits.held_out,
            sealed=splits.sealed,
            checkpoints=(Checkpoint("01", 1.0, ""), Checkpoint("02", 2.0, "")),
            seed=0,
            metric_name=splits.metric,
            sandbox=SandboxSettings("subprocess", scratch=data),
            limits=Limits(wall_seconds=9, memory_bytes=1 << 28),
            seconds=9.0,
            profile="tiny",
            hardware_class="cpu",
        )
    )


def test_an_ordinary_evaluation_asks_nothing_of_the_sealed_split(
    grpo: Bundled, grader: Any, data: Path
) -> None:
    run = asked(grpo, data, MeasurementKind.SCORE)
    metrics = grader.evaluate(run)
    assert set(metrics) == ORDINARY
    assert run.asked == {("01", 100), ("02", 100)}
    assert (run.request.metric_name, metrics["accuracy"]) == ("accuracy", 1.0)


def test_a_confirmation_asks_it_of_the_best_checkpoint(
    grpo: Bundled, grader: Any, data: Path
) -> None:
    run = asked(grpo, data, MeasurementKind.CONFIRM)
    metrics = grader.evaluate(run)
    assert set(metrics) == ORDINARY | CONFIRMED
    assert run.asked == {("01", 100), ("02", 100), ("02", 200), ("02", 300)}
    assert (run.request.metric_name, metrics["sealed_accuracy"]) == ("sealed_accuracy", 1.0)
    assert run.kept == {"02"}
