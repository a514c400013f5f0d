"""What is told about a predictor that breaks the rules: the same, whatever it was shown.

Every predictor here turns held-out text into the way in which it misbehaves. Two evaluations with
different text must end with the same code and the same message, byte for byte.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from assay.evaluation import (
    EvaluationFailure,
    Rejection,
    evaluate_artifact,
)
from assay.evaluation.frames import MAX_HEADER_BYTES
from assay.sandbox import Limits
from tests.evaluation.conftest import MakeRequest

TEXTS = (b"osen by itself", b"lost horizons!")
"""As the length of a header, `osen` is 1852142447."""

PREDICT = """
import json, os, signal, struct, sys, time
import numpy as np
answers = os.fdopen(os.dup(1), "wb")
os.dup2(2, 1)

def frame(seq, *arrays, magic=b"ASSY", **more):
    described = [{"name": n, "dtype": a.dtype.name, "shape": list(a.shape)} for n, a in arrays]
    header = json.dumps({"seq": seq, "arrays": described, **more}).encode()
    return struct.pack("<4sI", magic, len(header)) + header + b"".join(
        a.tobytes() for _, a in arrays)

def send(data):
    answers.write(data)
    answers.flush()

def answer(seq, text):
    MISBEHAVE

send(struct.pack("<4sI", b"ASSY", 15) + b'{"op": "ready"}')

while len(prefix := sys.stdin.buffer.read(8)) == 8:
    header = json.loads(sys.stdin.buffer.read(struct.unpack("<4sI", prefix)[1]))
    read = {a["name"]: np.frombuffer(sys.stdin.buffer.read(
        int(np.prod(a["shape"])) * np.dtype(a["dtype"]).itemsize), a["dtype"]).reshape(a["shape"])
        for a in header["arrays"]}
    text = bytes(read[next(iter(read))].astype("u1").tobytes())
    ANSWER
"""

ANSWER = """if any(text):
        answer(header["seq"], text)
    else:
        send(frame(header["seq"], ("y", np.zeros(2, "f4"))))"""

ASK = """
import numpy as np
def evaluate(run):
    text = np.frombuffer((run.held_out / "text").read_bytes(), "u1")
    with run.predictor() as predictor:
        for x in (text * 0, text):
            y = predictor.ask("q", {"x": x}, {"y": ("float32", (2,))}, reveals=bool(x.any()))["y"]
    return {"m": float(y[0])}
"""

MISBEHAVIOURS = {
    "a header of a chosen length": "send(b'ASSY' + text[:4])",
    "a chosen magic": "send(text[:4] + bytes(4))",
    "a header that is not JSON": "send(struct.pack('<4sI', b'ASSY', len(text)) + text)",
    "a chosen seq": "send(frame(text[0], ('y', np.zeros(2, 'f4'))))",
    "an array with a chosen name": "send(frame(seq, (text.decode(), np.zeros(2, 'f4'))))",
    "a chosen number of arrays": "send(frame(seq, *[('y', np.zeros(2, 'f4'))] * text[0]))",
    "a chosen dtype": "send(frame(seq, ('y', np.zeros(2, ['f8', 'i4'][text[0] % 2]))))",
    "a chosen shape": "send(frame(seq, ('y', np.zeros(text[0], 'f4'))))",
    "chosen bytes behind the answer": "send(frame(seq, ('y', np.zeros(2, 'f4'))) + text)",
    "a chosen half of an answer": "send(frame(seq, ('y', np.zeros(2, 'f4')))[:9 + text[0] % 40]);"
    " exit()",
    "a chosen NaN": "send(frame(seq, ('y', np.frombuffer(text[:2] + b'\\xc0\\x7f' * 3, 'f4'))))",
    "a chosen sign of infinity": "send(frame(seq, ('y', np.full(2, [1, -1][text[0] % 2] * np.inf,"
    " 'f4'))))",
    "a chosen exit code": "os._exit(text[0])",
    "a chosen signal": "os.kill(os.getpid(), [9, 6][text[0] % 2])",
    "an exit code that looks like a signal": "os._exit([137, 139][text[0] % 2])",
    "an exception with chosen words": "raise ValueError(text)",
    "chosen words on stderr": "os.write(2, text); exit()",
}


@pytest.fixture
def fail(tmp_path: Path, request_for: MakeRequest) -> Callable[..., list[EvaluationFailure]]:
    """Evaluate with each of the texts held out, and return the failures."""

    def run(
        evaluator: str, misbehave: str, answer: str = ANSWER, predict: str = PREDICT
    ) -> list[EvaluationFailure]:
        code = predict.replace("MISBEHAVE", misbehave).replace("ANSWER", answer)
        request = request_for(
            evaluator,
            code,
            seconds=60.0,
            limits=Limits(wall_seconds=60, memory_bytes=1 << 30),
        )
        failures = []
        for text in TEXTS:
            (tmp_path / "held_out" / "text").write_bytes(text)
            outcome = evaluate_artifact(request)
            assert outcome.failure is not None, outcome.metrics
            assert outcome.keep == ()
            failures.append(outcome.failure)
        return failures

    return run


def told(failures: list[EvaluationFailure]) -> str:
    """The one message of all the failures."""
    first, second = failures
    assert (first.code, first.message) == (second.code, second.message), failures
    assert first.message in {rejection.sentence for rejection in Rejection}
    assert not any(text[:4].decode() in first.message for text in TEXTS)
    return first.message


@pytest.mark.parametrize("name", MISBEHAVIOURS)
def test_how_a_predictor_breaks_the_protocol_carries_nothing(
    fail: Callable[..., list[EvaluationFailure]], name: str
) -> None:
    told(fail(ASK, MISBEHAVIOURS[name]))


@pytest.mark.slow  # the evaluator waits seconds for a program that only closed its output
def test_a_closed_output_carries_nothing(fail: Callable[..., list[EvaluationFailure]]) -> None:
    told(fail(ASK, "os.write(2, text); answers.close(); time.sleep(60)"))


def test_a_header_length_does_not_come_back(
    fail: Callable[..., list[EvaluationFailure]],
) -> None:
    failures = fail(ASK, MISBEHAVIOURS["a header of a chosen length"])
    assert told(failures) == Rejection.LARGE_HEADER.sentence
    # The operator reads what was sent.
    assert "1852142447" in failures[0].detail
    assert str(MAX_HEADER_BYTES) in Rejection.LARGE_HEADER.sentence


@pytest.mark.parametrize("mode", ["losses", "parallel", "step"])
def test_the_size_of_a_chosen_loss_does_not_come_back(
    fail: Callable[..., list[EvaluationFailure]], mode: str
) -> None:
    """The second instance answers with losses that spell the text."""
    evaluator = f"""
