"""Training rewards and the evaluator agree on a table of honest and adversarial answers."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from assay.domain.failure_codes import FailureCode
from assay.evaluation import InvalidAnswer, Rejection
from assay.evaluation.artifact import read_bytes, read_json
from assay.evaluation.grading import Grades


def completion(answer: str) -> str:
    return f"I think.</think> <answer>{answer}</answer>"


EXTRACTED = [
    (completion("42"), "42"),
    (completion(" 42 "), "42"),
    (completion(r"It is $\boxed{\frac{1}{2}}$."), r"\frac{1}{2}"),
    (completion(r"\boxed{1} or rather \boxed{2}"), "2"),
    (completion(r"\boxed{\boxed{3}}"), "3"),
    (completion(r"\boxed{a{b}c{{d}}}"), "a{b}c{{d}}"),
    (completion(r"\boxed{1"), None),
    (completion(r"\boxed 1"), None),
    (completion(""), ""),
    ("</think><answer>42</answer>", None),
    ("</think>  <answer>42</answer>", None),
    ("</think>\n<answer>42</answer>", None),
    ("</think> <answer>42", None),
    ("42", None),
    ("</think> <answer>1</answer> <answer>2</answer>", "2"),
    (completion("{" * 50_000 + r"\boxed{" + "{" * 50_000), None),
]


@pytest.mark.parametrize(("text", "answer"), EXTRACTED, ids=range(len(EXTRACTED)))
def test_the_answer_in_a_completion(code: Any, grader: Any, text: str, answer: str | None) -> None:
    assert code.rewards.final_answer(text) == answer
    assert grader.final_answer(text) == answer


DECIDED = [
    ("42", "42", True),
    ("042", "42", True),
    ("-7", "\u22127", True),
    ("\u22127", "-7", True),
    ("7", "-7", False),
    ("$42$", "42", True),
    ("42.", "42", True),
    (r"\dfrac{1}{2}", r"\frac{1}{2}", True),
    (r"\left( 1, 2 \right)", "(1,2)", True),
    ("", "42", False),
    (None, "42", False),
    ("9**9**9", "42", None),
    ("16 or 4", "16", None),
    ("9" * 1000, "9", None),
    ("9" * 100_000, "9", False),
    ("\u0664\u0662", "42", None),  # digits of another script are no plain integer
    ("1 000", "1000", True),
    ("0.5", r"\frac{1}{2}", None),
]


@pytest.mark.parametrize(("answer", "reference", "expected"), DECIDED, ids=range(len(DECIDED)))
def test_what_plain_comparison_decides(
    code: Any, grader: Any, answer: str | None, reference: str, expected: bool | None
) -> None:
    assert code.rewards.decide(answer, reference) is expected
    assert grader.decide(answer, reference) is expected


VERIFIED = [
    ("0.5", r"\frac{1}{2}", True),
    ("1/2", r"\frac{1}{2}", True),
    (r"\frac12", r"-\frac{1}{2}", False),
    (r"2\sqrt{3}", r"\sqrt{12}", True),
    ("(x+1)^2", "x^2+2x+1", True),
    ("1,000", "1000", True),
    (r"5 \text{ cm}", "5", True),
    ("cm", "5", False),
    ("6,5", "5,6", True),
    ("5", "5,6", False),
    ("16 or 4", "16", False),
    ("16 or 4", "4", False),
    ("16; 4", "4", False),
    ("1$ or $2", "2", False),
    ("[1,2)", "(1,2)", False),
    ("Evelny", r"\text{Evelyn}", False),
    ("__import__('os').system('true')", "0", False),
]


@pytest.mark.slow
def test_what_the_verifier_decides(code: Any) -> None:
    verifier = code.verifier.Verifier()
    try:
        # A pair has a second of wall clock: on a busy machine it may need more than one try.
        for answer, reference, is_right in VERIFIED:
            tries = (verifier.verdicts([(answer, reference)]) for _ in range(5 if is_right else 1))
            assert any(found == [True] for found in tries) == is_right, (answer, reference)
        started = time.monotonic()
        # Each takes the second it is given, and none is right; the next pair is served again.
        endless = [("9**9**9**9", "3"), (r"9^{9^{9^{9}}}", "3"), ("0.5", "1/2")]
        assert verifier.verdicts(endless) == [False, False, True]
        assert time.monotonic() - started < 30
    finally:
        verifier.close()


def test_the_evaluators_grader_says_the_same(grader: Any) -> None:
    import runpy

    from tests.environments.grpo.conftest import ENVIRONMENT

    grade = runpy.run_path(str(ENVIRONMENT / "evaluator" / "grade.py"))["grade"]
    for answer, reference, expected in VERIFIED[:-1]:
        assert grade(answer, reference) == float(expected), answer


def test_rewards(code: Any) -> None:
    config = code.config.read("tiny", [])
    texts = [completion("42"), completion("41"), "42", completion("42")]
    finished = [True, True, True, False]
    rewards = code.rewards.rewards_of
    assert rewards(texts, finished, ["42"] * 4, config, 0) == [1.0, 0.0, 0.0, 1.0]
    strict = code.config.read("tiny", ["--zero_truncated", "true"])
    assert rewards(texts, finished, ["42"] * 4, strict, 0) == [1.0, 0.0, 0.0, 0.0]
    coin = code.config.read("tiny", ["--random_rewards", "true"])
    tossed = rewards(["x"] * 1000, [True] * 1000, ["1"] * 1000, coin, 0)
    assert set(tossed) == {0.0, 1.0}
    assert 400 < sum(tossed) < 600
    assert tossed == rewards(["x"] * 1000, [True] * 1000, ["1"] * 1000, coin, 0)
    assert tossed != rewards(["x"] * 1000, [True] * 1000, ["1"] * 1000, coin, 1)


class Run:
    """Stands in for the evaluator's `run`; remembers what was put to the sandboxed grader."""

    def __init__(self, grader: str = "grade.py") -> None:
        self.graded: list[str | None] = []
        self.config = {"grader": grader}

    def grade(self, answers: Any, references: Any, grader: str) -> Any:
        self.graded = list(answers)
        marks = tuple(1.0 if a == "0.5" else 0.0 for a in answers)
        return Grades(marks=marks, mean=0.0, missing=0, failed=0, fooled=0, without_decoy=0)


