"""Can the `nanogpt` environment tell a good edit from a bad one?

    python benchmarks/discrimination.py [--seeds 5] [--parallel 2] [EDIT.diff ...]

Measures the unmodified codebase and every edit of `tests/environments/nanogpt/` on the same seeds.
Each is trained in a sandbox and scored by the sealed evaluation. Prints the mean paired difference
to the baseline with Student's t and its two-sided p; the last line is JSON. One measurement takes
about nine seconds of one core.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from assay.environments.bundle import write_tree
from assay.environments.catalog import Environment
from assay.environments.prepare import prepare_data
from assay.evaluation import EvaluationRequest, evaluate_in_child, start_evaluation_server
from assay.patching import apply_answer
from assay.sandbox import (
    Limits,
    Mount,
    SandboxSettings,
    SandboxSpec,
    choose_sandbox,
    open_sandbox,
)
from services.worker.hardware import hardware_class, read_cpu

ROOT = Path(__file__).resolve().parent.parent
PROFILE = "tiny"
TITLES = ("val_loss", "spread", "difference", "t", "p", "CPU s")


@dataclass(frozen=True)
class Result:
    """One measurement: the metric and what it cost, in CPU seconds."""

    metric: float
    train_seconds: float
    evaluation_seconds: float


@dataclass(frozen=True)
class Bench:
    """What all measurements share."""

    environment: Environment
    data: Path
    hardware_class: str
    settings: SandboxSettings

    def measure(self, files: dict[str, str], seed: int) -> Result:
        """Train and score a codebase once."""
        with tempfile.TemporaryDirectory(dir=self.settings.scratch) as name:
            folder = Path(name)
            folder.chmod(0o755)
            tree = {path: text.encode() for path, text in files.items()}
            for copy in ("training", "codebase"):
                write_tree(tree, folder / copy)
            (folder / "out").mkdir()
            seconds = self._train(folder, seed)
            return self._score(folder, seed, seconds)

    def _train(self, folder: Path, seed: int) -> float:
        profile = self.environment.profile(PROFILE)
        sandbox = open_sandbox(self.settings)
        config = folder / "config.json"
        budget = profile.budget.model_dump(exclude_none=True)
        config.write_text(json.dumps({**profile.config, "budget": budget}))
        code = Mount(folder / "training", "/work/codebase", writable=True)
        data = Mount(self.data / "train", "/work/data")
        out = Mount(folder / "out", "/work/out", writable=True)
        settings = Mount(config, "/work/config.json")
        env = {
            "ASSAY_DATA": sandbox.path(data),
            "ASSAY_OUT": sandbox.path(out),
            "ASSAY_CONFIG": sandbox.path(settings),
            "ASSAY_SEED": str(seed),
            "ASSAY_PROFILE": PROFILE,
            "ASSAY_HARDWARE_CLASS": self.hardware_class,
            "ASSAY_THREADS": "1",
            "ASSAY_SECONDS": str(profile.budget.seconds),
            "OMP_NUM_THREADS": "1",
        }
        argv = (sys.executable, *self.environment.manifest.entry_points.train[1:])
        limits = Limits(profile.budget.seconds, profile.memory_bytes)
        with (folder / "log").open("w+") as log:
            spec = SandboxSpec(
                name="train",
                argv=argv,
                env=env,
                mounts=(code, data, out, settings),
                cwd=sandbox.path(code),
                limits=limits,
                stdout=log.fileno(),
                stderr=log.fileno(),
            )
            ended = sandbox.start(spec).wait()
            log.seek(0)
            if ended.reason != "exited" or ended.code != 0:
                raise SystemExit(f"training ended: {ended}\n{log.read()[-2000:]}")
        return ended.cpu_seconds

    def _score(self, folder: Path, seed: int, train_seconds: float) -> Result:
        profile, manifest = self.environment.profile(PROFILE), self.environment.manifest
        request = EvaluationRequest(
            environment_dir=self.environment.folder,
            config=profile.config,
            predict=manifest.entry_points.predict,
            codebase_dir=folder / "codebase",
            artifact_dir=folder / "out",
            held_out=self.data / "search",
            seed=seed,
            metric_name=manifest.metric.name,
            sandbox=self.settings,
            limits=Limits(profile.budget.evaluation_seconds, profile.memory_bytes),
            seconds=profile.budget.evaluation_seconds,
            profile=PROFILE,
            hardware_class=self.hardware_class,
        )
        outcome = evaluate_in_child(request)
        if outcome.metrics is None:
            raise SystemExit(f"no result: {outcome.failure}")
        metric = outcome.metrics[manifest.metric.name]
        return Result(metric, train_seconds, outcome.cpu_seconds)


def student_p(t: float, degrees: int) -> float:
    """Two-sided p of Student's t, by integrating the density (Simpson's rule)."""
    scale = math.gamma((degrees + 1) / 2) / math.gamma(degrees / 2)
    scale /= math.sqrt(degrees * math.pi)
    steps = 20_000
    # u = t' / (1 + t') maps the tail from |t| to infinity onto a finite interval.
    start, width = abs(t) / (1 + abs(t)), 1 / (1 + abs(t)) / steps

    def density(u: float) -> float:
        if u >= 1.0:
            return 0.0
        x = u / (1 - u)
        tail: float = (1 + x * x / degrees) ** (-(degrees + 1) / 2)
        return scale * tail / (1 - u) ** 2

    weights = (1 if i in (0, steps) else 4 if i % 2 else 2 for i in range(steps + 1))
    total: float = sum(w * density(start + i * width) for i, w in enumerate(weights))
    return 2 * total * width / 3


def compare(values: list[float], baseline: list[float]) -> dict[str, float]:
    """The paired difference to the baseline; negative is an improvement (a lower loss)."""
    differences = [a - b for a, b in zip(values, baseline, strict=True)]
    spread = stdev(differences)
    mean = fmean(differences)
    t = mean / (spread / math.sqrt(len(differences))) if spread else math.inf
    return {"difference": mean, "t": t, "p": student_p(t, len(differences) - 1)}


def codebases(environment: Environment, edits: list[Path]) -> dict[str, dict[str, str]]:
    """The baseline and every edit applied to it, by name."""
    folder = environment.folder / "codebase"
    base = {p.relative_to(folder).as_posix(): p.read_text() for p in sorted(folder.rglob("*.py"))}
    made = {"baseline": base}
    for edit in edits:
        made[edit.stem] = apply_answer(base, edit.read_text()).files
    return made


def report(results: dict[str, list[Result]]) -> dict[str, Any]:
    """Print the table and return the figures."""
    baseline = [r.metric for r in results["baseline"]]
    print(f"\n{'edit':26}", *(f"{title:>10}" for title in TITLES))
    figures: dict[str, Any] = {}
    for name, measured in results.items():
        values = [r.metric for r in measured]
        cost = fmean(r.train_seconds + r.evaluation_seconds for r in measured)
        figures[name] = {"mean": fmean(values), "spread": stdev(values), "values": values}
        row = [f"{fmean(values):.4f}", f"{stdev(values):.4f}", "", "", ""]
        if name != "baseline":
            figures[name] |= (paired := compare(values, baseline))
            row[2:] = [f"{paired['difference']:+.4f}", f"{paired['t']:.1f}", f"{paired['p']:.0e}"]
        print(f"{name:26}", *(f"{cell:>10}" for cell in [*row, f"{cost:.1f}"]))
    return figures


def measure_all(
    bench: Bench, trees: dict[str, dict[str, str]], seeds: int, parallel: int
) -> dict[str, list[Result]]:
    """Every codebase on seeds 0, 1, …; prints each result as it comes."""
    jobs = [(name, files, seed) for name, files in trees.items() for seed in range(seeds)]
    results: dict[str, list[Result]] = {}
    with ThreadPoolExecutor(parallel) as pool:
        measured = pool.map(lambda job: bench.measure(job[1], job[2]), jobs)
        for (name, _, seed), result in zip(jobs, measured, strict=True):
            results.setdefault(name, []).append(result)
            print(
                f"{name} seed {seed}: {result.metric:.4f} "
                f"(CPU: training {result.train_seconds:.1f} s, "
                f"evaluation {result.evaluation_seconds:.1f} s)",
                flush=True,
            )
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("edits", nargs="*", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--parallel", type=int, default=1)
    parser.add_argument("--sandbox", default="auto", choices=["auto", "bubblewrap", "subprocess"])
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "assay")
    arguments = parser.parse_args()
    edits = arguments.edits or sorted((ROOT / "tests/environments/nanogpt").glob("*.diff"))
    environment = Environment.load(ROOT / "environments/nanogpt")
    with tempfile.TemporaryDirectory(prefix="assay-bench-") as scratch:
        os.chmod(scratch, 0o755)
        settings, reason = choose_sandbox(arguments.sandbox, Path(scratch))
        print(f"sandbox: {reason}")
        data = prepare_data(environment, PROFILE, arguments.cache)
        bench = Bench(environment, data, hardware_class(read_cpu()), settings)
        start_evaluation_server()
        trees = codebases(environment, edits)
        results = measure_all(bench, trees, arguments.seeds, arguments.parallel)
    figures = report(results)
    summary = {
        "name": "discrimination",
        "environment": environment.name,
        "hardware_class": bench.hardware_class,
        "seeds": arguments.seeds,
        "edits": figures,
        "alternative": "the unmodified codebase on the same seeds",
    }
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
