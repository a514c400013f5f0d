"""Codebases of the bundled environments, edited and trained for real."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from assay.environments.bundle import write_tree
from assay.environments.catalog import Environment
from assay.environments.prepare import prepare_data

ROOT = Path(__file__).resolve().parents[2]
Tree = dict[str, str]


@dataclass(frozen=True)
class Bundled:
    """A bundled environment, its files, and its recipes by name."""

    environment: Environment

    @cached_property
    def files(self) -> Tree:
        return dict(self.environment.codebase)

    def edits(self, name: str) -> list[tuple[str, str, str]]:
        """(file, search, replace) of a recipe, or of a knob written as `name=value`."""
        manifest = self.environment.manifest
        if "=" not in name:
            (recipe,) = [r for r in manifest.recipes if r.name == name]
            return [(e.file, e.search, e.replace) for e in recipe.edits]
        knob_name, value = name.split("=")
        (knob,) = [k for k in manifest.knobs if k.name == knob_name]
        kept = knob.line[: knob.line.rindex("= ") + 2]
        return [(knob.file, f"{knob.line}\n", f"{kept}{value}\n")]

    def names(self, kind: str) -> list[str]:
        return [r.name for r in self.environment.manifest.recipes if r.kind == kind]

    def apply(self, *names: str) -> Tree:
        """The codebase with recipes and knobs carried out one after the other."""
        files = dict(self.files)
        for name in names:
            for file, search, replace in self.edits(name):
                if files[file].count(search) != 1:
                    raise LookupError(f"{name}: its text stands {files[file].count(search)} times")
                files[file] = files[file].replace(search, replace)
        return files


def load(name: str) -> Bundled:
    return Bundled(Environment.load(ROOT / "environments" / name))


@pytest.fixture(scope="session")
def nanogpt() -> Bundled:
    return load("nanogpt")


@pytest.fixture(scope="session")
def toy() -> Bundled:
    return load("toy")


@pytest.fixture(scope="session")
def nanogpt_data(nanogpt: Bundled, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare_data(nanogpt.environment, "tiny", tmp_path_factory.mktemp("nanogpt"))


@pytest.fixture(scope="session")
def hardware_class() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    flags = cpuinfo.read_text() if cpuinfo.exists() else ""
    return "cpu-bf16" if "avx512_bf16" in flags or "amx_bf16" in flags else "cpu-fp32"


@dataclass(frozen=True)
class Trained:
    """A training that ended: its folder (`code`, `out`) and what went wrong, if anything."""

    folder: Path
    error: str | None
    checks: Mapping[str, Any]


TrainMany = Callable[..., dict[str, Trained]]


@pytest.fixture
def train_many(nanogpt_data: Path, hardware_class: str, tmp_path: Path) -> TrainMany:
    """Train several codebases of nanogpt, forked from one process that has torch loaded."""

    def train(
        trees: Mapping[str, Tree],
        tokens: int,
        seeds: Sequence[int] = (0,),
        flags: Sequence[str] = (),
        variables: Mapping[str, str] | None = None,
    ) -> Any:
        config = tmp_path / "config.json"
        budget = {"seconds": 99, "tokens": tokens}
        config.write_text(json.dumps({"vocab_size": 256, "budget": budget}))
        jobs = []
        for (name, tree), seed in itertools.product(trees.items(), seeds):
            key = name if len(seeds) == 1 else f"{name}@{seed}"
            write_tree({p: t.encode() for p, t in tree.items()}, tmp_path / key / "code")
            (tmp_path / key / "out").mkdir()
            folder = str(tmp_path / key)
            jobs.append({"name": key, "folder": folder, "seed": seed, "flags": list(flags)})
        environment = {
            "PATH": os.environ["PATH"],
            "ASSAY_DATA": str(nanogpt_data / "train"),
            "ASSAY_CONFIG": str(config),
            "ASSAY_PROFILE": "tiny",
            "ASSAY_HARDWARE_CLASS": hardware_class,
            "ASSAY_THREADS": "1",
            "OMP_NUM_THREADS": "1",
        }
        driver = Path(__file__).with_name("train_driver.py")
        done = subprocess.run(
            [sys.executable, str(driver)],
            input=json.dumps(jobs),
            env=environment | dict(variables or {}),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        results = json.loads(done.stdout.splitlines()[-1])
        return {
            name: Trained(tmp_path / name, found["error"], found["checks"])
            for name, found in results.items()
        }

    return train
