"""A training that compiles before it asks for its text is the same as one that has it at once."""

from __future__ import annotations

import copy
import importlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.environments.nanogpt.conftest import WriteShards, shard
from tests.environments.nanogpt.test_ranks import TEXT, column, train

pytestmark = pytest.mark.slow


@dataclass
class Worker:
    """Moves the text in once it is asked for; `asked` says when that was."""

    asked: Path
    waiting: Path
    data: Path
    at: float | None = None

    def watch(self) -> None:
        deadline = time.monotonic() + 120
        while not self.asked.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not self.data.exists()
        time.sleep(5)  # as a worker that was killed at this moment and is started again
        self.waiting.rename(self.data)
        self.at = time.monotonic()


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    for name in ("ask", "gate"):
        (tmp_path / name).mkdir()
    found = Worker(tmp_path / "ask" / "data", tmp_path / "waiting", tmp_path / "gate" / "data")
    thread = threading.Thread(target=found.watch)
    thread.start()
    yield found
    found.asked.touch()
    thread.join()


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("order", ["sequential", "random"])
def test_the_training_that_follows_is_the_same(
    code: SimpleNamespace,
    write_shards: WriteShards,
    tmp_path: Path,
    worker: Worker,
    order: str,
    processes: int,
) -> None:
    data = write_shards(shard(TEXT[:1500]), shard(TEXT[1500:]))
    flags = ("--order", order, "--micro_batch", "2")
    for name in ("at-once", "asks"):
        (tmp_path / name).mkdir()
    at_once = train(code, tmp_path / "at-once", data, processes, *flags)
    data.rename(worker.waiting)
    # A start long ago: the budget would be over if its clock did not start anew.
    variables = {
        "ASSAY_ASK": str(worker.asked),
        "NANOGPT_STARTED": repr(time.monotonic() - 3600),
    }
    asks = train(code, tmp_path / "asks", worker.data, processes, *flags, **variables)
    ended = time.monotonic()
    assert worker.at is not None
    # DDP lays its messages out anew after the first step, which rounds otherwise.
    rounding = 0.0 if processes == 1 else 1e-5
    for name in ("train/loss", "train/grad_norm", "train/validation_loss"):
        assert column(asks, name) == pytest.approx(column(at_once, name), abs=rounding, rel=0)
        assert column(asks, name)
    # It counts from when the text was there, and not from when it was asked for.
    assert 0 < column(asks, "train/seconds")[-1] < ended - worker.at
    weights = [
        torch.load(tmp_path / name / f"out-{processes}" / "model.pt", weights_only=True)["weights"]
        for name in ("at-once", "asks")
    ]
    for name, values in weights[0].items():
        assert (values - weights[1][name]).abs().max() <= rounding, name


@pytest.fixture
def rehearsal(code: SimpleNamespace) -> ModuleType:
    return importlib.import_module("warm_up")


class Counting(torch.nn.Module):
    """A model with a buffer, as batch norm has, and with random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3))
        self.register_buffer("seen", torch.zeros(()))

    def forward(self) -> Tensor:
        self.seen += 1
        return (self.weight * torch.rand(3)).sum()


def test_a_rehearsal_leaves_no_trace(code: SimpleNamespace, rehearsal: ModuleType) -> None:
    net, ranks = Counting(), code.ranks.Ranks(0, 1, torch.device("cpu"))
    parameters = list(net.parameters())
    optimizer = code.optim.AdamW(parameters, 0.9, 0.95, 1e-8, 0.1)
    before = copy.deepcopy(net.state_dict())
    generator = torch.get_rng_state()
    seen: list[float] = []

    def step() -> None:
        net().backward()
        seen.append(net.seen.item())

    rehearsal.rehearse(step, net, net, parameters, optimizer, ranks)
    assert seen == [1, 2]
    for name, tensor in net.state_dict().items():
        assert torch.equal(tensor, before[name])
    assert torch.equal(torch.get_rng_state(), generator)
    assert optimizer.steps == 0
    for moment in (*optimizer.mean, *optimizer.square):
        assert not moment.any()
    assert parameters[0].grad is None


def test_the_optimiser_takes_a_step_on_copies(
    code: SimpleNamespace, rehearsal: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    parameter = torch.nn.Parameter(torch.ones(3))
    parameter.grad = torch.ones(3)
    taken: list[Tensor] = []

    class Optimizer:
        def __init__(self, *others: Any) -> None:
            self.parameters, self.others = [parameter], others

        def step(self, rate: float) -> None:
            taken.append(self.parameters[0].grad)
            self.parameters[0].data.zero_()

    rehearsal.step_of_a_copy(Optimizer(), [parameter])
    assert torch.equal(taken[0], torch.ones(3))
    assert torch.equal(parameter, torch.ones(3))
    rehearsal.step_of_a_copy(Optimizer(threading.Lock()), [parameter])
    assert len(taken) == 1
    assert "cannot be copied" in capsys.readouterr().out


def test_made_up_batches_have_all_shapes_of_the_training(
    code: SimpleNamespace, write_shards: WriteShards, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that nothing is left to compile: shapes, types and strides are guarded."""
    write_shards(shard(np.arange(9000) % 250))
    for order, world, rows in (("sequential", 1, 3), ("random", 2, 4), ("random", 3, 64)):
        config = code.config.Tiny(
            vocab_size=256, context=16, batch_size=12, order=order, val_every=5, val_tokens=1000
        )
        real = code.data.Data(config, 0, world)
        batch = next(real.batches(0))
        monkeypatch.setenv("ASSAY_ASK", "/nowhere/data")
        awaited = code.data.Data(config, 0, world)
        monkeypatch.delenv("ASSAY_ASK")
        for made_up, one in zip(next(awaited.batches(0)), batch, strict=True):
            assert (made_up.shape, made_up.dtype) == (one.shape, one.dtype)
            assert made_up.stride() == one.stride()
        sizes = {len(tokens) for tokens, _ in real.validation(rows)}
        assert awaited.validation_sizes(rows) == sorted(sizes)
