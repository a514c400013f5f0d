"""Put questions to a predictor and collect its completions.

A text travels as a row of UTF-8 bytes: the question's array `text` holds all bytes of a batch one
after the other, `lengths` (b,) how many each has. Of the answer the size is known before it comes:
`text` (b, max_bytes) uint8, filled up with anything, and `lengths` (b,) int32, -1 for no answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

import numpy as np

from assay.evaluation.codes import InvalidAnswer, Rejection
from assay.evaluation.frames import Array
from assay.evaluation.predictor import Predictor

MAX_BYTES = 4096
BATCH = 16
_WARM_UP = "1 + 1 ="
_MAX_ANSWER = 64 << 20

OpenPredictor = Callable[[], AbstractContextManager[Predictor]]


def ask_questions(
    open_predictor: OpenPredictor,
    questions: Sequence[str],
    rng: np.random.Generator,
    *,
    max_bytes: int = MAX_BYTES,
    batch: int = BATCH,
    seconds: float | None = None,
) -> tuple[str | None, ...]:
    """One completion per question, in the order of `questions`; None where there is none.

    One instance is asked everything once, in the order `rng` draws, with no reference in sight
    (op `complete`, `max_bytes` in the header). None stands for what the program did not answer and
    for questions that were not put to it within `seconds` (None: only the evaluation's own
    deadline counts). The caller keeps them in the denominator, as `grade` does.

    Raises:
        InvalidAnswer: a broken protocol; `oversized`: a completion claims more than `max_bytes`;
            `wrong_type`: one is not UTF-8.
        ValueError: no questions, or sizes that are not usable.
    """
    if not questions or batch < 1 or not 0 < max_bytes * batch <= _MAX_ANSWER:
        raise ValueError("there must be questions, and an answer of a batch must fit 64 MiB")
    answers: list[str | None] = [None] * len(questions)
    order = rng.permutation(len(questions))
    with open_predictor() as predictor:
        _complete(predictor, [_WARM_UP], max_bytes, reveals=False)
        end = None if seconds is None else predictor.clock.now() + seconds
        for start in range(0, len(order), batch):
            if end is not None and predictor.clock.now() >= end:
                break
            chosen = order[start : start + batch]
            texts = _complete(predictor, [questions[i] for i in chosen], max_bytes)
            for place, text in zip(chosen, texts, strict=True):
                answers[place] = text
    return tuple(answers)


def text_array(texts: Sequence[str]) -> tuple[Array, Array]:
    """All bytes of the texts as uint8, and the length of each as int32."""
    # Half of a surrogate pair, which JSON can hold, is no text: "?" stands for it.
    raw = [text.encode(errors="replace") for text in texts]
    return np.frombuffer(b"".join(raw), dtype=np.uint8), np.array([len(r) for r in raw], np.int32)


def _complete(
    predictor: Predictor, texts: Sequence[str], max_bytes: int, *, reveals: bool = True
) -> list[str | None]:
    joined, lengths = text_array(texts)
    count = len(texts)
    expect = {"text": ("uint8", (count, max_bytes)), "lengths": ("int32", (count,))}
    answer = predictor.ask(
        "complete",
        {"text": joined, "lengths": lengths},
        expect,
        reveals=reveals,
        max_bytes=max_bytes,
    )
    rows = zip(answer["text"], answer["lengths"].tolist(), strict=True)
    return [_decode(row, length, max_bytes) for row, length in rows]


def _decode(row: Array, length: int, max_bytes: int) -> str | None:
    if length == -1:
        return None
    if not 0 <= length <= max_bytes:
        raise InvalidAnswer(
            Rejection.LONG_COMPLETION, f"a completion of {length} bytes, at most {max_bytes}"
        )
    try:
        return row[:length].tobytes().decode()
    except UnicodeDecodeError:
        raise InvalidAnswer(Rejection.NOT_UTF8) from None
