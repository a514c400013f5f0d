"""The ways in which a language model is asked for its losses.

Tokens are int32; x[t] is predicted from x[:t], so a window of T + 1 tokens has the positions
t = 1 … T, and position t stands in column t - 1 of an array of losses.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from assay.evaluation.frames import Array
from assay.evaluation.predictor import Predictor

_ANSWER_BYTES = 16 << 20
"""Questions are cut so that an answer stays in the caches of the machine, or close to it."""
_CACHE_BYTES = 1 << 20
"""Logits are scored in parts that stay in a core's own cache."""
_QUESTION_TOKENS = 1 << 18
"""And so that no question is a large part of the whole, where the answers are small."""

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def token_losses(logits: Array, labels: Array) -> Floats:
    """Cross-entropy of each label under the softmax of its logits (..., V); at least 0.

    Exponentials in float32, of logits less their maximum, summed in float64: exact to about 1e-6
    and several times as fast as in float64.
    """
    flat, chosen = logits.reshape(-1, logits.shape[-1]), labels.reshape(-1).astype(np.int64)
    losses = np.zeros(len(flat))
    rows = max(1, _CACHE_BYTES // (4 * flat.shape[1]))
    for start in range(0, len(flat), rows):
        part = flat[start : start + rows].astype(np.float32, copy=False)
        highest = part.max(axis=1, keepdims=True)
        with np.errstate(over="ignore"):  # the difference of extreme logits: a probability of 0
            z = part - highest
        # The difference comes first: a logit of 1e30 would swallow the logarithm.
        picked = part[np.arange(len(part)), chosen[start : start + rows]].astype(np.float64)
        picked -= highest[:, 0]
        sums = np.exp(z, out=z).sum(axis=1, dtype=np.float64)
        losses[start : start + rows] = np.log(sums) - picked
    return np.maximum(losses, 0.0).reshape(labels.shape)


def warm_up(predictor: Predictor, op: str, length: int, vocab_size: int) -> None:
    """A question about zeros: a model that cannot answer at all fails before it saw anything
    secret, and its own words may then explain the failure."""
    if op == "step":
        _reset(predictor, 1, length, reveals=False)
        zero = {"tokens": np.zeros(1, dtype=np.int32)}
        predictor.ask(op, zero, {"logits": ("float32", (1, vocab_size))}, reveals=False)
        return
    extra = 1 if op == "losses" else 0
    question = {"tokens": np.zeros((1, length + extra), dtype=np.int32)}
    shape = {"next": (1, vocab_size), "all": (1, length, vocab_size), "losses": (1, length)}[op]
    name = "losses" if op == "losses" else "logits"
    predictor.ask(op, question, {name: ("float32", shape)}, reveals=False)


def prefix_losses(
    predictor: Predictor, tokens: Array, rows: Ints, times: Ints, vocab_size: int
) -> Floats:
    """The loss at `times[k]` of window `rows[k]` from the prefix alone (op `next`); shape (k,).

    Short prefixes come first: a longer prefix of the same window holds the label of a shorter one,
    so that one has been answered by then.
    """
    losses = np.zeros(len(rows))
    most = max(1, _ANSWER_BYTES // (4 * vocab_size))
    for t in np.unique(times):
        for chosen in _cut(np.flatnonzero(times == t), min(most, _rows_of(int(t)))):
            batch = tokens[rows[chosen]]
            expect = {"logits": ("float32", (len(chosen), vocab_size))}
            answer = predictor.ask("next", {"tokens": batch[:, :t]}, expect)
            losses[chosen] = token_losses(answer["logits"], batch[:, t])
    return losses


def parallel_losses(predictor: Predictor, tokens: Array, vocab_size: int) -> Floats:
    """The loss at every position from whole windows (op `all`); shape (n, T)."""
    count, length = tokens.shape[0], tokens.shape[1] - 1
    losses = np.zeros((count, length))
    for chosen in _cut(np.arange(count), max(1, _ANSWER_BYTES // (4 * vocab_size * length))):
        batch = tokens[chosen]
        expect = {"logits": ("float32", (len(batch), length, vocab_size))}
        answer = predictor.ask("all", {"tokens": batch[:, :-1]}, expect)
        losses[chosen] = token_losses(answer["logits"], batch[:, 1:])
    return losses


def claimed_losses(predictor: Predictor, tokens: Array) -> Floats:
    """The losses that the predictor itself computes from whole windows (op `losses`); (n, T).

    No probability exceeds 1, so a loss below 0 is none and counts as 0.
    """
    count, length = tokens.shape[0], tokens.shape[1] - 1
    losses = np.zeros((count, length))
    for chosen in _cut(np.arange(count), _rows_of(length)):
        expect = {"losses": ("float32", (len(chosen), length))}
        answer = predictor.ask("losses", {"tokens": tokens[chosen]}, expect)
        losses[chosen] = np.maximum(answer["losses"], 0.0)
    return losses


def step_losses(predictor: Predictor, tokens: Array, vocab_size: int) -> Floats:
    """The loss at every position, one token of all windows at a time (ops `reset` and `step`);
    shape (n, T).

    An answer lies in this process's memory before the next question, which is its label, is
    written: no loss here has seen its own label.
    """
    count, length = tokens.shape[0], tokens.shape[1] - 1
    losses = np.zeros((count, length))
    for chosen in _cut(np.arange(count), max(1, _ANSWER_BYTES // (4 * vocab_size))):
        batch = tokens[chosen]
        _reset(predictor, len(chosen), length, reveals=True)
        expect = {"logits": ("float32", (len(chosen), vocab_size))}
        for t in range(1, length + 1):
            answer = predictor.ask("step", {"tokens": batch[:, t - 1]}, expect)
            losses[chosen, t - 1] = token_losses(answer["logits"], batch[:, t])
    return losses


def _reset(predictor: Predictor, rows: int, length: int, *, reveals: bool) -> None:
    """Forget everything; `rows` windows of up to `length` tokens follow."""
    sizes = {"sizes": np.array([rows, length], dtype=np.int32)}
    predictor.ask("reset", sizes, {"ready": ("uint8", (1,))}, reveals=reveals)


def _rows_of(length: int) -> int:
    return max(1, _QUESTION_TOKENS // length)


def _cut(indices: Ints, size: int) -> Iterator[Ints]:
    for start in range(0, len(indices), size):
        yield indices[start : start + size]
