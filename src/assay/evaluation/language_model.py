"""The loss of a language model that is not trusted to look only at the past.

By definition it is the *sealed* loss: of answers to questions that hold a prefix and nothing else.
Asking so for every position is slow, so a cheap *pass* covers them all (see `Mode`), and a secret
sample of M positions is also asked sealed. With s the sealed losses and p those of the pass,

    loss = mean of p over all positions + mean of (s - p) over the sample

is unbiased for the sealed loss if the sample, which is uniform and secret, is unknown to the
instance that answers the pass. Another one answers the sealed questions. The two share no file and
never live at once, but they run on one kernel, whose counters and marks may carry b bits from the
first to the second (docs/security.md). So the pass comes first: it knows all n·T labels and not
the sample, and its bits gain at most b · ln 2 / (n·T). In the other order they would tell where
the sample is not, and gain b · ln 2 · g / M (g: see below). For an honest model s - p is numerical
noise, so the loss is as precise as the pass.

A correction that is right on average can still be lucky. So the evaluation is refused where s and
p disagree (see `Tolerances`), and what is left to luck is bounded (arithmetic in
docs/evaluation.md). A pass that is too good at a share q of the positions, by up to g nats each,
gains q·g where none of them is sampled, which has probability (1 - q)^M at most: gains above d
have less than exp(-M·d / g). Differences too small to be refused are corrected, with a standard
error of at most sqrt(position · spread / M) = 0.005 for M = 1024.

An instance may also remember: what the prefixes of other windows say is not the past of this one.
So the first instance, when it has seen nothing, is asked some of the questions that the second
gets among its own. That they are asked says nothing about the sample, which is drawn apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from assay.evaluation import passes
from assay.evaluation.codes import InvalidAnswer, Rejection
from assay.evaluation.frames import Array
from assay.evaluation.passes import Floats, Ints
from assay.evaluation.predictor import Predictor

SIGMAS = 5.0
AUDITED = 32

Mode = Literal["parallel", "losses", "step"]
"""How the pass over all positions is made. `parallel`: logits of whole windows (op `all`).
`losses`: whole windows with their labels, the predictor computes the losses (op `losses`): 4 bytes
per token instead of 4·V. `step`: one token at a time (ops `reset`, `step`), sealed by itself."""

SAMPLE: dict[Mode, int] = {"parallel": 1024, "losses": 1024, "step": 256}
"""Sealed positions. A pass by steps cannot have seen a label, so a small sample will do."""

OpenPredictor = Callable[[], AbstractContextManager[Predictor]]


@dataclass(frozen=True)
class Tolerances:
    """How far two answers to the same question may differ, in nats.

    `position`: at any single position; `spread`: the mean of the absolute differences; `mean`: the
    mean difference, unless five standard errors are more. Rounding in bfloat16 stays far below.
    """

    position: float = 0.5
    spread: float = 0.05
    mean: float = 0.01


DEFAULT = Tolerances()


@dataclass(frozen=True)
class LanguageModelScore:
    """Everything in nats per token.

    `loss` = `pass_loss` + `correction`. `correction_se` is the standard error of the correction:
    how exactly the sealed loss on these windows is known. `largest_difference` is that between
    pass and sealed answer at one of the `sealed` sampled positions. `windows_se` is the standard
    error of the choice of windows: how exactly they stand for the text; every idea shares it.
    """

    loss: float
    pass_loss: float
    correction: float
    correction_se: float
    largest_difference: float
    windows_se: float
    windows: int
    tokens: int
    sealed: int


def score_language_model(
    open_predictor: OpenPredictor,
    windows: Array,
    vocab_size: int,
    rng: np.random.Generator,
    *,
    mode: Mode = "parallel",
    sealed: int | None = None,
    tolerances: Tolerances = DEFAULT,
) -> LanguageModelScore:
    """Score a predictor on `windows`, integers of shape (n, T + 1) from separate places of a text.

    The predictor answers `next`: tokens (b, t) -> logits (b, V) for the token after each prefix,
    float32, and what `mode` needs. `sealed` is the size of the sample (None: that of `SAMPLE`; at
    most n·T). `rng` draws it and must be unpredictable for the program.

    Raises:
        InvalidAnswer: a broken protocol; `leak`: a pass over whole windows knew more than the
            past; `inconsistent`: a pass by steps, or an instance that had seen less, answers
            otherwise.
        ValueError: the windows, `mode` or `sealed` are not usable.
    """
    if mode not in SAMPLE:
        raise ValueError(f"no mode is called {mode!r}")
    tokens = _checked(windows, vocab_size)[rng.permutation(len(windows))]
    count, length = tokens.shape[0], tokens.shape[1] - 1
    size = min(SAMPLE[mode] if sealed is None else sealed, count * length)
    if size < 2:
        raise ValueError("at least two positions must be sealed")
    sample = draw_positions(rng, count, length, size)
    audit = draw_positions(rng, count, length, min(AUDITED, count))
    # The audited positions hide among the sampled ones; one that is in both is asked once.
    asked, where = np.unique(np.concatenate([sample, audit]), return_inverse=True)
    with open_predictor() as predictor:
        passes.warm_up(predictor, _first_op(mode), length, vocab_size)
        cold = _prefixes(predictor, tokens, audit, vocab_size)
        whole = _pass(predictor, tokens, vocab_size, mode)
    with open_predictor() as predictor:
        passes.warm_up(predictor, "next", length, vocab_size)
        answers = _prefixes(predictor, tokens, asked, vocab_size)[where]
    _check_memory(cold - answers[size:], tolerances)
    return _estimate(answers[:size], whole, sample, mode, tolerances)


def _checked(windows: Array, vocab_size: int) -> npt.NDArray[np.int32]:
    if windows.ndim != 2 or windows.dtype.kind not in "iu":
        raise ValueError("windows must be integers of shape (n, T + 1)")
    if windows.shape[0] < 2 or windows.shape[1] < 2:
        raise ValueError(f"too few windows or tokens: {windows.shape}")
    if windows.min() < 0 or windows.max() >= vocab_size:
        raise ValueError(f"a token lies outside the vocabulary of {vocab_size}")
    return windows.astype(np.int32)


def draw_positions(rng: np.random.Generator, count: int, length: int, size: int) -> Ints:
    """Return `size` different positions, as window · T + t - 1.

    Every one is equally likely, and they are spread over the windows as evenly as possible.
    """
    each = np.full(count, size // count)
    each[rng.permutation(count)[: size % count]] += 1
    drawn = [
        window * length + rng.choice(length, each[window], replace=False)
        for window in np.flatnonzero(each)
    ]
    return np.concatenate([np.zeros(0, dtype=np.int64), *drawn])


def _prefixes(predictor: Predictor, tokens: Array, positions: Ints, vocab_size: int) -> Floats:
    rows, columns = np.divmod(positions, tokens.shape[1] - 1)
    return passes.prefix_losses(predictor, tokens, rows, columns + 1, vocab_size)


def _first_op(mode: Mode) -> str:
    return {"parallel": "all", "losses": "losses", "step": "step"}[mode]


def _pass(predictor: Predictor, tokens: Array, vocab_size: int, mode: Mode) -> Floats:
    if mode == "losses":
        return passes.claimed_losses(predictor, tokens)
    if mode == "step":
        return passes.step_losses(predictor, tokens, vocab_size)
    return passes.parallel_losses(predictor, tokens, vocab_size)


def _check_memory(difference: Floats, tolerances: Tolerances) -> None:
    if len(difference) > 1 and (said := _disagreement(difference, tolerances)):
        raise InvalidAnswer(
            Rejection.INCONSISTENT,
            f"an instance that has seen other text answers the same question otherwise: {said}",
        )


def _disagreement(difference: Floats, tolerances: Tolerances) -> str | None:
    """What is wrong with the differences, for the worker's log, or None."""
    largest, spread = float(np.abs(difference).max()), float(np.abs(difference).mean())
    if largest > tolerances.position:
        return f"a loss differs by {largest:.2f} nats, at most {tolerances.position:g} may be"
    if spread > tolerances.spread:
        return f"losses differ by {spread:.3f} nats on average, at most {tolerances.spread:g}"
    mean, error = float(difference.mean()), _standard_error(difference)
    if abs(mean) > max(tolerances.mean, SIGMAS * error):
        return f"the mean loss differs by {mean:+.4f} ± {error:.4f} nats"
    return None


def _standard_error(values: Floats) -> float:
    return float(values.std(ddof=1)) / math.sqrt(len(values))


def _estimate(
    sealed: Floats, whole: Floats, sample: Ints, mode: Mode, tolerances: Tolerances
) -> LanguageModelScore:
    difference = sealed - whole.ravel()[sample]
    if said := _disagreement(difference, tolerances):
        if mode == "step":
            raise InvalidAnswer(Rejection.OTHER_PATH, said)
        raise InvalidAnswer(Rejection.LEAK, said)
    pass_loss, correction = float(whole.mean()), float(difference.mean())
    unseen = math.sqrt(1.0 - len(sample) / whole.size)  # 0 where every position was asked
    return LanguageModelScore(
        loss=pass_loss + correction,
        pass_loss=pass_loss,
        correction=correction,
        correction_se=_standard_error(difference) * unseen,
        largest_difference=float(np.abs(difference).max()),
        windows_se=_standard_error(whole.mean(axis=1)),
        windows=len(whole),
        tokens=whole.size,
        sealed=len(sample),
    )
