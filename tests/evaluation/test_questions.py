"""Questions and completions over real pipes."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from assay.domain.failure_codes import FailureCode
from assay.evaluation.codes import InvalidAnswer
from assay.evaluation.questions import ask_questions
from tests.evaluation.conftest import StartPredictor

COMPLETE = """
def frames(seq, *arrays):
    described = [{"name": n, "dtype": a.dtype.name, "shape": list(a.shape)} for n, a in arrays]
    header = json.dumps({"seq": seq, "arrays": described}).encode()
    return b"".join([struct.pack("<4sI", b"ASSY", len(header)), header,
                     *(a.tobytes() for _, a in arrays)])

def questions(arrays):
    ends = arrays["lengths"].cumsum()
    return [bytes(arrays["text"][e - n:e]).decode() for n, e in zip(arrays["lengths"], ends)]

def complete(header, texts, lengths=None):
    text = np.full((len(texts), header["max_bytes"]), 255, np.uint8)  # what follows is ignored
    for row, t in zip(text, texts):
        row[:len(t)] = list(t)
    lengths = np.array([len(t) for t in texts] if lengths is None else lengths, np.int32)
    send(frames(header["seq"], ("lengths", lengths), ("text", text)))
"""
ADDER = (
    COMPLETE
    + """
asked = 0
while True:
    header, arrays = read()
    assert header["op"] == "complete"
    asked += 1
    BEFORE
    complete(header, [str(sum(map(int, q.replace("=", "").split("+")))).encode() + " €".encode()
                      for q in questions(arrays)])
"""
)
QUESTIONS = [f"{i} + {i * i}" for i in range(40)]
RIGHT = tuple(f"{i + i * i} €" for i in range(40))


def ask(start: StartPredictor, script: str, **options: object) -> tuple[str | None, ...]:
    rng = np.random.default_rng(0)
    return ask_questions(functools.partial(start, script), QUESTIONS, rng, **options)  # type: ignore[arg-type]


def test_every_question_gets_its_answer_in_a_secret_order(start_predictor: StartPredictor) -> None:
    assert ask(start_predictor, ADDER.replace("BEFORE", "")) == RIGHT
    order = "asked == 2 and sys.exit(questions(arrays) == [f'{i} + {i * i}' for i in range(16)])"
    with pytest.raises(InvalidAnswer):
        ask(start_predictor, ADDER.replace("BEFORE", order))


def test_a_missing_answer_keeps_its_place(start_predictor: StartPredictor) -> None:
    script = ADDER.replace(
        "BEFORE",
        "if header['seq'] == 3: complete(header, [b'x'] * 16, [-1] * 16); continue",
    )
    answers = ask(start_predictor, script)
    assert len(answers) == 40
    assert answers.count(None) == 16
    assert all(a in (None, r) for a, r in zip(answers, RIGHT, strict=True))


def test_after_the_time_for_questions_no_more_are_asked(start_predictor: StartPredictor) -> None:
    answers = ask(
        start_predictor, ADDER.replace("BEFORE", "asked > 1 and time.sleep(0.5)"), seconds=0.4
    )
    assert answers.count(None) == 24
    assert ask(start_predictor, ADDER.replace("BEFORE", ""), seconds=20.0) == RIGHT


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        ("complete(header, [b'\\xff'] * n)", FailureCode.WRONG_TYPE),
        (
            "complete(header, ['\\ud800'.encode('utf-8', 'surrogatepass')] * n)",
            FailureCode.WRONG_TYPE,
        ),
        ("complete(header, [b''] * n, [4097] * n)", FailureCode.OVERSIZED),
        ("complete(header, [b''] * n, [-2] * n)", FailureCode.OVERSIZED),
        ("header['max_bytes'] = 1 << 20; complete(header, [b''] * n)", FailureCode.WRONG_SHAPE),
        ("complete(header, [b''] * (n + 1))", FailureCode.WRONG_SHAPE),
        ("sys.exit(1)", FailureCode.PREDICTOR_DIED),
        ("time.sleep(30)", FailureCode.TIMEOUT),
    ],
)
def test_a_broken_completion_has_a_code(
    start_predictor: StartPredictor, reply: str, code: FailureCode
) -> None:
    script = ADDER.replace(
        "BEFORE", f"n = len(arrays['lengths'])\n    if asked == 2: {reply}; continue"
    )
    start = functools.partial(start_predictor, each=6.0)
    with pytest.raises(InvalidAnswer) as refused:
        ask(start, script)
    assert refused.value.code is code


@pytest.mark.parametrize("options", [{"batch": 0}, {"max_bytes": 0}, {"max_bytes": 1 << 30}])
def test_sizes_that_make_no_sense_are_our_error(
    start_predictor: StartPredictor, options: dict[str, int]
) -> None:
    with pytest.raises(ValueError):
        ask(start_predictor, "", **options)
    with pytest.raises(ValueError):
        ask_questions(functools.partial(start_predictor, ""), [], np.random.default_rng(0))
