"""Results of many seeds to draw experiments from: `toy` run in process, `nanogpt` as measured.

A bank's values are finite populations. An experiment draws seeds from it with replacement, and a
seed that both sides share brings both of its values, so that what they share is kept.
"""

from __future__ import annotations

import io
import json
import os
import runpy
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType, SimpleNamespace
from unittest import mock

from assay.domain.metrics import Direction
from assay.environments.catalog import Environment
from benchmarks.calibrate.plans import NULL_CONTROL, NULL_EDITS
from benchmarks.calibrate.stages import BASELINE
from benchmarks.discrimination import EDITS, RESULTS, edited
from tests.support.measuring import ROOT, Tree

#: An edit of `toy` that changes each step by a ten-millionth.
_TOY_CONTROL = ("STEP = 0.6\n", "STEP = 0.60000006\n")


@dataclass(frozen=True)
class Bank:
    """The metric of codebases by seed.

    Attributes:
        baseline: The unmodified codebase.
        edits: Codebases whose effects may be anything, all on the same first seeds.
        control: A codebase that differs from the baseline by rounding alone, on the same seeds.
    """

    name: str
    direction: Direction
    baseline: tuple[float, ...]
    edits: Mapping[str, tuple[float, ...]]
    control: tuple[float, ...]

    @property
    def shared(self) -> int:
        """Number of seeds on which every codebase was measured."""
        return min(len(self.control), *map(len, self.edits.values()))

    def half(self, number: int) -> Bank:
        """Return every other edit and every other seed that only the baseline has."""
        kept = self.baseline[: self.shared] + self.baseline[self.shared + number :: 2]
        names = sorted(self.edits)[number::2]
        edits = {name: self.edits[name] for name in names}
        return Bank(self.name, self.direction, kept, edits, self.control)


def nanogpt(hardware_class: str, results: Path = RESULTS) -> Bank:
    """Return the null bank that `make calibrate` measured."""
    found = json.loads((results / f"nulls-nanogpt-tiny-{hardware_class}.json").read_text())
    values = {name: tuple(row["values"]) for name, row in found["codebases"].items()}
    edits = {name: values[name] for name in NULL_EDITS}
    direction = Direction(found["direction"])
    return Bank("nanogpt", direction, values[BASELINE], edits, values[NULL_CONTROL])


def toy(seeds: int, edit_seeds: int) -> Bank:
    """Run `toy` in this process: the baseline, the shipped edits and each value of each knob."""
    environment = Environment.load(ROOT / "environments" / "toy")
    base = environment.codebase
    trees = dict(edited(base, EDITS / "toy" / "edits"))
    for knob in environment.manifest.knobs:
        kept = knob.line[: knob.line.rindex(" ") + 1]
        for value in knob.values:
            changed = base[knob.file].replace(f"{knob.line}\n", f"{kept}{value}\n")
            trees[f"{knob.name}={value}"] = base | {knob.file: changed}
    control = base | {"search.py": base["search.py"].replace(*_TOY_CONTROL)}
    with toy_scorer(environment) as score:
        return Bank(
            "toy",
            environment.manifest.metric.direction,
            tuple(score(base, seed) for seed in range(seeds)),
            {name: tuple(score(t, s) for s in range(edit_seeds)) for name, t in trees.items()},
            tuple(score(control, seed) for seed in range(edit_seeds)),
        )


@contextmanager
def toy_scorer(
    environment: Environment, *, evaluations: int | None = None
) -> Iterator[Callable[[Tree, int], float]]:
    """Yield a function that trains a codebase of `toy` on a seed, in this process, and scores it.

    Nothing is isolated: only for codebases of this repository. `evaluations` replaces those of
    the profile.
    """
    config = dict(environment.manifest.profiles["tiny"].config)
    if evaluations is not None:
        config["evaluations"] = evaluations
    landscapes = runpy.run_path(str(environment.folder / "prepare.py"))["landscapes"]()
    evaluate = runpy.run_path(str(environment.folder / "evaluator" / "evaluate.py"))["evaluate"]
    with TemporaryDirectory(prefix="assay-verdicts-") as name:
        folder = Path(name)
        for split, landscape in landscapes.items():
            (folder / split).mkdir()
            (folder / split / "landscape.json").write_text(json.dumps(landscape))
        (folder / "config.json").write_text(json.dumps(config))
        (folder / "out").mkdir()
        variables = {
            "ASSAY_DATA": str(folder / "train"),
            "ASSAY_CONFIG": str(folder / "config.json"),
            "ASSAY_OUT": str(folder / "out"),
        }
        held_out = SimpleNamespace(
            held_out=folder / "search",
            read_json=lambda name, **_: json.loads((folder / "out" / name).read_text()),
        )

        def score(tree: Tree, seed: int) -> float:
            landscape = ModuleType("landscape")
            exec(tree["landscape.py"], vars(landscape))
            search = {"__name__": "search"}
            with (
                mock.patch.dict(sys.modules, landscape=landscape),
                mock.patch.dict(os.environ, variables, ASSAY_SEED=str(seed)),
                redirect_stdout(io.StringIO()),
            ):
                exec(tree["search.py"], search)
                search["main"]()
            found: float = evaluate(held_out)["score"]
            return found

        yield score
