"""Grade free-form answers with an environment's grader, in a sandbox, and notice forged marks.

Graders of mathematics parse what a model wrote, and such parsers can be made to execute it. So a
grader runs in a sandbox, each pair of answer and reference in a process of its own (see
`grade_server`), and a mark is believed only as far as a *decoy* says it can be: every answer is
also graded against the reference of another question, and

    mark = (mark against the reference) - (mark against the decoy).

Code inside an answer does not learn which of the two it is looking at, so whatever it claims, and
however it draws lots, it gains nothing on average; and where decoys are beaten too often to be an
accident, the evaluation is refused.

For that the two must look alike from inside; `decoys` says what holds exactly. One grader gets,
for each answer, one of the two, by the toss of a coin, and another grader the rest, in random
order: so no sandbox ever sees both.

A mark without a decoy would be believed whole, so it is not counted. Where more than a few
questions can have none, because too many references are the same, this is the wrong way to grade.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import numpy as np

from assay.domain.failure_codes import FailureCode
from assay.evaluation.codes import InvalidAnswer, Rejection
from assay.evaluation.decoys import assign_decoys, few
from assay.evaluation.predictor import Predictor
from assay.evaluation.questions import text_array

_RESTARTS = 8

OpenGrader = Callable[[], AbstractContextManager[Predictor]]
Pair = tuple[str, str]


class GraderError(RuntimeError):
    """The environment's grader does not work."""


@dataclass(frozen=True)
class Grades:
    """The marks of all questions, in order.

    `marks` are from -1 to 1 each, `mean` is their mean over all questions that have a decoy, at
    least 0. `missing` answers were not there, `failed` ones had no mark (an exception, too long,
    out of memory), both have mark 0. `fooled` ones were judged right against a decoy.
    `without_decoy` questions have none, since too many references are like theirs: their mark is
    0 and not in the mean, so that neither a forger gains by them nor an honest answer loses.
    """

    marks: tuple[float, ...]
    mean: float
    missing: int
    failed: int
    fooled: int
    without_decoy: int


@dataclass
class _Grader:
    """A grader that is started again when an answer has brought it down."""

    opener: OpenGrader
    starts_left: int = 1 + _RESTARTS
    stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    program: Predictor | None = None

    @property
    def is_worn_out(self) -> bool:
        return self.program is None and self.starts_left == 0

    def mark(self, pair: Pair) -> float | None:
        """The mark from 0 to 1; None if there is none."""
        if self.program is None and not self._start():
            return None
        assert self.program is not None
        try:
            return _ask(self.program, pair, reveals=True)
        except InvalidAnswer:
            self.program = None
            self.stack.close()
            return None

    def _start(self) -> bool:
        if self.starts_left == 0:
            return False
        self.starts_left -= 1
        self.program = self.stack.enter_context(self.opener())
        try:
            _ask(self.program, ("", ""), reveals=False)
        except InvalidAnswer as invalid:
            if invalid.code is FailureCode.TIMEOUT:
                raise
            raise GraderError(f"the grader does not start: {invalid.detail}") from None
        return True


def grade(
    open_grader: OpenGrader,
    answers: Sequence[str | None],
    references: Sequence[str],
    rng: np.random.Generator,
) -> Grades:
    """Grade every answer against its reference; see the module's text.

    Raises:
        InvalidAnswer: `fooled`: more than 2 % of the answers (and more than two) are judged right
            against decoys.
        GraderError: the grader does not start, keeps dying of references alone, or more than 2 %
            of the questions (and more than two) can have no decoy.
        ValueError: there is not one answer for every reference.
    """
    if not references or len(answers) != len(references):
        raise ValueError(f"{len(answers)} answers to {len(references)} questions")
    with _grader(open_grader) as trusted:
        decoys = assign_decoys(references, rng, lambda a, b: _alike(trusted, a, b))
    _check_enough(decoys)
    real, decoy = _both(open_grader, answers, references, decoys, rng)
    return sum_up(answers, decoys, real, decoy)


@contextlib.contextmanager
def _grader(opener: OpenGrader) -> Iterator[_Grader]:
    grader = _Grader(opener)
    with grader.stack:
        yield grader


def _ask(program: Predictor, pair: Pair, *, reveals: bool) -> float | None:
    arrays = {
        name: text_array([text])[0]
        for name, text in zip(("answer", "reference"), pair, strict=True)
    }
    answer = program.ask("grade", arrays, {"mark": ("float64", (1,))}, reveals=reveals)
    mark = float(answer["mark"][0])
    return mark if 0.0 <= mark <= 1.0 else None


def _alike(trusted: _Grader, one: str, other: str) -> bool:
    """Whether an answer to one question may be right for the other; references only.

    Without a mark it may be: two equal references as each other's decoys would cost an honest
    answer its mark.
    """
    if one.strip() == other.strip():
        return True
    for pair in ((one, other), (other, one)):
        if trusted.is_worn_out:
            raise GraderError(
                f"the grader died {1 + _RESTARTS} times of comparing references with each other"
            )
        mark = trusted.mark(pair)
        if mark is None or mark > 0.0:
            return True
    return False


def _check_enough(decoys: Sequence[int | None]) -> None:
    count, without = len(decoys), decoys.count(None)
    if without == count or without > few(count):
        raise GraderError(
            f"{without} of {count} references have no other one as a decoy: the references are too"
            " uniform for the sandboxed grader (more than half are the same to it, or it has no"
            " mark for two of them); compare normalised text in the evaluator instead"
        )


def _both(
    open_grader: OpenGrader,
    answers: Sequence[str | None],
    references: Sequence[str],
    decoys: Sequence[int | None],
    rng: np.random.Generator,
) -> tuple[list[float | None], list[float | None]]:
    """The marks of all answers against their references, and against their decoys."""
    count = len(references)
    marks: tuple[list[float | None], list[float | None]] = ([None] * count, [None] * count)
    coins = rng.integers(2, size=count)
    for part in (0, 1):
        with _grader(open_grader) as grader:
            for i in rng.permutation(count).tolist():
                is_decoy = int(coins[i]) ^ part
                other = decoys[i] if is_decoy else i
                answer = answers[i]
                if answer is None or other is None:
                    continue
                marks[is_decoy][i] = grader.mark((answer, references[other]))
                if is_decoy and answer.strip() == references[other].strip():
                    marks[1][i] = 0.0  # a wrong answer that happens to be right elsewhere
    return marks


def sum_up(
    answers: Sequence[str | None],
    decoys: Sequence[int | None],
    real: Sequence[float | None],
    decoy: Sequence[float | None],
) -> Grades:
    """Return the grades from the marks against the references (`real`) and against the decoys.

    Raises:
        InvalidAnswer: `fooled`: more answers than a few are judged right against decoys.
    """
    count = len(answers)
    fooled = sum((mark or 0.0) > 0.0 for mark in decoy)
    if fooled > few(count):
        raise InvalidAnswer(
            Rejection.FOOLED,
            f"{fooled} of {count} answers are judged right against references of other questions",
        )
    marks = tuple(
        0.0 if other is None else (r or 0.0) - (d or 0.0)
        for other, r, d in zip(decoys, real, decoy, strict=True)
    )
    without = sum(other is None for other in decoys)
    missing = sum(answer is None for answer in answers)
    return Grades(
        marks=marks,
        mean=max(0.0, sum(marks) / (count - without)),
        missing=missing,
        failed=sum(mark is None for mark in real) - missing,
        fooled=fooled,
        without_decoy=without,
    )