import numpy as np
def evaluate(run):
    text = np.frombuffer((run.held_out / "text").read_bytes(), "u1").astype(np.int32)
    run.score_language_model(np.stack([text] * 2), 256, mode={mode!r}, sealed=4)
"""
    answer = """op = header["op"]
    rows = len(read[next(iter(read))])
    chosen = np.frombuffer(b"osen" if b"y" in text else b"lost", "<u4")[0]
    shapes = {"next": (rows, 256), "all": (*read.get("tokens", text * 0).shape, 256)
              if op == "all" else (), "step": (rows, 256), "reset": (1,),
              "losses": (rows, read["tokens"].shape[1] - 1) if op == "losses" else ()}
    name = {"losses": "losses", "reset": "ready"}.get(op, "logits")
    y = np.zeros(shapes[op], "u1" if op == "reset" else "f4")
    if op in ("all", "step"):
        y[..., 0] = float(chosen)
    if op == "losses":
        y += float(chosen)
    send(frame(header["seq"], (name, y)))"""
    failures = fail(evaluator, "pass", answer)
    assert told(failures) in (Rejection.LEAK.sentence, Rejection.OTHER_PATH.sentence)
    assert "nats" in failures[0].detail


@pytest.mark.parametrize(
    ("length", "completion", "expected"),
    [
        ("int.from_bytes(text[-4:], 'little')", "b'x'", Rejection.LONG_COMPLETION),
        ("-text[-1]", "b'x'", Rejection.LONG_COMPLETION),
        ("8", "bytes([200 + text[-5] % 7]) * 8", Rejection.NOT_UTF8),
        # The evaluator reads a number, and its exception quotes what it read instead.
        ("4", "text[-14:]", Rejection.EVALUATOR_ERROR),
    ],
)
def test_a_completion_is_not_quoted(
    fail: Callable[..., list[EvaluationFailure]],
    length: str,
    completion: str,
    expected: Rejection,
) -> None:
    evaluator = """
def evaluate(run):
    text = (run.held_out / "text").read_text()
    return {"m": float(run.ask_questions([text], max_bytes=16)[0])}
"""
    answer = f"""lengths = np.array([1 if b"1 + 1 =" in text else {length}], "<i4")
    y = np.frombuffer(({completion}).ljust(16)[:16], "u1").reshape(1, 16)
    send(frame(header["seq"], ("text", y), ("lengths", lengths)))"""
    assert told(fail(evaluator, "pass", answer)) == expected.sentence


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        ("run.reject('wrong_shape', f'{y[0]} is not 1')", Rejection.WRONG_SHAPE),
        ("raise KeyError(float(y[0]))", Rejection.EVALUATOR_ERROR),
        ("raise SystemExit(int(y[0]))", Rejection.EVALUATOR_ERROR),
        ("return {str(y[0]): 1.0}", Rejection.EVALUATOR_ERROR),
        ("return {'m': float('inf') * (1 - 2 * (y[0] % 2))}", Rejection.NOT_FINITE),
        ("return {'m': 1.0, str(y[0]): float('nan')}", Rejection.NOT_FINITE),
        ("raise type('Error%d' % y[0], (Exception,), {})", Rejection.EVALUATOR_ERROR),
        ("raise __import__('assay.sandbox').sandbox.SandboxError(y)", Rejection.INTERRUPTED),
    ],
)
def test_an_evaluator_that_quotes_an_answer_is_not_quoted(
    fail: Callable[..., list[EvaluationFailure]], end: str, expected: Rejection
) -> None:
    evaluator = ASK.replace('return {"m": float(y[0])}', end)
    misbehave = "send(frame(seq, ('y', np.full(2, text[0], 'f4'))))"
    assert told(fail(evaluator, misbehave)) == expected.sentence


def test_how_many_answers_fool_a_grader_does_not_come_back(
    fail: Callable[..., list[EvaluationFailure]],
) -> None:
    evaluator = """
import pathlib
def evaluate(run):
    grader = "def grade(answer, reference): return answer in ('forged', reference)"
    pathlib.Path(__file__).with_name("grade.py").write_text(grader)
    count = (run.held_out / "text").read_bytes()[0] % 16
    answers = ["forged"] * count + ["?"] * (16 - count)
    run.grade(answers, [str(i) for i in range(16)])
"""
    failures = fail(evaluator, "pass")
    assert told(failures) == Rejection.FOOLED.sentence
    assert failures[0].detail != failures[1].detail


def test_every_sentence_is_fixed_and_says_what_to_do() -> None:
    sentences = [rejection.sentence for rejection in Rejection]
    assert len(set(sentences)) == len(sentences)
    for sentence in sentences:
        assert sentence.endswith(".")
        assert sentence.isprintable()
        assert len(sentence) < 250
