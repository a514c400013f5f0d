"""Measure codebases without a service: train in a sandbox, score with the sealed evaluation.

What `discrimination` and `paper_ideas` share. Results are kept in a file, so that a command that
was interrupted goes on where it stopped.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from assay.domain.hashing import text_tree_hash, tree_hash
from assay.environments.bundle import read_tree, write_tree
from assay.environments.catalog import Environment
from assay.environments.prepare import prepare_data
from assay.evaluation import EvaluationRequest, evaluate_in_child, start_evaluation_server
from assay.evaluation.checkpoints import Checkpoint
from assay.sandbox import (
    Limits,
    Mount,
    SandboxSettings,
    SandboxSpec,
    choose_sandbox,
    open_sandbox,
)
from services.worker.checkpoints import CheckpointWatch
from services.worker.hardware import hardware_class, read_cpu
from services.worker.training import with_interpreter

ROOT = Path(__file__).resolve().parents[2]
Tree = dict[str, str]


@dataclass(frozen=True)
class Result:
    """One measurement: what the evaluator returned, or why there is nothing; CPU seconds."""

    metrics: Mapping[str, float]
    error: str
    train_seconds: float
    evaluation_seconds: float


class TrainingFailed(Exception):
    """The codebase did not come to its end."""


@dataclass(frozen=True)
class Bench:
    """What all measurements share. `budget` replaces parts of the profile's."""

    environment: Environment
    profile_name: str
    data: Path
    hardware_class: str
    settings: SandboxSettings
    budget: Mapping[str, float] = dataclasses.field(default_factory=dict)

    @property
    def metric_name(self) -> str:
        return self.environment.manifest.metric.name

    @cached_property
    def baseline(self) -> Tree:
        """The unmodified codebase."""
        return self.environment.codebase

    def measure(self, files: Tree, seed: int) -> Result:
        """Train and score a codebase once."""
        with tempfile.TemporaryDirectory(dir=self.settings.scratch) as name:
            folder = Path(name)
            folder.chmod(0o755)
            tree = {path: text.encode() for path, text in files.items()}
            for copy in ("training", "codebase"):
                write_tree(tree, folder / copy)
            (folder / "out").mkdir()
            try:
                seconds, checkpoints = self._train(folder, seed)
            except TrainingFailed as failed:
                return Result({}, str(failed), 0.0, 0.0)
            return self._score(folder, seed, seconds, checkpoints)

    def _config(self) -> dict[str, Any]:
        profile = self.environment.profile(self.profile_name)
        budget = profile.budget.model_dump(exclude_none=True) | dict(self.budget)
        return {**profile.config, "budget": budget}

    def _variables(self, seed: int) -> dict[str, str]:
        profile = self.environment.profile(self.profile_name)
        threads = str(profile.cpus)
        return {
            "ASSAY_SEED": str(seed),
            "ASSAY_PROFILE": self.profile_name,
            "ASSAY_HARDWARE_CLASS": self.hardware_class,
            "ASSAY_THREADS": threads,
            "ASSAY_GPUS": str(profile.gpus),
            "ASSAY_SECONDS": str(profile.budget.seconds),
            "OMP_NUM_THREADS": threads,
            "PYTHONDONTWRITEBYTECODE": "1",
            "HOME": "/tmp",
        }

    def _train(self, folder: Path, seed: int) -> tuple[float, tuple[Checkpoint, ...]]:
        profile = self.environment.profile(self.profile_name)
        sandbox = open_sandbox(self.settings)
        config = folder / "config.json"
        config.write_text(json.dumps(self._config()))
        code = Mount(folder / "training", "/work/codebase", writable=True)
        data = Mount(self.data / "train", "/work/data")
        out = Mount(folder / "out", "/work/out", writable=True)
        settings = Mount(config, "/work/config.json")
        env = self._variables(seed) | {
            "ASSAY_DATA": sandbox.path(data),
            "ASSAY_OUT": sandbox.path(out),
            "ASSAY_CONFIG": sandbox.path(settings),
        }
        train = self.environment.manifest.entry_points.train
        with (folder / "log").open("w+") as log, _watching(folder / "out") as watch:
            spec = SandboxSpec(
                name="train",
                argv=with_interpreter(train, sandbox.python),
                env=env,
                mounts=(code, data, out, settings),
                cwd=sandbox.path(code),
                limits=Limits(profile.budget.seconds, profile.memory_bytes),
                stdout=log.fileno(),
                stderr=log.fileno(),
            )
            ended = sandbox.start(spec).wait()
            log.seek(0)
            if ended.reason != "exited" or ended.code != 0:
                raise TrainingFailed(f"training ended: {ended}\n{log.read()[-2000:]}")
            return ended.cpu_seconds, watch.stop()

    def _score(
        self, folder: Path, seed: int, seconds: float, checkpoints: tuple[Checkpoint, ...]
    ) -> Result:
        profile, manifest = self.environment.profile(self.profile_name), self.environment.manifest
        request = EvaluationRequest(
            environment_dir=self.environment.folder,
            config=self._config(),
            predict=manifest.entry_points.predict,
            codebase_dir=folder / "codebase",
            artifact_dir=folder / "out",
            held_out=self.data / "search",
            sealed=self.data / "sealed",
            checkpoints=checkpoints,
            seed=seed,
            shown_seed=seed,
            metric_name=manifest.metric.name,
            sandbox=self.settings,
            limits=Limits(profile.budget.evaluation_seconds, profile.memory_bytes),
            seconds=profile.budget.evaluation_seconds,
            profile=self.profile_name,
            hardware_class=self.hardware_class,
        )
        outcome = evaluate_in_child(request)
        failure = outcome.failure
        error = "" if failure is None else f"{failure.code.value}: {failure.detail}"
        return Result(outcome.metrics or {}, error, seconds, outcome.cpu_seconds)


