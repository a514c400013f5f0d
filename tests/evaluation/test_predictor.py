"""Every way in which a predictor can break the protocol, against real subprocesses."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from assay.domain.failure_codes import FailureCode
from assay.evaluation.codes import InvalidAnswer
from assay.evaluation.predictor import Predictor
from tests.evaluation.conftest import StartPredictor

EXPECT = {"y": ("float32", (2, 3))}
X = {"x": np.arange(4, dtype=np.int32)}


def wait_until_sent(folder: Path) -> None:
    """Until the script, which takes its time to start, has noted that it wrote its answer."""
    deadline = time.monotonic() + 20
    while not (folder / "sent").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def ask(predictor: Predictor) -> np.ndarray:
    return predictor.ask("next", X, EXPECT)["y"]


def test_an_honest_predictor_is_heard(start_predictor: StartPredictor) -> None:
    script = """
    while True:
        header, arrays = read()
        print("noise on stdout")
        send(frame(header["seq"], np.full((2, 3), arrays["x"].sum() + header["plus"], np.float32)))
    """
    with start_predictor(script) as predictor:
        for plus in (0, 1, 2):
            answer = predictor.ask("next", X, EXPECT, plus=plus)["y"]
            assert answer.tolist() == [[6.0 + plus] * 3] * 2


def test_questions_larger_than_a_pipe_pass(start_predictor: StartPredictor) -> None:
    script = """
    header, arrays = read()
    send(frame(header["seq"], arrays["x"] * 2, name="x"))
    """
    x = np.arange(2_000_000, dtype=np.float32)
    with start_predictor(script) as predictor:
        answer = predictor.ask("double", {"x": x}, {"x": ("float32", x.shape)})["x"]
    np.testing.assert_array_equal(answer, x * 2)


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("send(frame(1, ok)); note_sent(); time.sleep(30)", FailureCode.EARLY_ANSWER),
        ("read(); send(frame(1, ok) + b'x'); time.sleep(30)", FailureCode.MALFORMED_FRAME),
        ("read(); send(frame(1, ok) * 2); time.sleep(30)", FailureCode.MALFORMED_FRAME),
        ("read(); send(b'val_loss: 0.0001\\n' * 9); time.sleep(30)", FailureCode.MALFORMED_FRAME),
        ("read(); send(frame(2, ok)); time.sleep(30)", FailureCode.MALFORMED_FRAME),
        ("read(); send(frame(0, ok)); time.sleep(30)", FailureCode.MALFORMED_FRAME),
        ("read(); send(frame(1, ok, magic=b'NOPE')); time.sleep(30)", FailureCode.MALFORMED_FRAME),
        ("read(); send(frame(1, ok, name='z')); time.sleep(30)", FailureCode.MALFORMED_FRAME),
        ("read(); send(frame(1, ok.astype('f8'))); time.sleep(30)", FailureCode.WRONG_TYPE),
        ("read(); send(frame(1, ok.astype('i4'))); time.sleep(30)", FailureCode.WRONG_TYPE),
        ("read(); send(frame(1, ok.T)); time.sleep(30)", FailureCode.WRONG_SHAPE),
        ("read(); send(frame(1, ok, shape=[1 << 40])); time.sleep(30)", FailureCode.WRONG_SHAPE),
        ("read(); send(frame(1, ok + np.nan)); time.sleep(30)", FailureCode.NOT_FINITE),
        ("read(); send(frame(1, ok - np.inf)); time.sleep(30)", FailureCode.NOT_FINITE),
        ("read(); send(b'ASSY' + b'\\xff' * 4); time.sleep(30)", FailureCode.OVERSIZED),
        ("read(); send(frame(1, ok)[:-1])", FailureCode.PREDICTOR_DIED),
        ("read(); sys.exit(3)", FailureCode.PREDICTOR_DIED),
        ("sys.exit(3)", FailureCode.PREDICTOR_DIED),
        ("os.kill(os.getpid(), 9)", FailureCode.PREDICTOR_DIED),
    ],
)
def test_a_broken_answer_has_a_name(
    start_predictor: StartPredictor, tmp_path: Path, script: str, code: FailureCode
) -> None:
    with start_predictor(script) as predictor:
        if code is FailureCode.EARLY_ANSWER:
            wait_until_sent(tmp_path)
        with pytest.raises(InvalidAnswer) as refused:
            ask(predictor)
        assert refused.value.code is code
        with pytest.raises(ValueError, match="start another one"):
            ask(predictor)


def test_an_answer_in_advance_to_the_next_question_is_early(
    start_predictor: StartPredictor, tmp_path: Path
) -> None:
    script = """
    read(); send(frame(1, ok)); time.sleep(0.5); send(frame(2, ok)); note_sent(); time.sleep(30)
    """
    with start_predictor(script) as predictor:
        ask(predictor)
        wait_until_sent(tmp_path)
        with pytest.raises(InvalidAnswer) as refused:
            ask(predictor)
    assert refused.value.code is FailureCode.EARLY_ANSWER


def test_an_answer_before_a_long_question_has_been_read_is_early(
    start_predictor: StartPredictor,
) -> None:
    script = "sys.stdin.buffer.read(100); send(frame(1, ok))"
    with start_predictor(script) as predictor:
        with pytest.raises(InvalidAnswer) as refused:
            predictor.ask("next", {"x": np.zeros(4_000_000, np.float32)}, EXPECT)
    assert refused.value.code is FailureCode.EARLY_ANSWER


@pytest.mark.parametrize(
    "script",
    [
        "time.sleep(30)",
        "read(); time.sleep(30)",
        "read(); send(frame(1, ok)[:-5]); time.sleep(30)",
        "read(); [send(bytes([b])) or time.sleep(0.2) for b in frame(1, ok)]",
    ],
)
def test_silence_and_dripping_run_into_the_deadline(
    start_predictor: StartPredictor, script: str
) -> None:
    with start_predictor(script, each=1.0) as predictor:
        started = time.monotonic()
        with pytest.raises(InvalidAnswer) as refused:
            ask(predictor)
    assert refused.value.code is FailureCode.TIMEOUT
    assert time.monotonic() - started < 10


def test_the_deadline_of_all_answers_together_holds(start_predictor: StartPredictor) -> None:
    script = """
    while True:
        header, _ = read(); time.sleep(0.3); send(frame(header["seq"], ok))
    """
    started = time.monotonic()
    with start_predictor(script, total=1.5) as predictor:
        with pytest.raises(InvalidAnswer) as refused:
            [ask(predictor) for _ in range(100)]
    assert refused.value.code is FailureCode.TIMEOUT
    assert time.monotonic() - started < 15


def test_a_predictor_that_does_not_read_runs_into_the_deadline(
    start_predictor: StartPredictor,
) -> None:
    with start_predictor("time.sleep(30)", each=1.0) as predictor:
        with pytest.raises(InvalidAnswer) as refused:
            predictor.ask("next", {"x": np.zeros(4_000_000, np.float32)}, EXPECT)
    assert refused.value.code is FailureCode.TIMEOUT


def test_death_is_explained(start_predictor: StartPredictor) -> None:
    with start_predictor("sys.exit(3)", autopsy="ended with code 3") as predictor:
        with pytest.raises(InvalidAnswer) as refused:
            ask(predictor)
    assert refused.value.detail == "ended with code 3"
