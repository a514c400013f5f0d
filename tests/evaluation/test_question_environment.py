"""An environment of questions, from end to end: a predictor answers, a sandbox grades."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from assay.domain.failure_codes import FailureCode
from assay.evaluation import EvaluationOutcome, EvaluationRequest, evaluate_artifact
from assay.sandbox import Limits, SandboxSettings
from tests.evaluation.conftest import PREAMBLE
from tests.evaluation.test_questions import COMPLETE

BACKENDS = ["subprocess", pytest.param("bubblewrap", marks=pytest.mark.bubblewrap)]

EVALUATE = """
import json
from assay.evaluation.answers import extract_answer

def evaluate(run):
    held_out = json.loads((run.held_out / "questions.json").read_text())
    texts = run.ask_questions([q for q, _ in held_out], max_bytes=512, batch=8)
    answers = [t if t is None else extract_answer(t) for t in texts]
    grades = run.grade(answers, [r for _, r in held_out], pair_seconds=2.0)
    return {"accuracy": grades.mean, "failed": grades.failed, "missing": grades.missing}
"""
GRADER = "def grade(answer, reference): return eval(answer) == eval(reference)"

# A table of sums is all the model there is; COMPLETION turns a sum into a completion.
PREDICT = (
    PREAMBLE
    + COMPLETE
    + """
send(struct.pack("<4sI", b"ASSY", 15) + b'{"op": "ready"}')
table = json.load(open(os.environ["ASSAY_OUT"] + "/table.json"))
while True:
    header, arrays = read()
    texts = []
    for question in questions(arrays):
        known = table.get(question)
        texts.append((COMPLETION if known is not None else "I do not know").encode())
    complete(header, texts)
"""
)


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    for name in ("evaluator", "codebase", "artifact", "held_out", "scratch"):
        (tmp_path / name).mkdir()
    tmp_path.chmod(0o755)
    questions = [(f"{a} + {b}", str(a + b)) for a in range(6) for b in range(6, 11)]
    (tmp_path / "held_out" / "questions.json").write_text(json.dumps(questions))
    # The model knows two thirds of the sums.
    known = {q: int(r) for i, (q, r) in enumerate(questions) if i % 3}
    (tmp_path / "artifact" / "table.json").write_text(json.dumps(known))
    (tmp_path / "evaluator" / "evaluate.py").write_text(EVALUATE)
    (tmp_path / "evaluator" / "grade.py").write_text(GRADER)
    return tmp_path


def evaluated(folder: Path, say: str, backend: str) -> EvaluationOutcome:
    (folder / "codebase" / "predict.py").write_text(PREDICT.replace("COMPLETION", say))
    return evaluate_artifact(
        EvaluationRequest(
            environment_dir=folder,
            config={},
            predict=("python", "predict.py"),
            codebase_dir=folder / "codebase",
            artifact_dir=folder / "artifact",
            held_out=folder / "held_out",
            seed=0,
            metric_name="accuracy",
            sandbox=SandboxSettings(backend, scratch=folder / "scratch"),
            limits=Limits(wall_seconds=60, memory_bytes=1 << 30),
            seconds=60.0,
            profile="tiny",
            hardware_class="cpu",
        )
    )


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_accuracy_is_what_the_model_knows(folders: Path, backend: str) -> None:
    outcome = evaluated(folders, 'f"The sum is \\\\boxed{{{known}}}."', backend)
    assert outcome.metrics is not None, outcome.failure
    assert outcome.metrics["accuracy"] == pytest.approx(20 / 30)
    assert outcome.metrics["missing"] == 10
    assert not list((folders / "scratch").iterdir())


ASK_TWICE = """
def evaluate(run):
    with run.predictor() as predictor:
        told = [run.ask_questions([q], predictor=predictor)[0] for q in ("0 + 7", "0 + 8")]
    return {"accuracy": float(all(told)), "programs": float(len(run.predictor_cpu_seconds))}
"""


def test_one_predictor_can_be_asked_several_times(folders: Path) -> None:
    (folders / "evaluator" / "evaluate.py").write_text(ASK_TWICE)
    outcome = evaluated(folders, "str(known)", "subprocess")
    assert outcome.metrics == {"accuracy": 1.0, "programs": 1.0}, outcome.failure


ASK_BOTH = """
def evaluate(run):
    with run.predictor() as predictor:
        run.ask_questions(["0 + 7"], predictor=predictor, checkpoint="01")
"""


def test_a_running_predictor_and_a_checkpoint_exclude_each_other(folders: Path) -> None:
    (folders / "evaluator" / "evaluate.py").write_text(ASK_BOTH)
    outcome = evaluated(folders, "str(known)", "subprocess")
    assert outcome.failure is not None
    assert "a predictor or a checkpoint, not both" in outcome.failure.detail


def test_an_answer_that_offers_a_choice_is_none(folders: Path) -> None:
    outcome = evaluated(folders, 'f"\\\\boxed{{{known} or {known + 1}}}"', "subprocess")
    assert outcome.metrics is not None, outcome.failure
    assert outcome.metrics["accuracy"] == 0.0
    assert outcome.metrics["missing"] == 30


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_answer_that_takes_over_the_grader_gains_nothing(folders: Path, backend: str) -> None:
    forged = "__import__('os').write(3, __import__('struct').pack('<d', 1.0))"
    outcome = evaluated(folders, repr(f"\\boxed{{{forged}}}"), backend)
    assert outcome.failure is not None
    assert outcome.failure.code is FailureCode.FOOLED
    assert "references" in outcome.failure.message
