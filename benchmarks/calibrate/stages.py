"""The stages of a calibration: which runs each needs, whether its output is current, its output.

A stage's output names the environment by its hash. It is current if that is the hash of the
environment in this tree, and if the same codebases were measured on the same seeds.
"""

from __future__ import annotations

import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

from assay.cli.baseline import write_baseline
from assay.contracts.environment import BaselineBody
from assay.domain.hashing import text_tree_hash
from assay.environments.catalog import BASELINES, Environment
from assay.llm.offline.exact import recipe_idea
from assay.patching import apply_answer
from assay.search.ask import recipe_of
from benchmarks.calibrate.plans import Nulls, Plan, Table
from benchmarks.discrimination import EDITS, RESULTS, edited, figures_of, result_path, summary_of
from tests.support.measuring import MEASURED, ROOT, Bench, Result, Run, Tree

KINDS = ("baselines", "tables", "cost", "nulls")
BASELINE, IDLE, BUSY = "baseline", "idle", "busy"
_DIGITS = 4

Results = Mapping[str, Sequence[Result]]


class StageFailed(Exception):
    """The runs of a stage give nothing to write down."""


@dataclass(frozen=True)
class Places:
    """Where a calibration reads and writes."""

    environments: Path = ROOT / "environments"
    edits: Path = EDITS
    results: Path = RESULTS
    store: Path = MEASURED
    cache: Path = ROOT / ".assay" / "bench-cache"


@dataclass(frozen=True)
class Stage(ABC):
    """Codebases by name, each on seeds 0 to `seeds[name]` - 1, and the file they are for."""

    environment: Environment
    plan: Plan
    hardware_class: str
    path: Path
    trees: Mapping[str, Tree]
    seeds: Mapping[str, int]

    kind = ""
    #: Whether its runs are made one at a time, and are kept from those of other stages.
    alone = False

    @property
    def title(self) -> str:
        return f"{self.environment.name}: {self.path.name}"

    @cached_property
    def runs(self) -> list[Run]:
        """Return all runs, those of the first seeds first."""
        most = max(self.seeds.values(), default=0)
        return [
            Run(name, files, seed)
            for seed in range(most)
            for name, files in self.trees.items()
            if seed < self.seeds[name]
        ]

    def digest(self) -> str:
        """Return a hash of what is measured, on any hardware."""
        codebases = {n: [text_tree_hash(t), self.seeds[n]] for n, t in self.trees.items()}
        named = [self.environment.content_hash, self.plan.profile, codebases]
        return hashlib.sha256(json.dumps(named, sort_keys=True).encode()).hexdigest()[:12]

    @abstractmethod
    def is_current(self) -> bool:
        """Whether the output on disk has these runs, of this environment."""

    @abstractmethod
    def write(self, bench: Bench, results: Results) -> None:
        """Write the output.

        Raises:
            StageFailed: the unmodified codebase has no result on some seed.
        """


