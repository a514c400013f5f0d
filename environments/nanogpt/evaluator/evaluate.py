"""Scores a trained model on held-out text. Trusted: it never enters the sandbox."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

MAGIC, VERSION = 20240520, 1


def evaluate(run: Any) -> dict[str, float]:
    """The loss in nats per token; with a target in the profile also the time to it.

    The windows are the same for every idea, so that what is hard about them cancels when two
    results are compared.
    """
    config = run.config
    windows = cut(read_shard(run.held_out / "val_000000.bin"), config)

    def score(checkpoint: str | None = None) -> Any:
        return run.score_language_model(
            windows,
            int(config["vocab_size"]),
            mode=config["scoring"],
            sealed=config.get("sealed"),
            checkpoint=checkpoint,
        )

    final = score()
    metrics = describe(final)
    target = float(config.get("target", 0.0))
    if final.loss <= target:
        metrics |= time_to_target(run, target, score)
    return metrics


def read_shard(path: Path) -> np.ndarray:
    """The tokens of a shard: 256 int32 (magic, version, count, zeros), then uint16."""
    header = np.fromfile(path, dtype="<i4", count=256)
    tokens = np.fromfile(path, dtype="<u2", offset=1024)
    if len(header) < 256 or header[:3].tolist() != [MAGIC, VERSION, len(tokens)]:
        raise ValueError(
            f"{path.name} is no shard of version 1, or damaged; prepare the data again"
        )
    return tokens


def cut(tokens: np.ndarray, config: dict[str, Any]) -> np.ndarray:
    """Windows of `window` + 1 tokens, (n, window + 1).

    `windows` of them stand far apart, because a window must not give away its neighbour's text;
    0 means one after the other over all the text, every token scored once.
    """
    length, count = int(config["window"]), int(config.get("windows", 0))
    if count == 0:
        starts = np.arange(0, len(tokens) - length, length)
    else:
        stride = len(tokens) // count
        if stride < 2 * length:
            raise ValueError(
                f"{len(tokens)} held-out tokens are too few for {count} separate windows of "
                f"{length}; lower `windows`, or prepare more text"
            )
        starts = np.arange(count) * stride
    return tokens[starts[:, None] + np.arange(length + 1)]


def describe(score: Any) -> dict[str, float]:
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


def time_to_target(run: Any, target: float, score: Any) -> dict[str, float]:
    """When the worker saw the first checkpoint whose loss is at most `target`.

    By bisection, which takes it that the loss falls from checkpoint to checkpoint; where it does
    not, the found one still is at most the target, and the one before it above.
    """
    checkpoints = sorted(run.checkpoints, key=lambda checkpoint: checkpoint.seconds)
    found = None
    first, end = 0, len(checkpoints)
    while first < end:
        middle = (first + end) // 2
        loss = score(checkpoints[middle].name).loss
        if loss <= target:
            found, end = (checkpoints[middle], loss), middle
        else:
            first = middle + 1
    if found is None:
        return {}  # there are no checkpoints, or only later weights reached it
    checkpoint, loss = found
    run.keep(checkpoint.name)
    return {"time_to_target": round(checkpoint.seconds, 1), "target_loss_at": round(loss, 4)}
