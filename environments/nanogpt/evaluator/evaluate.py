"""Scores a trained model on held-out text. Trusted: it never enters the sandbox."""

from __future__ import annotations

from typing import Any

import numpy as np


def evaluate(run: Any) -> dict[str, float]:
    """The loss in nats per byte on windows that stand far apart in the held-out text.

    The windows are the same for every idea, so that what is hard about them cancels when two
    results are compared; far apart, because a window must not give away its neighbour's text.
    """
    text = np.fromfile(run.held_out / "text.bin", dtype=np.uint8)
    length, count = int(run.config["window"]), int(run.config["windows"])
    stride = len(text) // count
    if stride < 2 * length:
        raise ValueError(f"{len(text)} bytes are too few for {count} separate windows of {length}")
    windows = np.stack([text[i * stride : i * stride + length + 1] for i in range(count)])
    score = run.score_language_model(windows, vocab_size=256)
    # Rounded far below the noise of training: every further digit could carry a bit of the text.
    return {
        "val_loss": round(score.loss, 4),
        # What the sealed positions say about the pass over whole windows: for a causal model about
        # 0, and at no position more than rounding.
        "val_loss/correction": round(score.correction, 4),
        "val_loss/largest_difference": round(score.largest_difference, 3),
        "val_loss/se": round(score.correction_se, 5),
        # How far off the loss on all text may be because only these windows were read. All ideas
        # share it, so it does not count when two of them are compared.
        "val_loss/windows_se": round(score.windows_se, 3),
    }
