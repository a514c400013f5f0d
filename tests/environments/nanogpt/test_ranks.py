"""Several processes train what one would: the same data, the same losses, the same weights."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from assay.sandbox import Limits, Mount, SandboxSettings, SandboxSpec, open_sandbox
from tests.environments.nanogpt.conftest import CODEBASE, WriteShards, shard

pytestmark = pytest.mark.slow

SETTINGS = {
    "precision": "fp32",
    "n_layer": 2,
    "n_head": 2,
    "n_embd": 32,
    "context": 16,
    "batch_size": 8,
    "warmup_steps": 2,
    "log_every": 1,
    "val_every": 3,
    "val_tokens": 336,
}
FLAGS = [text for name, value in SETTINGS.items() for text in (f"--{name}", str(value))]
STEPS = 6
TEXT = np.random.default_rng(0).integers(97, 123, 4000)


VARIABLES = {
    "ASSAY_PROFILE": "tiny",
    "ASSAY_SEED": "5",
    "ASSAY_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
}


def write_config(folder: Path) -> Path:
    """The file that $ASSAY_CONFIG names."""
    path = folder / "config.json"
    budget = {"seconds": 60, "tokens": STEPS * 8 * 16}
    path.write_text(json.dumps({"vocab_size": 256, "budget": budget}))
    return path


def train(
    code: SimpleNamespace,
    folder: Path,
    data: Path,
    processes: int,
    *flags: str,
    **variables: str,
) -> list[dict[str, Any]]:
    """Train in `processes` processes; the points of the curve."""
    out = folder / f"out-{processes}"
    out.mkdir()
    launch = [] if processes == 1 else code.launch.torchrun(processes)
    done = subprocess.run(
        [sys.executable, *launch, "train.py", *FLAGS, *flags],
        cwd=CODEBASE,
        env={
            **VARIABLES,
            "PATH": os.environ["PATH"],
            "ASSAY_DATA": str(data),
            "ASSAY_OUT": str(out),
            "ASSAY_CONFIG": str(write_config(folder)),
            **variables,
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def column(points: list[dict[str, Any]], name: str) -> list[float]:
    return [point[name] for point in points if name in point]


@pytest.mark.parametrize("order", ["sequential", "random"])
def test_two_processes_have_the_losses_and_weights_of_one(
    code: SimpleNamespace, write_shards: WriteShards, tmp_path: Path, order: str
) -> None:
    data = write_shards(shard(TEXT[:1500]), shard(TEXT[1500:]))
    flags = ("--order", order)
    one, two = (
        train(code, tmp_path, data, n, *flags, "--micro_batch", str(4 // n)) for n in (1, 2)
    )
    assert (one[0]["ranks"], two[0]["ranks"]) == (1, 2)
    for name in ("train/loss", "train/grad_norm", "train/validation_loss"):
        assert column(two, name) == pytest.approx(column(one, name), abs=1e-5)
    assert len(column(one, "train/loss")) == STEPS
    assert len(column(one, "train/validation_loss")) == 2
    weights = [
        torch.load(tmp_path / f"out-{n}" / "model.pt", weights_only=True)["weights"]
        for n in (1, 2)
    ]
    for name, values in weights[0].items():
        assert (values - weights[1][name]).abs().max() < 1e-5, name


@pytest.mark.bubblewrap
def test_two_processes_meet_and_train_in_a_sandbox(
    code: SimpleNamespace, write_shards: WriteShards, tmp_path: Path
) -> None:
    data = write_shards(shard(TEXT[:1500]), shard(TEXT[1500:]))
    out = tmp_path / "out"
    out.mkdir()
    sandbox = open_sandbox(SandboxSettings("bubblewrap", scratch=tmp_path / "scratch"))
    paths = {
        "ASSAY_DATA": Mount(data, "/job/data"),
        "ASSAY_OUT": Mount(out, "/job/out", writable=True),
        "ASSAY_CONFIG": Mount(write_config(tmp_path), "/job/config.json"),
    }
    with (tmp_path / "log").open("w+") as log:
        spec = SandboxSpec(
            name="train",
            argv=(sandbox.python, *code.launch.torchrun(2), "train.py", *FLAGS),
            env={**VARIABLES, **{name: mount.target for name, mount in paths.items()}},
            mounts=(Mount(CODEBASE, "/job/codebase"), *paths.values()),
            cwd="/job/codebase",
            limits=Limits(120, 4 << 30),
            stdout=log.fileno(),
            stderr=log.fileno(),
        )
        end = sandbox.start(spec).wait()
    assert (end.reason, end.code) == ("exited", 0), (tmp_path / "log").read_text()[-3000:]
    points = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert points[0]["ranks"] == 2
    assert len(column(points, "train/loss")) == STEPS


def test_trainings_of_one_host_do_not_meet_each_other(
    code: SimpleNamespace, write_shards: WriteShards, tmp_path: Path
) -> None:
    """Without a network of its own, each finds a free port."""
    data = write_shards(shard(TEXT))
    folders = [tmp_path / name for name in ("a", "b", "c")]
    for folder in folders:
        folder.mkdir()
    with ThreadPoolExecutor() as pool:
        curves = list(pool.map(lambda folder: train(code, folder, data, 2), folders))
    assert [len(column(points, "train/loss")) for points in curves] == [STEPS] * 3


@pytest.mark.parametrize("order", ["sequential", "random"])
def test_the_order_of_the_data_does_not_depend_on_the_number_of_ranks(
    code: SimpleNamespace, write_shards: WriteShards, order: str
) -> None:
    write_shards(shard(TEXT[:1000]), shard(TEXT[1000:2300]), shard(TEXT[2300:]))
    config = code.config.Tiny(vocab_size=256, context=16, batch_size=8, order=order)

    def steps(world: int) -> list[torch.Tensor]:
        """Tokens and targets of 40 steps (more than the text has), the ranks' rows together."""
        ranks = [code.data.Data(config, rank, world).batches(7) for rank in range(world)]
        found = []
        for parts in itertools.islice(zip(*ranks, strict=True), 40):
            tokens, targets = (torch.cat(kind) for kind in zip(*parts, strict=True))
            assert tokens.shape == (8, 16)
            assert torch.equal(tokens[:, 1:], targets[:, :-1])
            found.append(torch.cat([tokens, targets]))
        return found

    alone = steps(1)
    for world in (2, 4):
        assert all(torch.equal(a, b) for a, b in zip(alone, steps(world), strict=True))
    if order == "sequential":  # the text itself; a shard's last incomplete step is left out
        first = torch.from_numpy(TEXT[: 7 * 128])
        assert torch.equal(torch.cat([s[:8].flatten() for s in alone[:7]]), first)
        assert torch.equal(alone[7][:8].flatten(), torch.from_numpy(TEXT[1000:1128]))


def test_validation_reads_every_sequence_once_and_none_is_trained_on(
    code: SimpleNamespace, write_shards: WriteShards
) -> None:
    write_shards(shard(np.arange(4000) % 4000))
    config = code.config.Tiny(
        vocab_size=4000, context=16, batch_size=8, order="sequential", val_every=1, val_tokens=336
    )
    trained = next(code.data.Data(config).batches(0))[0].unique()
    for world in (1, 2, 4, 8):
        parts = [
            tokens
            for rank in range(world)
            for tokens, _ in code.data.Data(config, rank, world).validation(rows=3)
        ]
        found = torch.cat(parts).flatten().sort().values
        assert found.tolist() == list(range(4000 - 337, 4000 - 1))
    last_step = list(itertools.islice(code.data.Data(config).batches(0), 28))[-1]
    assert last_step[1].max() < 4000 - 337
    assert len(trained) == 128
