"""The second world: `toy` made hard, with at least three times the noise of `nanogpt`.

It is for one decision. Strategies are tuned in the first world; the choice of the default is
written down, and then this one is opened, once: `open_hard` keeps a record of that in
`benchmarks/results/search-opened.json`, and refuses another choice afterwards. Until then no
strategy may be run in it. Tests look at its codebases alone.

384 codebases of `toy`, three step sizes and seven changes that help or harm each other, with 60
evaluations in the place of 200, so that luck decides more. Each is run in this process on seeds 0
to 63, and the true value is the mean over these. Results on a seed keep what they share across
codebases. If their spread is less than three times that of `nanogpt` beside the spread of true
values, it is multiplied until it is: see `NOISE_RATIO`.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

from assay.domain.hashing import derive_seed
from assay.environments.catalog import Environment
from benchmarks.discrimination import RESULTS
from benchmarks.search.points import Factor, Factors, Point, codebases
from benchmarks.search.worlds import World
from benchmarks.verdicts.banks import toy_scorer
from tests.support.measuring import ROOT

_OFF_ON = ("no", "yes")
TOY = Factors(
    (
        Factor("step", ("0.6", "0.3", "1.2")),
        Factor("one_coordinate", _OFF_ON),
        Factor("heavy_tails", _OFF_ON),
        Factor("annealing", _OFF_ON),
        Factor("shrink", ("1.0", "0.97")),
        Factor("grow", ("1.0", "1.2")),
        Factor("restarts", ("1", "2")),
        Factor("start", ("4.0", "2.0")),
    )
)
EVALUATIONS = 60
SEEDS = range(64)
#: Noise beside the spread of true values, as a multiple of that of the first world.
NOISE_RATIO = 3.0
OPENED = RESULTS / "search-opened.json"


class NotOpened(Exception):
    """The second world may not be used like this."""


@dataclass(frozen=True)
class BankNoise:
    """Results as they were, of one of the bank's seeds each; the spread is multiplied by `scale`.

    A seed is the same place in the bank for all points.
    """

    values: Mapping[Point, Sequence[float]]
    scale: float = 1.0

    def value(self, draw: int, point: Point, seed: int) -> float:
        """Return the result of a point on a seed, in the world with the luck of `draw`."""
        bank = self.values[point]
        mean = fmean(bank)
        return mean + self.scale * (bank[derive_seed(draw, "bank", seed) % len(bank)] - mean)

    def sd(self, point: Point) -> float:
        """Return the standard deviation of a point's results over seeds."""
        return self.scale * pstdev(self.values[point])


def bank(
    points: Sequence[Point] = TOY.points, seeds: Sequence[int] = SEEDS
) -> dict[Point, tuple[float, ...]]:
    """Run codebases on seeds, in this process; all of them take some minutes."""
    environment = Environment.load(ROOT / "environments" / "toy")
    trees = codebases(environment, TOY)
    with toy_scorer(environment, evaluations=EVALUATIONS) as score:
        return {point: tuple(score(trees[point], seed) for seed in seeds) for point in points}


def of_bank(values: Mapping[Point, Sequence[float]], easy: World) -> World:
    """Return the world of a bank, as noisy as `NOISE_RATIO` asks beside another world."""
    manifest = Environment.load(ROOT / "environments" / "toy").manifest
    truth = {point: fmean(found) for point, found in values.items()}
    cost = dict.fromkeys(values, 1.0)
    world = World(
        "hard",
        TOY,
        manifest.metric.direction,
        manifest.metric.reward,
        truth,
        cost,
        BankNoise(values),
    )
    scale = max(1.0, NOISE_RATIO * easy.noisiness / world.noisiness)
    facts = {
        "evaluations": EVALUATIONS,
        "seeds": len(SEEDS),
        "noise_scale": round(scale, 3),
        "noise_ratio": round(scale * world.noisiness / easy.noisiness, 3),
    }
    return replace(world, noise=BankNoise(values, scale), facts=facts)


def open_hard(easy: World, choice: str, arms: Sequence[str], path: Path = OPENED) -> World:
    """Write down that the second world is opened and what was chosen before, then make it.

    Raises:
        NotOpened: it was opened with another choice; that one stands.
    """
    record: list[dict[str, Any]] = json.loads(path.read_text()) if path.exists() else []
    if record and record[0]["choice"] != choice:
        raise NotOpened(
            f"the second world was opened on {record[0]['opened_at']} with the choice "
            f"{record[0]['choice']!r}; it cannot decide for another one"
        )
    entry = {
        "opened_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "choice": choice,
        "arms": list(arms),
        "first_world": dict(easy.facts),
        "commit": _commit(),
    }
    path.write_text(json.dumps([*record, entry], indent=1) + "\n")
    return of_bank(bank(), easy)


def _commit() -> str:
    """Return the commit of this tree, with a + if files differ from it; empty without git."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--abbrev=40", "--dirty=+"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""