@contextmanager
def _watching(out: Path) -> Iterator[CheckpointWatch]:
    descriptor = os.open(out, os.O_RDONLY | os.O_DIRECTORY)
    watch = CheckpointWatch(descriptor, 1 << 40)
    watch.start()
    try:
        yield watch
    finally:
        watch.close()
        os.close(descriptor)


class Store:
    """Results by codebase and seed, in a file of JSON lines."""

    def __init__(self, path: Path, bench: Bench) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._where = [bench.environment.name, bench.profile_name, bench.hardware_class]
        self._where.append(_what_measures(bench))
        self._known: dict[tuple[str, int], Result] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        for line in path.read_text().splitlines() if path.exists() else ():
            entry = json.loads(line)
            if entry["where"] == self._where:
                self._known[entry["codebase"], entry["seed"]] = Result(**entry["result"])

    def measure(self, bench: Bench, files: Tree, seed: int) -> Result:
        """The stored result, or a new one."""
        key = (text_tree_hash(files), seed)
        found = self._known.get(key)
        if found is None:
            found = bench.measure(files, seed)
            if found.error:
                return found  # may be the host's fault: looked at again next time
            self._known[key] = found
            entry = {"where": self._where, "codebase": key[0], "seed": seed}
            entry |= {"result": dataclasses.asdict(found)}
            with self._lock, self._path.open("a") as file:
                file.write(json.dumps(entry) + "\n")
        return found


def _what_measures(bench: Bench) -> str:
    """A hash of all that a result depends on besides the codebase and the seed: other knobs and
    recipes in the manifest change no number."""
    environment = bench.environment
    files = {
        name: content
        for name, content in read_tree(environment.folder).items()
        if not name.startswith("codebase/") and name.endswith(".py")
    }
    profile = environment.profile(bench.profile_name).model_dump(mode="json")
    entry_points = environment.manifest.entry_points.model_dump(mode="json")
    files["profile"] = json.dumps([profile, entry_points, dict(bench.budget)]).encode()
    return tree_hash(files)


@contextmanager
def opened_bench(
    name: str, profile: str, budget: Mapping[str, float] | None = None
) -> Iterator[Bench]:
    """A bench for a bundled environment, in the best sandbox there is, with the public data."""
    environment = Environment.load(ROOT / "environments" / name)
    with tempfile.TemporaryDirectory(prefix="assay-bench-") as scratch:
        os.chmod(scratch, 0o755)
        settings, reason = choose_sandbox("auto", Path(scratch))
        print(f"sandbox: {reason}", file=sys.stderr)
        data = prepare_data(environment, profile, ROOT / ".assay" / "bench-cache")
        start_evaluation_server()
        kind = hardware_class(read_cpu())
        yield Bench(environment, profile, data, kind, settings, budget or {})


def measure_all(
    bench: Bench, trees: Mapping[str, Tree], seeds: Sequence[int], *, parallel: int, store: Path
) -> dict[str, list[Result]]:
    """Every codebase on every seed; prints each result as it comes."""
    stored = Store(store, bench)
    jobs = [(name, files, seed) for seed in seeds for name, files in trees.items()]
    results: dict[str, list[Result]] = {name: [] for name in trees}
    with ThreadPoolExecutor(parallel) as pool:
        measured = pool.map(lambda job: stored.measure(bench, job[1], job[2]), jobs)
        for (name, _, seed), result in zip(jobs, measured, strict=True):
            results[name].append(result)
            shown = result.metrics.get(bench.metric_name, result.error.splitlines()[:1])
            cost = f"{result.train_seconds:.1f} + {result.evaluation_seconds:.1f} CPU s"
            print(f"{name} seed {seed}: {shown} ({cost})", file=sys.stderr, flush=True)
    return results
