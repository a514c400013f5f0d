"""Measure codebases without a service: train in a sandbox, score with the sealed evaluation.

What the benchmarks `discrimination` and `calibrate` share. Every result is kept in a file as soon
as it is there, so an interrupted command continues where it stopped.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import psutil

from assay.domain.hashing import text_tree_hash
from assay.domain.states import MeasurementKind
from assay.environments.bundle import write_tree
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
from services.worker.scoring import Splits
from services.worker.training import with_interpreter

ROOT = Path(__file__).resolve().parents[2]
#: Where results are kept between commands.
MEASURED = ROOT / ".assay" / "measured.jsonl"
#: A failure may be the host's fault, so it gets a second try; then it is the result.
TRIES = 2
Tree = dict[str, str]


@dataclass(frozen=True)
class Result:
    """One measurement: what the evaluator returned, or why there is nothing.

    `train_seconds` and `evaluation_seconds` are CPU time, `wall_seconds` is the time both took.
    `others` is the share of this machine's processors that other programs used meanwhile.
    """

    metrics: Mapping[str, float]
    error: str
    train_seconds: float
    evaluation_seconds: float
    wall_seconds: float = 0.0
    others: float = 0.0

    @property
    def core_seconds(self) -> float:
        return self.train_seconds + self.evaluation_seconds


@dataclass(frozen=True)
class Run:
    """A codebase, under a name that people read, and the seed it is to be measured on."""

    name: str
    files: Tree
    seed: int

    @cached_property
    def codebase(self) -> str:
        return text_tree_hash(self.files)


class TrainingFailed(Exception):
    """The codebase did not come to its end."""


@dataclass(frozen=True)
class Training:
    """A training that came to its end: `folder` holds `codebase` and `out`, what it left."""

    folder: Path
    seed: int
    cpu_seconds: float
    checkpoints: tuple[Checkpoint, ...]


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

    def where(self, condition: str = "") -> list[Any]:
        """Return what a stored result has to agree with; see `where_of`."""
        return where_of(
            self.environment,
            self.profile_name,
            self.hardware_class,
            budget=self.budget,
            condition=condition,
        )

    def measure(
        self, files: Tree, seed: int, kind: MeasurementKind = MeasurementKind.SCORE
    ) -> Result:
        """Train and score a codebase once, on the splits that a worker reads for this kind."""
        try:
            with self.trained(files, seed) as training:
                return self.score(training, kind)
        except TrainingFailed as failed:
            return Result({}, str(failed), 0.0, 0.0)

    @contextmanager
    def trained(self, files: Tree, seed: int) -> Iterator[Training]:
        """Train a codebase; what it left is there until the block ends.

        Raises:
            TrainingFailed: it did not come to its end.
        """
        with tempfile.TemporaryDirectory(dir=self.settings.scratch) as name:
            folder = Path(name)
            folder.chmod(0o755)
            tree = {path: text.encode() for path, text in files.items()}
            for copy in ("training", "codebase"):
                write_tree(tree, folder / copy)
            (folder / "out").mkdir()
            seconds, checkpoints = self._train(folder, seed)
            yield Training(folder, seed, seconds, checkpoints)

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
                how = f"{ended.reason}, code {ended.code}"
                raise TrainingFailed(f"training ended: {how}\n{log.read()[-2000:]}")
            return ended.cpu_seconds, watch.stop()

    def score(self, training: Training, kind: MeasurementKind = MeasurementKind.SCORE) -> Result:
        """Score what a training left, on the splits that a worker reads for this kind."""
        splits = Splits.of(self.environment.manifest.metric, self.data, kind)
        profile, manifest = self.environment.profile(self.profile_name), self.environment.manifest
        request = EvaluationRequest(
            environment_dir=self.environment.folder,
            config=self._config(),
            predict=manifest.entry_points.predict,
            codebase_dir=training.folder / "codebase",
            artifact_dir=training.folder / "out",
            held_out=splits.held_out,
            sealed=splits.sealed,
            checkpoints=training.checkpoints,
            seed=training.seed,
            shown_seed=training.seed,
            metric_name=splits.metric,
            sandbox=self.settings,
            limits=Limits(profile.budget.evaluation_seconds, profile.memory_bytes),
            seconds=profile.budget.evaluation_seconds,
            profile=self.profile_name,
            hardware_class=self.hardware_class,
        )
        outcome = evaluate_in_child(request)
        failure = outcome.failure
        error = "" if failure is None else f"{failure.code.value}: {failure.detail}"
        return Result(outcome.metrics or {}, error, training.cpu_seconds, outcome.cpu_seconds)


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


def where_of(
    environment: Environment,
    profile: str,
    hardware_class: str,
    *,
    budget: Mapping[str, float] | None = None,
    condition: str = "",
) -> list[Any]:
    """Return all that a result depends on besides the codebase and the seed.

    The environment's whole hash is part of it, so results never outlive a change of its evaluator,
    its data or its manifest. `condition` tells runs apart that were made on a busy machine.
    """
    return [environment.content_hash, profile, hardware_class, dict(budget or {}), condition]


class Store:
    """Results by codebase and seed, in a file of JSON lines."""

    def __init__(
        self, path: Path, where: list[Any], ignore: Callable[[Result], bool] = lambda _: False
    ) -> None:
        self._path = path
        self._where = where
        self._lock = threading.Lock()
        self._known: dict[tuple[str, int], Result] = {}
        self._tries: dict[tuple[str, int], int] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        text = path.read_text() if path.exists() else ""
        if text and not text.endswith("\n"):
            path.write_text(f"{text}\n")
        for line in text.splitlines():
            try:
                entry = json.loads(line)
            except json.JSONDecodeError:
                continue  # a killed command left half of a line: that run is made again
            result = Result(**entry["result"]) if entry["where"] == where else None
            if result is not None and not ignore(result):
                self._note((entry["codebase"], entry["seed"]), result)

    def _note(self, key: tuple[str, int], result: Result) -> None:
        self._known[key] = result
        self._tries[key] = self._tries.get(key, 0) + 1

    def get(self, codebase: str, seed: int) -> Result | None:
        """Return the result stored for a codebase's hash; None where one is to be measured."""
        key = (codebase, seed)
        found = self._known.get(key)
        again = found is not None and found.error and self._tries[key] < TRIES
        return None if again else found

    def results(self) -> list[Result]:
        """Return the latest result of every codebase and seed."""
        return list(self._known.values())

    def measure(
        self, bench: Bench, files: Tree, seed: int, stop: Callable[[], bool] = lambda: False
    ) -> Result:
        """Return the stored result, or measure and store it.

        A failure is tried again at once, and stored each time. Once `stop` is true, failures are
        not stored: what stops this command may have killed the run.
        """
        key = (text_tree_hash(files), seed)
        while (found := self.get(*key)) is None:
            result = _measured(bench, files, seed)
            if result.error and stop():
                return result
            self.add(key[0], seed, result)
        return found

    def add(self, codebase: str, seed: int, result: Result) -> None:
        """Store a result of the codebase with this hash."""
        entry = {"where": self._where, "codebase": codebase, "seed": seed}
        entry |= {"result": dataclasses.asdict(result)}
        with self._lock, self._path.open("a") as file:
            file.write(json.dumps(entry) + "\n")
            self._note((codebase, seed), result)


