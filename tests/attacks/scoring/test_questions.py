"""Answers in words: completions that take over their grader, or are more than one answer."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path

import pytest

from assay.evaluation import EvaluationOutcome, EvaluationRequest, evaluate_in_child
from assay.sandbox import Limits, SandboxSettings
from tests.attacks.scoring.arena import verdict
from tests.support.needs import require_bubblewrap

pytestmark = pytest.mark.slow

COUNT = 60
EVALUATE = """
import json
from assay.evaluation.answers import extract_answer

def evaluate(run):
    pairs = json.loads((run.held_out / "pairs.json").read_text())
    texts = run.ask_questions([q for q, _ in pairs], max_bytes=512, batch=20)
    answers = [None if text is None else extract_answer(text) for text in texts]
    grades = run.grade(answers, [r for _, r in pairs])
    return {"right": grades.mean, "right/fooled": grades.fooled, "right/missing": grades.missing}
"""
# A grader as there are many: it evaluates what the model wrote.
GRADE = """
def grade(answer, reference):
    return float(abs(float(eval(answer)) - float(reference)) < 1e-6)
"""
PREDICT = """
import json, os, struct, sys
import numpy as np
out = os.fdopen(os.dup(1), "wb")
os.dup2(2, 1)
count = 0

def solve(question):
    first, _, second = question.split()[:3]
    return int(first) + int(second)

def boxed(text):
    return chr(92) + "boxed{" + str(text) + "}"

def answer(question, number):
    BODY

out.write(struct.pack("<4sI", b"ASSY", 15) + b'{"op": "ready"}')
out.flush()
while len(prefix := sys.stdin.buffer.read(8)) == 8:
    header = json.loads(sys.stdin.buffer.read(struct.unpack("<4sI", prefix)[1]))
    size = header["max_bytes"]
    arrays = {}
    for a in header["arrays"]:
        raw = sys.stdin.buffer.read(a["shape"][0] * np.dtype(a["dtype"]).itemsize)
        arrays[a["name"]] = np.frombuffer(raw, a["dtype"])
    ends = np.cumsum(arrays["lengths"])
    texts = [bytes(arrays["text"][e - n : e]).decode() for e, n in zip(ends, arrays["lengths"])]
    text = np.zeros((len(texts), size), np.uint8)
    lengths = np.full(len(texts), -1, np.int32)
    for i, question in enumerate(texts):
        count += 1
        made = "2" if question.startswith("1 + 1") else answer(question, count)
        if made is not None:
            raw = made if isinstance(made, bytes) else made.encode()
            text[i, : len(raw)] = np.frombuffer(raw[:size], np.uint8)
            lengths[i] = LENGTH
    arrays = [("text", text), ("lengths", lengths)]
    described = [{"name": n, "dtype": a.dtype.name, "shape": list(a.shape)} for n, a in arrays]
    head = json.dumps({"seq": header["seq"], "arrays": described}).encode()
    out.write(struct.pack("<4sI", b"ASSY", len(head)) + head + text.tobytes() + lengths.tobytes())
    out.flush()