def test_only_what_comparison_cannot_decide_is_put_to_the_grader(grader: Any) -> None:
    run = Run()
    texts = [completion("42"), completion("0.5"), completion("41"), None, "nothing"]
    references = ["42", r"\frac{1}{2}", "42", "42", "42"]
    assert grader.grade(run, texts, references) == [1.0, 1.0, 0.0, 0.0, 0.0]
    assert run.graded == [None, "0.5", None, None, None]
    run = Run()
    assert grader.grade(run, [completion("42"), None], ["42", "1"]) == [1.0, 0.0]
    assert run.graded == []
    # Where the profile has no grader, what comparison cannot decide is wrong.
    run = Run(grader="")
    assert grader.grade(run, texts, references) == [1.0, 0.0, 0.0, 0.0, 0.0]
    assert run.graded == []


def test_a_checkpoint_changes_weights_alone(grader: Any, tmp_path: Path) -> None:
    shape = {"hidden_size": 4, "tie_word_embeddings": True, "eos_token_id": None}
    held_out, artifact = tmp_path / "search", tmp_path / "out"
    (held_out / "model").mkdir(parents=True)
    (held_out / "model" / "shape.json").write_text(json.dumps(shape))
    (held_out / "model" / "tokenizer.json").write_text("{}")
    folder = artifact / "checkpoints" / "01"
    folder.mkdir(parents=True)

    def reject(code: str, message: str) -> None:
        raise InvalidAnswer(Rejection[FailureCode(code).name], sentence=message)

    def check(config: dict[str, Any], tokenizer: str = "{}") -> None:
        (folder / "config.json").write_text(json.dumps(config))
        (folder / "tokenizer.json").write_text(tokenizer)
        grader.check_model(
            SimpleNamespace(
                held_out=held_out,
                reject=reject,
                read_json=lambda name: read_json(artifact, name),
                read_bytes=lambda name, most: read_bytes(artifact, name, most),
            ),
            "01",
        )

    check(shape | {"torch_dtype": "float32"})
    with pytest.raises(InvalidAnswer, match="another tokenizer"):
        check(shape, '{"normalizer": {}}')
    for key, other in (("hidden_size", 5), ("tie_word_embeddings", 1), ("eos_token_id", 0)):
        with pytest.raises(InvalidAnswer, match="another architecture"):
            check(shape | {key: other})


def test_only_scheduled_checkpoints_count(grader: Any) -> None:
    class Rejected(Exception):
        pass

    def reject(code: str, message: str) -> None:
        raise Rejected(code, message)

    def run(*names: str) -> Any:
        checkpoints = tuple(SimpleNamespace(name=n, seconds=1.0) for n in names)
        return SimpleNamespace(config={"checkpoints": 3}, checkpoints=checkpoints, reject=reject)

    assert grader.scheduled(run("03", "04", "extra", "01", "1")) == ["01", "03"]
    with pytest.raises(Rejected, match="missing_artifact"):
        grader.scheduled(run("04", "best"))