def _measured(bench: Bench, files: Tree, seed: int) -> Result:
    """Measure, and note how long it took and how busy the machine was with other programs."""
    started, used = time.monotonic(), _processor_seconds()
    result = bench.measure(files, seed)
    wall = time.monotonic() - started
    others = (_processor_seconds() - used - result.core_seconds) / wall / (os.cpu_count() or 1)
    return dataclasses.replace(
        result, wall_seconds=round(wall, 2), others=round(min(1.0, max(0.0, others)), 3)
    )


def _processor_seconds() -> float:
    """Return the CPU seconds that all programs of this machine have used since it started."""
    times = psutil.cpu_times()
    # `user` and `nice` include what guests used.
    kinds = (times.user, times.nice, times.system, times.irq, times.softirq, times.steal)
    return float(sum(kinds))


@contextmanager
def opened_bench(
    environment: Environment,
    profile: str,
    *,
    budget: Mapping[str, float] | None = None,
    cache: Path = ROOT / ".assay" / "bench-cache",
) -> Iterator[Bench]:
    """A bench for an environment, in the best sandbox there is, with the public data."""
    with tempfile.TemporaryDirectory(prefix="assay-bench-") as scratch:
        os.chmod(scratch, 0o755)
        settings, reason = choose_sandbox("auto", Path(scratch))
        print(f"sandbox: {reason}", file=sys.stderr)
        data = prepare_data(environment, profile, cache)
        start_evaluation_server()
        kind = hardware_class(read_cpu())
        yield Bench(environment, profile, data, kind, settings, budget or {})


def measure_runs(
    bench: Bench,
    runs: Sequence[Run],
    store: Store,
    *,
    parallel: int,
    report: Callable[[Run, Result], None],
    stop: Callable[[], bool] = lambda: False,
) -> None:
    """Make the runs that the store lacks, `parallel` at a time; start none once `stop` is true."""

    def make(run: Run) -> None:
        if not stop():
            report(run, store.measure(bench, run.files, run.seed, stop))

    missing = [run for run in runs if store.get(run.codebase, run.seed) is None]
    with ThreadPoolExecutor(parallel) as pool:
        list(pool.map(make, missing))


def describe(run: Run, result: Result, metric: str) -> str:
    """Return one line about a result."""
    first = result.error.splitlines()[:1]
    shown = f"failed: {first[0]}" if first else f"{metric} {result.metrics.get(metric)}"
    cost = f"{result.train_seconds:.1f} + {result.evaluation_seconds:.1f} CPU s"
    return f"{run.name} seed {run.seed}: {shown} ({cost})"


def measure_all(
    bench: Bench, trees: Mapping[str, Tree], seeds: Sequence[int], *, parallel: int, store: Path
) -> dict[str, list[Result]]:
    """Every codebase on every seed; prints each result as it comes."""
    stored = Store(store, bench.where())
    runs = [Run(name, files, seed) for seed in seeds for name, files in trees.items()]

    def report(run: Run, result: Result) -> None:
        print(describe(run, result, bench.metric_name), file=sys.stderr, flush=True)

    measure_runs(bench, runs, stored, parallel=parallel, report=report)
    return {
        name: [stored.measure(bench, files, seed) for seed in seeds]
        for name, files in trees.items()
    }