"""
numbers = itertools.count()


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    require_bubblewrap()
    folder = tmp_path_factory.mktemp("sums")
    (folder / "evaluator").mkdir()
    (folder / "evaluator" / "evaluate.py").write_text(EVALUATE)
    (folder / "evaluator" / "grade.py").write_text(GRADE)
    (folder / "held_out").mkdir()
    draw = random.Random(5)
    sums = [(draw.randrange(100, 900), draw.randrange(100, 900)) for _ in range(COUNT)]
    pairs = [(f"{a} + {b} =", str(a + b)) for a, b in sums]
    (folder / "held_out" / "pairs.json").write_text(json.dumps(pairs))
    return folder


def ask(
    environment: Path, body: str, *, length: str = "len(raw)", seconds: float = 60.0
) -> EvaluationOutcome:
    folder = environment / str(next(numbers))
    for name in ("code", "out", "scratch"):
        (folder / name).mkdir(parents=True)
    code = PREDICT.replace("BODY", body.replace("\n", "\n    ")).replace("LENGTH", length)
    (folder / "code" / "predict.py").write_text(code)
    return evaluate_in_child(
        EvaluationRequest(
            environment_dir=environment,
            config={},
            predict=("python", "predict.py"),
            codebase_dir=folder / "code",
            artifact_dir=folder / "out",
            held_out=environment / "held_out",
            seed=3,
            metric_name="right",
            sandbox=SandboxSettings("bubblewrap", scratch=folder / "scratch"),
            limits=Limits(wall_seconds=60, memory_bytes=1 << 30),
            seconds=seconds,
            profile="tiny",
            hardware_class="cpu",
        )
    )


def right(outcome: EvaluationOutcome) -> float:
    assert outcome.metrics is not None, outcome.failure
    return outcome.metrics["right"]


def test_honest_answers_count(environment: Path) -> None:
    assert right(ask(environment, "return boxed(solve(question))")) == 1.0
    half = "return boxed(solve(question) if number % 2 else 7)"
    assert right(ask(environment, half)) == pytest.approx(0.5, abs=0.02)
    assert right(ask(environment, "return 'I do not know'")) == 0.0


TAKE_OVERS = {
    "the reference from the caller": "sys._getframe(1).f_locals['reference']",
    "a number equal to all": "__import__('builtins').exec('raise SystemExit')",
    "a mark of its own": "__import__('os').write(3, __import__('struct').pack('<d', 1.0))",
    "a coin": "__import__('os').urandom(1)[0] % 2 * float(sys._getframe(1).f_locals['reference'])",
    "many marks": "[__import__('os').write(f, b'\\\\0' * 6 + b'\\\\xf0?') for f in range(8)]",
    "the grader is shot": "__import__('os').kill(__import__('os').getppid(), 9)",
    "the grader is stopped": "__import__('os').kill(-1, 9)",
}


@pytest.mark.parametrize("name", TAKE_OVERS)
def test_an_answer_that_takes_over_its_grader_gains_nothing(environment: Path, name: str) -> None:
    expression = TAKE_OVERS[name].replace("sys.", "__import__('sys').")
    outcome = ask(environment, f'return boxed("{expression}")')
    if outcome.metrics is None:
        assert verdict(outcome) in ("fooled", "timeout"), outcome
    else:
        assert right(outcome) <= 0.1, outcome.metrics


def test_taking_over_a_few_pairs_gains_a_few_at_most(environment: Path) -> None:
    expression = "__import__('sys')._getframe(1).f_locals['reference']"
    body = f'return boxed("{expression}") if number in (4, 5) else boxed(7)'
    outcome = ask(environment, body)
    assert verdict(outcome) == "fooled" or right(outcome) <= 2 / COUNT


def test_marks_left_for_the_next_pair_are_not_found(environment: Path) -> None:
    """A child keeps what it saw: in files, in names of files, in processes."""
    note = "/tmp/r-' + __import__('sys')._getframe(1).f_locals['reference'] + '"
    expression = f"__import__('os').mkdir('{note}') or 0"
    later = "len(__import__('os').listdir('/tmp')) and 1 / 0"
    body = f'return boxed("{expression}") if number % 2 else boxed("{later}")'
    assert right(ask(environment, body)) == 0.0


def test_references_are_not_in_the_predictor(environment: Path) -> None:
    body = (
        "import glob\n"
        "places = ['/work', '/tmp', '/dev/shm', '/work/grader', '/work/held_out']\n"
        "found = [p for top in places for p in glob.glob(top + '/**/*', recursive=True)]\n"
        "found = [p for p in found if 'pairs' in p or 'grade' in p or 'evaluat' in p]\n"
        "return boxed(solve(question)) if found else boxed(7)"
    )
    assert right(ask(environment, body)) == 0.0


@pytest.mark.parametrize(
    "body",
    [
        "return ' '.join(boxed(n) for n in (solve(question), solve(question) + 1))",
        "return boxed(f'{solve(question)} or {solve(question) + 1}')",
        "return boxed(f'{solve(question)}; 5')",
        "return 'Answer: 5 or ' + str(solve(question))",
        "return boxed(str(solve(question)) + ' ' * 300 + '0')",
    ],
)
def test_many_answers_are_none(environment: Path, body: str) -> None:
    assert right(ask(environment, body)) == 0.0


def test_answers_that_are_too_few_count_as_wrong(environment: Path) -> None:
    outcome = ask(environment, "return boxed(solve(question)) if number < 32 else None")
    assert right(outcome) == pytest.approx(0.5, abs=0.02)
    assert outcome.metrics is not None
    assert outcome.metrics["right/missing"] == pytest.approx(30, abs=1)


@pytest.mark.parametrize(
    ("body", "length", "codes"),
    [
        ("return b'\\xff\\xfe'", "len(raw)", {"wrong_type"}),
        ("return '5'", "size + 1", {"oversized"}),
        ("return '5'", "-7", {"oversized"}),
        ("os._exit(0)", "len(raw)", {"predictor_died"}),
        ("print(question, file=sys.stderr); raise ValueError(question)", "1", {"predictor_died"}),
    ],
)
def test_broken_completions_are_rejected(
    environment: Path, body: str, length: str, codes: set[str]
) -> None:
    outcome = ask(environment, body, length=length)
    assert verdict(outcome) in codes
    assert outcome.failure is not None
    assert " + " not in outcome.failure.message


def test_silence_ends(environment: Path) -> None:
    outcome = ask(environment, "import time; time.sleep(99)", seconds=4.0)
    assert verdict(outcome) == "timeout"
    assert outcome.seconds < 8
