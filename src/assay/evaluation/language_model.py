"""The loss of a language model that is not trusted to look only at the past.

A forward pass over whole windows is cheap and precise, and a model that looks ahead scores well in
it. So at one secret position of every window the model is also asked with nothing but the prefix.
Those *sealed* answers cannot have used the future, and the difference at the same positions
corrects the *parallel* pass: with the positions uniform and secret, mean(parallel) +
mean(sealed - parallel) is an unbiased estimate of the sealed loss of all positions, whatever the
program does. For an honest model the correction is numerical noise, so the estimate is as precise
as the parallel pass.

The two passes go to two instances that share nothing. A single one would remember from the sealed
pass which position of a window is compared, answer honestly just there, and look ahead elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from assay.evaluation.codes import InvalidAnswer, InvalidCode
from assay.evaluation.frames import Array
from assay.evaluation.predictor import Predictor

_ANSWER_BYTES = 16 << 20
"""Questions are cut so that an answer stays in the caches of the machine, or close to it."""

SIGMAS = 5.0
TOLERANCE = 0.01

Floats = npt.NDArray[np.float64]
OpenPredictor = Callable[[], AbstractContextManager[Predictor]]


@dataclass(frozen=True)
class LanguageModelScore:
    """Everything in nats per token.

    `loss` = `parallel_loss` + `correction`. `correction_se` is the standard error of the
    correction: how exactly the sealed loss on these windows is known. `windows_se` is that of the
    choice of windows: how exactly they stand for the text; every idea shares it.
    """

    loss: float
    parallel_loss: float
    correction: float
    correction_se: float
    windows_se: float
    windows: int
    tokens: int


def score_language_model(
    open_predictor: OpenPredictor,
    windows: Array,
    vocab_size: int,
    rng: np.random.Generator,
    tolerance: float = TOLERANCE,
) -> LanguageModelScore:
    """Score a predictor on `windows`, integers of shape (n, T + 1) from separate places of a text.

    The predictor answers `next`: tokens (b, t) -> logits (b, V) for the token after each prefix,
    and `all`: tokens (b, T) -> logits (b, T, V), float32. `rng` draws the sealed positions and
    must be unpredictable for the program.

    Raises:
        InvalidAnswer: a broken protocol, or `leak`: the correction is larger than `tolerance` and
            than five standard errors, that is, the parallel pass knew more than the past.
        ValueError: the windows are not usable.
    """
    tokens = _checked(windows, vocab_size)
    count, length = tokens.shape[0], tokens.shape[1] - 1
    positions = rng.integers(1, length + 1, size=count)  # x[t] is predicted from x[:t]
    with open_predictor() as predictor:
        _warm_up(predictor, "next", length, vocab_size)
        sealed = _sealed_losses(predictor, tokens, positions, vocab_size)
    with open_predictor() as predictor:
        _warm_up(predictor, "all", length, vocab_size)
        parallel = _parallel_losses(predictor, tokens, vocab_size)
    return _estimate(sealed, parallel, positions, tolerance)


def token_losses(logits: Array, labels: Array) -> Floats:
    """Cross-entropy of each label under the softmax of its logits (..., V), in float64."""
    z = logits.astype(np.float64)
    z -= z.max(axis=-1, keepdims=True)
    picked = np.take_along_axis(z, labels[..., None].astype(np.int64), axis=-1)[..., 0]
    losses: Floats = np.log(np.exp(z).sum(axis=-1)) - picked
    return losses


def _checked(windows: Array, vocab_size: int) -> npt.NDArray[np.int32]:
    if windows.ndim != 2 or windows.dtype.kind not in "iu":
        raise ValueError("windows must be integers of shape (n, T + 1)")
    if windows.shape[0] < 2 or windows.shape[1] < 2:
        raise ValueError(f"too few windows or tokens: {windows.shape}")
    if windows.min() < 0 or windows.max() >= vocab_size:
        raise ValueError(f"a token lies outside the vocabulary of {vocab_size}")
    return windows.astype(np.int32)


def _warm_up(predictor: Predictor, op: str, length: int, vocab_size: int) -> None:
    """A question about zeros: a model that cannot answer at all fails before it saw anything
    secret, and its own words may then explain the failure."""
    shape = (1, vocab_size) if op == "next" else (1, length, vocab_size)
    question = {"tokens": np.zeros((1, length), dtype=np.int32)}
    predictor.ask(op, question, {"logits": ("float32", shape)}, reveals=False)


def _sealed_losses(
    predictor: Predictor, tokens: Array, positions: Array, vocab_size: int
) -> Floats:
    """The loss at the secret position of each window, from prefixes alone; shape (n,)."""
    losses = np.zeros(len(tokens))
    rows = max(1, _ANSWER_BYTES // (4 * vocab_size))
    for t in np.unique(positions):
        group = np.flatnonzero(positions == t)
        for chosen in np.split(group, range(rows, len(group), rows)):
            expect = {"logits": ("float32", (len(chosen), vocab_size))}
            answer = predictor.ask("next", {"tokens": tokens[chosen, :t]}, expect)
            losses[chosen] = token_losses(answer["logits"], tokens[chosen, t])
    return losses


def _parallel_losses(predictor: Predictor, tokens: Array, vocab_size: int) -> Floats:
    """The loss at every position of every window, from whole windows; shape (n, T)."""
    count, length = tokens.shape[0], tokens.shape[1] - 1
    rows = max(1, _ANSWER_BYTES // (4 * vocab_size * length))
    losses = np.zeros((count, length))
    for start in range(0, count, rows):
        batch = tokens[start : start + rows]
        expect = {"logits": ("float32", (len(batch), length, vocab_size))}
        answer = predictor.ask("all", {"tokens": batch[:, :-1]}, expect)
        losses[start : start + rows] = token_losses(answer["logits"], batch[:, 1:])
    return losses


def _estimate(
    sealed: Floats, parallel: Floats, positions: Array, tolerance: float
) -> LanguageModelScore:
    count = len(sealed)
    difference = sealed - parallel[np.arange(count), positions - 1]
    correction = float(difference.mean())
    correction_se = float(difference.std(ddof=1)) / math.sqrt(count)
    if abs(correction) > max(tolerance, SIGMAS * correction_se):
        raise InvalidAnswer(
            InvalidCode.LEAK,
            f"with the prefix alone the loss differs by {correction:+.4f} ± {correction_se:.4f} "
            "nats from the loss with the whole window: a prediction depends on later tokens",
        )
    parallel_loss = float(parallel.mean())
    return LanguageModelScore(
        loss=parallel_loss + correction,
        parallel_loss=parallel_loss,
        correction=correction,
        correction_se=correction_se,
        windows_se=float(parallel.mean(axis=1).std(ddof=1)) / math.sqrt(count),
        windows=count,
        tokens=int(parallel.size),
    )