class ResultFile(Stage):
    """A stage whose output is a file of its own in `benchmarks/results/`."""

    def is_current(self) -> bool:
        """Whether the output on disk has these runs, of this environment."""
        return (
            self.path.exists() and json.loads(self.path.read_text()).get("plan") == self.digest()
        )

    def write(self, bench: Bench, results: Results) -> None:
        """Write the output.

        Raises:
            StageFailed: the unmodified codebase has no result on some seed.
        """
        stamp = {
            "environment": self.environment.id,
            "profile": self.plan.profile,
            "hardware_class": self.hardware_class,
            "plan": self.digest(),
            "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(compact({**stamp, **self.figures(bench, results)}))

    @abstractmethod
    def figures(self, bench: Bench, results: Results) -> dict[str, Any]:
        """Return what the output says beside where and when it was measured."""


class Baseline(Stage):
    """`baseline.json`: the unmodified codebase and the controls."""

    kind = "baselines"

    def is_current(self) -> bool:
        """Whether `baseline.json` has these seeds and controls, of this environment."""
        classes = self.environment.committed_baselines().get(self.plan.profile, {})
        entry = classes.get(self.hardware_class, {})
        return (
            entry.get("environment") == self.environment.id
            and entry["seeds"] == list(range(self.seeds[BASELINE]))
            and {BASELINE, *entry.get("controls", {})} == set(self.trees)
        )

    def write(self, bench: Bench, results: Results) -> None:
        """Write `baseline.json`; what it says of other profiles and classes stays."""
        found = {}
        for name, measured in results.items():
            values = _values(name, measured, bench.metric_name)
            found[name] = {"mean": fmean(values), "spread": stdev(values), "values": values}
        body = BaselineBody(
            environment=self.environment.id,
            profile=self.plan.profile,
            hardware_class=self.hardware_class,
            metric=bench.metric_name,
            seeds=list(range(self.seeds[BASELINE])),
            **found.pop(BASELINE),
        )
        write_baseline(self.environment, body, found)


class Discrimination(ResultFile):
    """A table of `benchmarks.discrimination`."""

    kind = "tables"

    def figures(self, bench: Bench, results: Results) -> dict[str, Any]:
        """Return what `benchmarks.discrimination` writes."""
        _values(BASELINE, results[BASELINE], bench.metric_name)
        rows = figures_of(bench, {name: list(measured) for name, measured in results.items()})
        summary = summary_of(bench, rows, self.seeds[BASELINE], "discrimination")
        return {**summary, "figures": rows}


class NullBank(ResultFile):
    """The metric alone, by codebase and seed; null where a run failed."""

    kind = "nulls"

    def figures(self, bench: Bench, results: Results) -> dict[str, Any]:
        """Return the values, and the errors of what failed."""
        codebases: dict[str, Any] = {}
        for name, measured in results.items():
            values = [r.metrics.get(bench.metric_name) for r in measured]
            codebases[name] = {
                "seeds": [0, len(values)],
                "values": [None if v is None else round(v, _DIGITS) for v in values],
            }
            if errors := [r.error.splitlines()[0][:200] for r in measured if r.error]:
                codebases[name] |= {"failed": len(errors), "error": errors[0]}
        metric = self.environment.manifest.metric
        return {
            "metric": metric.name,
            "direction": metric.direction.value,
            "seeds": "[first, end), the end not included",
            "codebases": codebases,
        }


class Cost(ResultFile):
    """What a run of the unmodified codebase takes, alone and beside one burner per processor."""

    kind = "cost"
    alone = True

    def figures(self, bench: Bench, results: Results) -> dict[str, Any]:
        """Return medians, and the core-seconds and wall seconds of each run.

        Raises:
            StageFailed: a run failed, or the machine was busy where it should have been idle.
        """
        found: dict[str, Any] = {"runs": self.plan.cost_runs}
        for condition, measured in results.items():
            _values(BASELINE, measured, bench.metric_name)
            core = [round(r.core_seconds, 2) for r in measured]
            wall = [r.wall_seconds for r in measured]
            others = median(r.others for r in measured)
            if condition == IDLE and others >= self.plan.idle_below:
                raise StageFailed(
                    f"other programs used {others:.0%} of the processors during runs on idle "
                    "cores; end them and repeat with --only cost"
                )
            found[condition] = {
                "core_seconds": median(core),
                "wall_seconds": median(wall),
                "others": others,
                "each_core_seconds": core,
                "each_wall_seconds": wall,
            }
        return found


def stages_of(
    environment: Environment, plan: Plan, places: Places, hardware_class: str
) -> Iterator[Stage]:
    """Yield the stages of an environment on one class of hardware, in the order of `KINDS`."""
    base = environment.codebase
    edits = edited(base, places.edits / plan.environment / "edits")

    def stage(
        what: type[Stage], path: Path, trees: Mapping[str, Tree], seeds: Mapping[str, int]
    ) -> Stage:
        return what(environment, plan, hardware_class, path, trees, seeds)

    def result(name: str) -> Path:
        name_of_file = f"{name}-{environment.name}-{plan.profile}-{hardware_class}.json"
        return places.results / name_of_file

    trees = {BASELINE: base} | controls_of(environment)
    seeds = dict.fromkeys(trees, plan.baseline_seeds)
    yield stage(Baseline, environment.folder / BASELINES, trees, seeds)
    for table in plan.tables:
        trees, seeds = _table_runs(table, base, edits)
        path = result_path(
            places.results, "discrimination", environment.name, table.kind, hardware_class
        )
        yield stage(Discrimination, path, trees, seeds)
    if plan.cost_runs:
        trees = {IDLE: base, BUSY: base}
        yield stage(Cost, result("cost"), trees, dict.fromkeys(trees, plan.cost_runs))
    if plan.nulls is not None:
        trees, seeds = _null_runs(plan.nulls, base, edits)
        yield stage(NullBank, result("nulls"), trees, seeds)


def controls_of(environment: Environment) -> dict[str, Tree]:
    """Return the codebase with each recipe of kind `control`, by the recipe's name."""
    return {
        recipe.name: apply_answer(environment.codebase, recipe_idea(recipe_of(recipe))).files
        for recipe in environment.manifest.recipes
        if recipe.kind == "control"
    }


def _table_runs(
    table: Table, base: Tree, edits: Mapping[str, Tree]
) -> tuple[dict[str, Tree], dict[str, int]]:
    chosen = {name: tree for name, tree in edits.items() if name.startswith(table.kind)}
    trees = {BASELINE: base} | chosen
    return trees, dict.fromkeys(trees, table.seeds)


def _null_runs(
    nulls: Nulls, base: Tree, edits: Mapping[str, Tree]
) -> tuple[dict[str, Tree], dict[str, int]]:
    if gone := [name for name in nulls.edits if name not in edits]:
        raise LookupError(
            f"no such edit: {', '.join(gone)}; correct benchmarks/calibrate/plans.py"
        )
    trees = {BASELINE: base} | {name: edits[name] for name in nulls.edits}
    return trees, {BASELINE: nulls.baseline_seeds} | dict.fromkeys(nulls.edits, nulls.edit_seeds)


def _values(name: str, results: Sequence[Result], metric: str) -> list[float]:
    """Return the metric of every run.

    Raises:
        StageFailed: a run failed.
    """
    for seed, result in enumerate(results):
        if result.error:
            raise StageFailed(f"{name} failed on seed {seed}: {result.error}")
    return [result.metrics[metric] for result in results]


def compact(data: Mapping[str, Any]) -> str:
    """Return JSON with every list of numbers on one line."""
    text = json.dumps(data, indent=1)
    return re.sub(r"\[[^\[\]{}\"]*\]", lambda found: re.sub(r"\s+", " ", found[0]), text) + "\n"
