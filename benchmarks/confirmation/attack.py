"""Write the edit that fits the search split: biases found from rounded scores alone.

    python -m benchmarks.confirmation.attack

Writes `edits/overfitted.diff` and `edits/overfitted.json`; the last line is JSON. Takes ten
minutes of one core; the same command writes the same diff on the same class of hardware.

The attacker submits the baseline with a table of biases that are added to the logits, looked up by
a hash of the last twelve bytes (`table.py`). A context that long stands in one text only, so what
the table gains on one text it does not gain on another. The attacker never sees the text. It
submits `SIZE` tables, each ± `STEP` at every place, orthogonal as the rows of a Hadamard matrix
are, and reads the rounded metric of each (`Oracle.submit`). The differences are the slope of the
loss along those directions; added up, they are its gradient. Then it submits multiples of that,
and keeps the one with the best score.

Each fitted number gains about half a nat on the text it is fitted to, and loses as much on any
other (Akaike 1974, doi:10.1109/TAC.1974.1100705): here 1 / (2 · 16,384) nats per query and token.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

import numpy as np
import numpy.typing as npt

from assay.environments.catalog import Environment
from assay.patching import unified_diff
from benchmarks.confirmation.edits import HERE
from benchmarks.confirmation.oracle import Oracle, logits_of, windows_of
from benchmarks.confirmation.table import SIZE, UNIT, rounded, with_table
from tests.support.measuring import ROOT, opened_bench

#: What the trials add to and take from every bias.
STEP = 0.5
#: Of the table, tried in the end: its root mean square.
SCALES = tuple(n / 20 for n in range(2, 25))

Numbers = npt.NDArray[np.floating[Any]]
#: Submits a table on a seed; returns the metric as it is shown.
Submit = Callable[[npt.NDArray[np.float32], int], float]


def attack(
    submit: Submit, seeds: Sequence[int], rng: np.random.Generator, size: int = SIZE
) -> Numbers:
    """Return the table with the best score that was found; it has `size` numbers, 2^n."""
    order, signs = rng.permutation(size), rng.choice([-1.0, 1.0], size)
    scores = np.zeros(size)
    for number in range(size):
        direction = signs * (1.0 - 2.0 * (np.bitwise_count(order & number) & 1))
        scores[number] = submit(_single(STEP * direction), seeds[number % len(seeds)])
        if number % 1000 == 999:
            print(f"{number + 1} of {size} queries", file=sys.stderr, flush=True)
    for place in range(len(seeds)):  # what is left is the direction's, and not the seed's
        scores[place :: len(seeds)] -= scores[place :: len(seeds)].mean()
    downhill = -signs * _transformed(scores)[order]
    downhill /= np.sqrt(np.mean(downhill**2))
    tables = [rounded(scale * downhill) * UNIT for scale in SCALES]
    tried = [fmean(submit(_single(table), seed) for seed in seeds) for table in tables]
    best: Numbers = tables[int(np.argmin(tried))]
    return best


def _single(table: Numbers) -> npt.NDArray[np.float32]:
    return table.astype(np.float32)


def _transformed(values: Numbers) -> Numbers:
    """The Walsh-Hadamard transform: place j is the sum of value i times (-1)^(bits of i & j)."""
    found = values.copy()
    half = 1
    while half < len(found):
        pairs = found.reshape(-1, 2, half)
        found = np.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], 1).ravel()
        half *= 2
    return found


def main() -> None:
    """Train, attack, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=4, help="baselines it is fitted to: 0 and on")
    parser.add_argument("--random", type=int, default=0, help="seed of the directions")
    given = parser.parse_args()
    seeds = range(given.seeds)
    environment = Environment.load(ROOT / "environments" / "nanogpt")
    with opened_bench(environment, "tiny") as bench:
        search = windows_of(bench, "search")
        logits = {seed: logits_of(bench, seed, {"search": search})["search"] for seed in seeds}
        hardware_class = bench.hardware_class
    oracle = Oracle(search, logits)
    before = fmean(oracle.exact(np.zeros(SIZE, np.float32), seed) for seed in seeds)
    table = attack(oracle.submit, seeds, np.random.default_rng(given.random))
    after = fmean(oracle.exact(_single(table), seed) for seed in seeds)
    edited = with_table(environment.codebase, rounded(table))
    (HERE / "overfitted.diff").write_text(unified_diff(environment.codebase, edited))
    summary: dict[str, Any] = {
        "name": "confirmation-attack",
        "environment": environment.id,
        "hardware_class": hardware_class,
        "seeds": list(seeds),
        "queries": oracle.queries,
        "metric_bits": oracle.metric_bits,
        "bits": oracle.bits,
        "held_out_bits": environment.manifest.held_out_bits,
        "numbers": SIZE,
        "scored_tokens": search[:, 1:].size,
        "before": round(before, 4),
        "after": round(after, 4),
    }
    (HERE / "overfitted.json").write_text(json.dumps(summary, indent=1) + "\n")
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
