"""Scores the checkpoints of a training. Trusted: it never enters the sandbox.

Every scheduled checkpoint answers the problems of the split search/ greedily; the metric is the
best of them. The maximum of several numbers is too high, so in a confirmation the best checkpoint
also answers the split sealed/: judge a winner by that. Sharper weights give the same greedy
answers. They change samples at temperature 1, which the published numbers are from. So samples of
the best checkpoint are reported beside the metric, and decide nothing.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

MIDDLE, END = "</think> <answer>", "</answer>"
BOX = "\\boxed{"
# Longer answers are wrong: none of the references has 200 characters.
MAX_CHARS = 1000
MAX_TOKENIZER_BYTES = 64 << 20


def evaluate(run: Any) -> dict[str, float]:
    names = scheduled(run)
    for name in names:
        check_model(run, name)
    problems = read(run.held_out / "problems.jsonl")
    # Which samples are drawn: the same for every idea on a seed, others when it is scored again.
    first = int(run.secret_rng().integers(1 << 30))
    # One predictor for all checkpoints. It runs no file that an idea may edit: of a checkpoint it
    # reads weights, tokenizer and prompt.
    with run.predictor() as predictor:
        curve = search(run, predictor, names, problems)
        best = max(names, key=lambda name: curve[name])  # the first of equals
        run.keep(best)
        accuracy = curve[best]
        metrics = {f"accuracy/{name}": value for name, value in curve.items()}
        metrics |= {
            "accuracy": accuracy,
            "accuracy/se": standard_error(accuracy, len(problems)),
            "accuracy/sampled": sampled(run, predictor, best, problems, first, 1),
            "best_checkpoint": float(best),
        }
        return metrics | (confirm(run, predictor, best, first + 1) if run.confirms else {})


def scheduled(run: Any) -> list[str]:
    """The checkpoints 01, 02, ..., up to the profile's number of them. No others count: each one
    more is a further draw for the maximum."""
    wanted = [f"{i + 1:02d}" for i in range(int(run.config["checkpoints"]))]
    found = {checkpoint.name for checkpoint in run.checkpoints}
    names = [name for name in wanted if name in found]
    if not names:
        run.reject("missing_artifact", "training left none of the scheduled checkpoints")
    return names


def check_model(run: Any, name: str) -> None:
    """Refuse a checkpoint with another tokenizer or architecture than the model at the start: a
    tokenizer can rewrite a problem, and a larger model is another problem."""
    start, folder = run.held_out / "model", f"checkpoints/{name}"
    tokenizer = run.read_bytes(f"{folder}/tokenizer.json", MAX_TOKENIZER_BYTES)
    if tokenizer != (start / "tokenizer.json").read_bytes():
        run.reject("inconsistent", "a checkpoint has another tokenizer than the start")
    found = run.read_json(f"{folder}/config.json")
    if not isinstance(found, dict):
        run.reject("wrong_type", "config.json of a checkpoint is no object")
    for key, value in json.loads((start / "shape.json").read_text()).items():
        if type(found.get(key)) is not type(value) or found[key] != value:
            run.reject("wrong_shape", "a checkpoint has another architecture than the start")


def read(path: Path) -> list[tuple[str, str]]:
    """(problem, answer) pairs."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [(row["problem"], row["answer"]) for row in rows]


def search(
    run: Any, predictor: Any, names: Sequence[str], problems: Sequence[tuple[str, str]]
) -> dict[str, float]:
    """The share of problems whose greedy answer is right, for each checkpoint."""
    completions = [
        text for name in names for text in ask(run, predictor, name, greedily(problems))
    ]
    marks = grade(run, completions, [answer for _, answer in problems] * len(names))
    size = len(problems)
    return {name: mean(marks[i * size : (i + 1) * size]) for i, name in enumerate(names)}


def confirm(run: Any, predictor: Any, best: str, first: int) -> dict[str, float]:
    """The best checkpoint on the sealed split, greedily and sampled; and, where there is one, on
    the probe, problems that stand in no data set."""
    problems = read(run.sealed / "problems.jsonl")
    probe_file = run.sealed / "probe.jsonl"
    probe = read(probe_file) if probe_file.is_file() else []
    completions = ask(run, predictor, best, greedily([*problems, *probe]))
    marks = grade(run, completions, [answer for _, answer in [*problems, *probe]])
    accuracy = mean(marks[: len(problems)])
    samples = int(run.config["samples"])
    metrics = {
        "sealed_accuracy": accuracy,
        "sealed_accuracy/se": standard_error(accuracy, len(problems)),
        "sealed_accuracy/sampled": sampled(run, predictor, best, problems, first, samples),
    }
    if probe:
        metrics["probe_accuracy"] = mean(marks[len(problems) :])
    return metrics


