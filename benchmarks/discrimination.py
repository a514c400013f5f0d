"""Can an environment tell a good edit from a bad one?

    python -m benchmarks.discrimination nanogpt [grpo] [--seeds 5] [--parallel 2]
    python -m benchmarks.discrimination grpo --kind good --seeds 10
    python -m benchmarks.discrimination nanogpt --sweep --seeds 3

Measures the unmodified codebase and every edit of `tests/environments/<name>/edits/` on the same
seeds: those called `good_…` are expected to gain, `bad_…` to lose, `control_…` to do neither. They
were written before they were measured, and those that fail to separate stay. Prints the mean
paired difference to the baseline with Student's t and its two-sided p, better ones first, and
writes all figures to `benchmarks/results/`; the last line is JSON.

`--sweep` measures the values of a knob (the learning rate) instead: the baseline is to have the
best of them, so that no edit gains by being a disguised learning rate.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from assay.domain.distributions import student_cdf
from assay.domain.metrics import Direction
from assay.environments.catalog import Environment
from assay.patching import apply_answer
from tests.support.measuring import MEASURED, ROOT, Bench, Result, Tree, measure_all, opened_bench

RESULTS = ROOT / "benchmarks" / "results"
EDITS = ROOT / "tests" / "environments"
ALPHA = 0.01


def compare(values: Sequence[float], baseline: Sequence[float]) -> dict[str, float]:
    """The paired difference to the baseline with t and its two-sided p."""
    differences = [a - b for a, b in zip(values, baseline, strict=True)]
    spread = stdev(differences)
    mean = fmean(differences)
    t = mean / (spread / math.sqrt(len(differences))) if spread else math.copysign(1e9, mean)
    return {"difference": mean, "t": t, "p": 2 * student_cdf(-abs(t), len(differences) - 1)}


def edited(base: Tree, folder: Path, kind: str = "") -> dict[str, Tree]:
    """The codebase with each diff of a folder applied, by the diff's name, which begins so."""
    paths = sorted(folder.glob(f"{kind}*.diff"))
    return {path.stem: apply_answer(base, path.read_text()).files for path in paths}


def swept(bench: Bench, knob_name: str) -> dict[str, Tree]:
    """The codebase with each value of a knob, the baseline's included."""
    (knob,) = [k for k in bench.environment.manifest.knobs if k.name == knob_name]
    kept = knob.line[: knob.line.rindex(" ") + 1]
    trees = {f"{knob_name}={knob.line[len(kept) :]} (baseline)": bench.baseline}
    for value in knob.values:
        files = dict(bench.baseline)
        files[knob.file] = files[knob.file].replace(f"{knob.line}\n", f"{kept}{value}\n")
        trees[f"{knob_name}={value}"] = files
    return trees


def figures_of(bench: Bench, results: Mapping[str, list[Result]]) -> dict[str, Any]:
    """Per codebase: values, mean, spread, cost, paired difference to the first, and verdict."""
    name = bench.metric_name
    better = -1 if bench.environment.manifest.metric.direction is Direction.MINIMIZE else 1
    first = next(iter(results.values()))
    if failed := next((r.error for r in first if r.error), ""):
        raise SystemExit(f"the baseline has no result: {failed}")
    baseline = [r.metrics[name] for r in first]
    figures: dict[str, Any] = {}
    for place, (edit, measured) in enumerate(results.items()):
        failed = [r.error for r in measured if name not in r.metrics]
        cost = fmean(r.train_seconds + r.evaluation_seconds for r in measured)
        figures[edit] = row = {"cpu_seconds": round(cost, 1)}
        if failed:
            row |= {"failed": len(failed), "error": failed[0][:300]}
            continue
        values = [r.metrics[name] for r in measured]
        row |= {"mean": fmean(values), "spread": stdev(values), "values": values}
        if place:
            row |= compare(values, baseline)
            row["separates"] = _separates(edit, better * row["difference"], row["p"])
    return figures


def _separates(edit: str, gain: float, p: float) -> bool | None:
    """Whether it went significantly the way its name says; None where none is foretold."""
    kind = edit.split("_")[0]
    if kind not in ("good", "bad"):
        return None
    return p < ALPHA and (gain > 0) == (kind == "good")


def table_of(figures: Mapping[str, Any], metric: str) -> str:
    """The figures as a Markdown table, as they are shown in the environments' READMEs."""
    lines = [f"| edit | {metric} | spread | difference | t | p | CPU s | |", "|---" * 8 + "|"]
    for name, row in figures.items():
        cells = [name.replace("_", " ")]
        if "mean" not in row:
            cells += ["", "", "", "", "", f"{row['cpu_seconds']}", f"failed: {row['failed']}"]
        else:
            cells += [f"{row['mean']:.4f}", f"{row['spread']:.4f}"]
            paired = "difference" in row
            cells += (
                [f"{row['difference']:+.4f}", f"{row['t']:.1f}", f"{row['p']:.0e}"]
                if paired
                else ["", "", ""]
            )
            word = {True: "yes", False: "**no**", None: ""}[row.get("separates")]
            cells += [f"{row['cpu_seconds']}", word]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def summary_of(bench: Bench, figures: Mapping[str, Any], seeds: int, name: str) -> dict[str, Any]:
    """Where a table was measured, and how many edits did what their names say."""
    return {
        "name": name,
        "environment": bench.environment.id,
        "profile": bench.profile_name,
        "hardware_class": bench.hardware_class,
        "seeds": seeds,
        "good": sum(r.get("separates") is True for n, r in figures.items() if n[:4] == "good"),
        "bad": sum(r.get("separates") is True for n, r in figures.items() if n[:3] == "bad"),
        "alternative": "the unmodified codebase on the same seeds",
    }


def result_path(
    results: Path, name: str, environment: str, kind: str, hardware_class: str
) -> Path:
    """Return the file of a table; `kind` is empty for one with all edits."""
    return results / f"{'-'.join(filter(None, [name, environment, kind, hardware_class]))}.json"


def run(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure one environment, print its table, store its figures."""
    environment = Environment.load(ROOT / "environments" / name)
    with opened_bench(environment, arguments.profile) as bench:
        if arguments.sweep:
            trees = swept(bench, arguments.knob)
        else:
            folder = EDITS / name / "edits"
            trees = {"baseline": bench.baseline} | edited(bench.baseline, folder, arguments.kind)
        wanted = range(arguments.seeds)
        results = measure_all(bench, trees, wanted, parallel=arguments.parallel, store=MEASURED)
        figures = figures_of(bench, results)
    print(table_of(figures, bench.metric_name), flush=True)
    name_of_run = "sweep" if arguments.sweep else "discrimination"
    summary = summary_of(bench, figures, arguments.seeds, name_of_run)
    RESULTS.mkdir(exist_ok=True)
    path = result_path(RESULTS, name_of_run, name, arguments.kind, bench.hardware_class)
    path.write_text(json.dumps({**summary, "figures": figures}, indent=1) + "\n")
    return summary


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("environments", nargs="*", default=["nanogpt", "grpo"])
    parser.add_argument("--profile", default="tiny")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--parallel", type=int, default=2)
    parser.add_argument("--kind", default="", help="only edits called so: good or bad")
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--knob", default="learning_rate")
    arguments = parser.parse_args()
    print(json.dumps([run(name, arguments) for name in arguments.environments]))


if __name__ == "__main__":
    main()
