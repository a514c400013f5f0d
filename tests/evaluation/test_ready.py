"""A predictor says that it is ready before anything runs that an idea may edit."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from assay.domain.failure_codes import FailureCode
from assay.environments.vendored import vendored_files
from assay.evaluation import Evaluation, EvaluationRequest, InvalidAnswer, Rejection
from assay.evaluation.predictor import Predictor
from assay.sandbox import Limits, SandboxSettings

PREDICT = """
import os, time
def burn(seconds):
    start = time.process_time()
    while time.process_time() - start < seconds:
        pass
TOP
class Answers:
    def __init__(self, word):
        self.word = word
    def double(self, x, plus):
        print("noise")
        return {"y": x * 2 + plus, "word": self.word}
def load(folder, device):
    import helper
    assert device == "cpu" and os.path.isdir(folder)
    return Answers(helper.WORD)
"""
HELPER = """
import numpy as np
WORD = np.frombuffer(b"hi", np.uint8)
"""
EXPECT = {"y": ("float32", (2, 3)), "word": ("uint8", (2,))}
X = np.arange(6, dtype=np.float32).reshape(2, 3)
Run = Callable[..., Evaluation]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """An evaluation of a codebase that the shared predictor starts."""
    for name in ("codebase", "artifact", "held_out", "scratch"):
        (tmp_path / name).mkdir()

    def make(
        top: str = "", helper: str = HELPER, seconds: float = 30.0, **files: str
    ) -> Evaluation:
        made = {"predict": PREDICT.replace("TOP", top), "helper": helper, **files}
        made.setdefault(
            "assay_predictor", vendored_files()["codebase/assay_predictor.py"].decode()
        )
        for name, text in made.items():
            (tmp_path / "codebase" / f"{name}.py").write_text(text)
        request = EvaluationRequest(
            environment_dir=tmp_path,
            config={},
            predict=("python", "-I", "assay_predictor.py"),
            codebase_dir=tmp_path / "codebase",
            artifact_dir=tmp_path / "artifact",
            held_out=tmp_path / "held_out",
            seed=1,
            metric_name="m",
            sandbox=SandboxSettings("subprocess", scratch=tmp_path / "scratch"),
            limits=Limits(wall_seconds=seconds, memory_bytes=1 << 30),
            seconds=seconds,
            profile="tiny",
            hardware_class="cpu",
        )
        return Evaluation.begin(dataclasses.replace(request, seconds=seconds))

    return make


def ask(predictor: Predictor, **more: Any) -> dict[str, np.ndarray]:
    return predictor.ask("double", {"x": X}, EXPECT, **({"plus": 1} | more))


def refused(evaluation: Evaluation) -> InvalidAnswer:
    with pytest.raises(InvalidAnswer) as error, evaluation.predictor() as predictor:
        ask(predictor, reveals=False)
    return error.value


def test_a_user_writes_load_and_answers(run: Run, tmp_path: Path) -> None:
    with run().predictor() as predictor:
        for plus in (1, 2):
            answer = ask(predictor, plus=plus)
            np.testing.assert_array_equal(answer["y"], X * 2 + plus)
            assert answer["word"].tobytes() == b"hi"
    assert not (tmp_path / "codebase" / "__pycache__").exists()


def test_cpu_time_is_told_apart_at_ready(run: Run) -> None:
    evaluation = run(top="burn(1.0)", helper="from predict import burn\nburn(0.5)\n" + HELPER)
    with evaluation.predictor() as predictor:
        assert predictor.started_cpu_seconds is not None
        assert predictor.started_cpu_seconds >= 0.9
        ask(predictor)
    (total,), (starting,), (answering,) = (
        evaluation.cpu.total,
        evaluation.cpu.starting,
        evaluation.cpu.answering,
    )
    assert starting == predictor.started_cpu_seconds
    assert answering == pytest.approx(total - starting)
    assert answering >= 0.4
    assert evaluation.predictor_cpu_seconds == [total]


def test_nothing_of_the_codebase_runs_before_the_first_question(run: Run, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    evaluation = run(helper=f"open({str(mark)!r}, 'w').close()\n" + HELPER)
    with evaluation.predictor():
        time.sleep(0.5)
        assert not mark.exists()
    assert not mark.exists()
    assert evaluation.cpu.answering[0] < 0.4
    with evaluation.predictor() as predictor:
        ask(predictor)
    assert mark.exists()


def test_a_file_of_the_codebase_is_not_found_before(run: Run) -> None:
    invalid = refused(run(top="import helper"))
    assert invalid.message == Rejection.DIED_AT_START.sentence
    assert "No module named 'helper'" in invalid.detail


def test_no_file_of_the_codebase_stands_in_for_a_library(run: Run) -> None:
    names = ("json", "struct", "numpy", "types", "random", "predict_json")
    helper = "import random\n" + HELPER
    fakes = dict.fromkeys(names, "raise SystemExit('shadowed')\n")
    with run(helper=helper, **fakes).predictor() as predictor:
        ask(predictor)


OWN = "import sys, time\nout = sys.stdout.buffer\n"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("out.write(b'ASSY' + bytes([12, 0, 0, 0]) + b'{\"op\": \"go\"}')", Rejection.NOT_READY),
        ("out.write(b'ASSY' + bytes([10, 0, 0, 0]) + b'{\"seq\": 1}')", Rejection.NOT_READY),
        ("out.write(b'ASSY' + bytes([2, 0, 0, 0]) + b'[]')", Rejection.MALFORMED_FRAME),
        ("out.write(b'ready' * 9)", Rejection.MALFORMED_FRAME),
        ("out.write(b'ASSY' + bytes([0, 0, 0, 9]))", Rejection.LARGE_HEADER),
        (
            "out.write(b'ASSY' + bytes([15, 0, 0, 0]) + b'{\"op\": \"ready\"}' + b'more')",
            Rejection.EARLY_ANSWER,
        ),
        ("sys.exit(0)", Rejection.DIED_AT_START),
    ],
)
def test_another_beginning_is_rejected(run: Run, code: str, expected: Rejection) -> None:
    own = OWN + code + "\nout.flush()\nsys.stdin.read()\n"
    invalid = refused(run(assay_predictor=own))
    assert invalid.message == expected.sentence


def test_a_predictor_that_only_waits_runs_into_the_deadline(run: Run) -> None:
    evaluation = run(assay_predictor=OWN + "sys.stdin.read()\n", seconds=4.0)
    assert refused(evaluation).code is FailureCode.TIMEOUT
    assert evaluation.cpu.starting == evaluation.cpu.answering == []
    assert len(evaluation.cpu.total) == 1


def test_it_says_how_to_be_started(run: Run) -> None:
    request = run().request
    changed = dataclasses.replace(request, predict=("python", "assay_predictor.py"))
    invalid = refused(Evaluation.begin(dataclasses.replace(changed, seconds=20)))
    assert "python -I assay_predictor.py" in invalid.detail
