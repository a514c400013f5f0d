"""The service, as somebody sees it who submits the baseline with a table of biases.

A submission trains the baseline and adds the table when it has been trained, so the same seed
gives the same weights each time. They are trained once here, and kept as probabilities on the
scored windows; then a submission takes milliseconds. `Oracle.submit` answers with the rounded
metric of the result and with nothing else: who calls it learns what a submitter learns.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from assay.domain.rounding import (
    Bits,
    SplitMetrics,
    bits_of,
    resolution,
    shown_metrics,
    success_bits,
)
from benchmarks.confirmation.table import Floats, Ints, around, places
from tests.support.measuring import Bench

#: The windows that `evaluate.py` of `nanogpt` scores in profile `tiny`.
WINDOWS, LENGTH = 256, 64
#: Probabilities below this are not moved.
NEGLIGIBLE = 1e-6
_METRIC = "val_loss"
_ASK = """
import sys, numpy, predict
tokens = numpy.load(sys.argv[2])
numpy.save(sys.argv[3], predict.load(sys.argv[1], "cpu").all(tokens)["logits"].numpy())
"""


class Oracle:
    """Scores tables on one held-out split; `queries` and `bits` say what it has shown."""

    def __init__(self, windows: Ints, logits: Mapping[int, Floats]) -> None:
        """`windows` are (n, T + 1) tokens, `logits` (n, T, V) by the seed of the training."""
        self._shape = windows[:, 1:].shape
        self._starts = places(windows[:, :-1]).ravel()
        self._targets = self._starts + windows[:, 1:].ravel()
        self._answers = {
            seed: _Answers.of(given, windows[:, 1:].ravel(), self._starts)
            for seed, given in logits.items()
        }
        self.queries = 0
        self.metric_bits = 0
        self.bits = 0

    def submit(self, table: Floats, seed: int) -> float:
        """Return the metric of the baseline with this table, as it is shown."""
        metrics = self._metrics(table, seed)
        value: float = shown_metrics(metrics)[_METRIC]
        self.queries += 1
        self.metric_bits += bits_of(value, resolution(value, metrics[f"{_METRIC}/windows_se"]))
        shown: Bits = success_bits(metrics, {}, 11.0, SplitMetrics(_METRIC))
        self.bits += shown.search
        return value

    def exact(self, table: Floats, seed: int) -> float:
        """Return the metric itself; for checks, not for the attack."""
        return self._metrics(table, seed)[_METRIC]

    def _metrics(self, table: Floats, seed: int) -> dict[str, float]:
        circle = around(table)
        losses = self._answers[seed].losses(np.exp(circle)) - circle[self._targets]
        means = losses.astype(np.float64).reshape(self._shape).mean(axis=1)
        error = float(means.std(ddof=1)) / math.sqrt(len(means))
        # As `describe` of the evaluator rounds them; an honest model has no correction.
        return {
            _METRIC: round(float(means.mean()), 4),
            f"{_METRIC}/correction": 0.0,
            f"{_METRIC}/largest_difference": 0.0,
            f"{_METRIC}/se": 0.0,
            f"{_METRIC}/windows_se": round(error, 3),
        }


def windows_of(bench: Bench, split: str) -> Ints:
    """Return the windows of a split as the evaluator cuts them."""
    path = bench.data / split / "val_000000.bin"
    tokens = np.fromfile(path, dtype="<u2", offset=1024).astype(np.int64)
    starts = np.arange(WINDOWS) * (len(tokens) // WINDOWS)
    found: Ints = tokens[starts[:, None] + np.arange(LENGTH + 1)]
    return found


def logits_of(bench: Bench, seed: int, windows: Mapping[str, Ints]) -> dict[str, Floats]:
    """Train the unmodified codebase on a seed; return what it answers to windows, by split."""
    found: dict[str, Floats] = {}
    with bench.trained(bench.baseline, seed) as training:
        env = {**os.environ, "ASSAY_HARDWARE_CLASS": bench.hardware_class}
        for split, tokens in windows.items():
            asked, answer = (training.folder / f"{name}.npy" for name in ("asked", "answer"))
            np.save(asked, tokens[:, :-1].astype(np.int32))
            command = [sys.executable, "-c", _ASK, training.folder / "out", asked, answer]
            subprocess.run(command, cwd=training.folder / "codebase", env=env, check=True)
            found[split] = np.load(answer)
    return found


@dataclass(frozen=True)
class _Answers:
    """Probabilities of a trained model, those apart that are too small to matter.

    `likely` has the probabilities of all that may well come next, position after position, `where`
    the place of each in the table, and `first` where each position begins. `rest` is what is left
    of a position's probability, which no bias moves: less than 0.0003, far below what is shown.
    """

    likely: Floats
    where: Ints
    first: Ints
    rest: Floats
    unbiased: Floats

    @classmethod
    def of(cls, logits: Floats, targets: Ints, starts: Ints) -> _Answers:
        flat = logits.reshape(-1, logits.shape[-1])
        raised = np.exp(flat - flat.max(axis=1, keepdims=True))
        found = raised / raised.sum(axis=1, keepdims=True)
        unbiased = -np.log(found[np.arange(len(found)), targets])
        is_likely = found > NEGLIGIBLE
        position, token = np.nonzero(is_likely)
        first = np.searchsorted(position, np.arange(len(found)))
        rest = np.where(is_likely, 0, found).sum(axis=1)
        return cls(found[is_likely], starts[position] + token, first, rest, unbiased)

    def losses(self, factors: Floats) -> Floats:
        """The losses when every probability is raised by its factor, and that of no target."""
        sums: Floats = np.add.reduceat(self.likely * factors[self.where], self.first) + self.rest
        return self.unbiased + np.log(sums)
