"""The codebase of `grpo` as modules, and one training that tests share."""

from __future__ import annotations

import importlib
import json
import os
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from assay.environments.prepare import prepare_data
from tests.environments.conftest import Bundled, load

ENVIRONMENT = Path(__file__).resolve().parents[3] / "environments" / "grpo"
CODEBASE = ENVIRONMENT / "codebase"
MODULES = ("model", "generate", "config", "advantages", "loss", "data", "rewards", "verifier",
           "optim", "rollout", "train", "vllm_engine")  # fmt: skip


@pytest.fixture(scope="session")
def code() -> Iterator[Any]:
    """The modules of the codebase by name. They import one another by short names, which other
    codebases have too: so these are forgotten again."""
    before = set(sys.modules)
    sys.path.insert(0, str(CODEBASE))
    sys.dont_write_bytecode, kept = True, sys.dont_write_bytecode
    try:
        modules = {name: importlib.import_module(name) for name in MODULES}
    finally:
        sys.dont_write_bytecode = kept
        sys.path.remove(str(CODEBASE))
        for name in set(sys.modules) - before:
            file = getattr(sys.modules[name], "__file__", None)
            if file and Path(file).parent == CODEBASE:
                del sys.modules[name]
    made: list[Any] = []

    def verifier() -> Any:
        made.append(modules["verifier"].Verifier())
        return made[-1]

    modules["rewards"].Verifier = verifier
    yield SimpleNamespace(**modules)
    for each in made:
        each.close()


@pytest.fixture(scope="session")
def grader() -> Any:
    """The evaluator's functions and its grader's."""
    evaluator = runpy.run_path(str(ENVIRONMENT / "evaluator" / "evaluate.py"))
    return SimpleNamespace(**{k: v for k, v in evaluator.items() if not k.startswith("_")})


@pytest.fixture(scope="session")
def grpo() -> Bundled:
    return load("grpo")


@pytest.fixture(scope="session")
def data(grpo: Bundled, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare_data(grpo.environment, "tiny", tmp_path_factory.mktemp("grpo"))


@dataclass(frozen=True)
class Done:
    """A training that ended: where it wrote, its exit code and what it said."""

    out: Path
    code: int
    said: str

    @property
    def curve(self) -> list[dict[str, float]]:
        lines = (self.out / "metrics.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    @property
    def checkpoints(self) -> list[Path]:
        return sorted((self.out / "checkpoints").iterdir())


Train = Callable[..., Done]


def variables(data: Path, out: Path, seed: int) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "ASSAY_DATA": str(data),
        "ASSAY_OUT": str(out),
        "ASSAY_SEED": str(seed),
        "ASSAY_PROFILE": "tiny",
        "ASSAY_HARDWARE_CLASS": "cpu-fp32",
        "ASSAY_THREADS": "1",
        "ASSAY_SECONDS": "120",
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


@pytest.fixture(scope="session")
def train(grpo: Bundled, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Train:
    def run(*flags: str, seed: int = 0, data: Path = data, codebase: Path = CODEBASE) -> Done:
        out = tmp_path_factory.mktemp("out")
        done = subprocess.run(
            [sys.executable, "launch.py", *flags],
            cwd=codebase,
            env=variables(data / "train", out, seed),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        return Done(out, done.returncode, done.stdout)

    return run


@pytest.fixture(scope="session")
def trained(train: Train) -> Done:
    """The baseline at its full budget, seed 0."""
    done = train()
    assert done.code == 0, done.said
    return done


@pytest.fixture(scope="session")
def small(code: Any) -> Any:
    """A random model with grouped queries, several layers and spread-out logits."""
    import torch

    torch.manual_seed(1)
    model = code.model.Model(
        code.model.ModelConfig(
            vocab_size=19,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            rope_theta=5000.0,
        )
    )
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    return model
