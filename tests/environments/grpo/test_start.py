"""The model that `quick-gpu` starts from: made without a GPU, and the same on every processor."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from assay.environments.bundle import read_tree, write_tree
from assay.environments.catalog import Environment
from assay.environments.prepare import prepare_data
from tests.environments.grpo.conftest import ENVIRONMENT

pytestmark = pytest.mark.slow

# Of another size: the real one takes minutes.
SMALL = {
    "hidden_size": 96, "intermediate_size": 128, "layers": 2, "steps": 12,
    "batch_size": 16, "problems": 40, "least": 0.0,
}  # fmt: skip
# What torch and MKL find on an older processor.
OLDER = {"ATEN_CPU_CAPABILITY": "default", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2"}


@pytest.fixture
def quick(tmp_path: Path) -> Environment:
    """The environment with few steps of a small model in `quick-gpu`."""
    folder = tmp_path / "environments" / "grpo"
    write_tree(read_tree(ENVIRONMENT), folder)
    path = folder / "environment.toml"
    head, middle = path.read_text().split("[profiles.quick-gpu.config.warm_start]\n")
    table, tail = middle.split("\n\n", 1)
    changed = [
        f"{name} = {SMALL.get(name, value)}"
        for name, value in (line.split(" = ") for line in table.splitlines())
    ]
    assert len(set(changed) - set(table.splitlines())) == len(SMALL)
    head += "[profiles.quick-gpu.config.warm_start]\n" + "\n".join(changed)
    path.write_text(f"{head}\n\n{tail.replace('search = 1000', 'search = 20')}")
    return Environment.load(folder)


def start_of(environment: Environment, cache: Path) -> str:
    data = prepare_data(environment, "quick-gpu", cache)
    return hashlib.sha256((data / "train/model/model.safetensors").read_bytes()).hexdigest()


def test_every_processor_makes_the_same(
    quick: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nor does it matter which GPUs there are: nobody has leased one while data is prepared.
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    here = start_of(quick, tmp_path / "here")
    for name, value in OLDER.items():
        monkeypatch.setenv(name, value)
    assert start_of(quick, tmp_path / "older") == here