def sampled(
    run: Any,
    predictor: Any,
    name: str,
    problems: Sequence[tuple[str, str]],
    first: int,
    samples: int,
) -> float:
    """The share of right answers among `samples` samples of each problem, from number `first`."""
    questions = [f"sample {first + k}\n{p}" for k in range(samples) for p, _ in problems]
    completions = ask(run, predictor, name, questions)
    return mean(grade(run, completions, [answer for _, answer in problems] * samples))


def greedily(problems: Sequence[tuple[str, str]]) -> list[str]:
    return [f"greedy\n{problem}" for problem, _ in problems]


def ask(
    run: Any, predictor: Any, checkpoint: str, questions: Sequence[str]
) -> Sequence[str | None]:
    """The completions of a checkpoint; see predict.py for what a question says."""
    config = run.config
    return run.ask_questions(
        [f"{checkpoint} {question}" for question in questions],
        max_bytes=int(config["max_answer_bytes"]),
        batch=int(config["eval_batch"]),
        predictor=predictor,
    )


def standard_error(share: float, count: int) -> float:
    return math.sqrt(share * (1 - share) / count)


def mean(marks: Sequence[float]) -> float:
    """At least 0: the sandboxed grader's marks may be -1, see its decoys."""
    return max(0.0, statistics.fmean(marks))


def grade(run: Any, completions: Sequence[str | None], references: Sequence[str]) -> list[float]:
    """A mark for every completion.

    Plain comparison decides what it can: nothing an answer says can forge that. The rest goes to
    the profile's `grader` in a sandbox; where that is empty, the rest is wrong.
    """
    answers = [None if text is None else final_answer(text) for text in completions]
    decided = [decide(a, r) for a, r in zip(answers, references, strict=True)]
    marks = [float(d or 0.0) for d in decided]
    grader = run.config["grader"]
    if not grader or None not in decided:
        return marks
    undecided = [a if d is None else None for a, d in zip(answers, decided, strict=True)]
    graded = run.grade(undecided, references, grader=grader).marks
    return [g if d is None else m for m, d, g in zip(marks, decided, graded, strict=True)]


def final_answer(text: str) -> str | None:
    r"""The answer by the r1_zero rules, or None where the format is not kept.

    It stands after the last `<answer>`; if there is a \boxed in it, the content of the last
    \boxed{...}, braces matched, is the answer, and there is none if it is not closed.
    """
    if MIDDLE not in text or END not in text:
        return None
    answer = text.rsplit("<answer>", 1)[1].replace(END, "").strip()
    return last_boxed(answer) if "\\boxed" in answer else answer


def last_boxed(text: str) -> str | None:
    start = text.rfind(BOX)
    if start < 0:
        return None
    depth = 1
    for place in range(start + len(BOX), len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0:
            return text[start + len(BOX) : place].strip()
    return None


def decide(answer: str | None, reference: str) -> bool | None:
    """True or False where the texts are the same or both are plain integers; None: unknown."""
    if answer is None or not answer or len(answer) > MAX_CHARS:
        return False
    one, two = normalise(answer), normalise(reference)
    if one == two:
        return True
    first, second = integer(one), integer(two)
    return None if first is None or second is None else first == second


def normalise(answer: str) -> str:
    """The answer without what makes no difference: spaces, dollars, sizes of brackets."""
    removed = ("\\left", "\\right", "\\!", "$", " ", "\n")
    for old in removed:
        answer = answer.replace(old, "")
    for old, new in (("\u2212", "-"), ("dfrac", "frac"), ("tfrac", "frac")):
        answer = answer.replace(old, new)
    return answer.rstrip(".")


def integer(answer: str) -> int | None:
    digits = answer.removeprefix("-")
    return int(answer) if digits.isascii() and digits.isdigit() and len(digits) <= 40 else None
