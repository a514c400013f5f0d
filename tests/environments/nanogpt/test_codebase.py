"""Settings, schedules and shards of the codebase: what they are, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tests.environments.nanogpt.conftest import WriteShards, shard


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The variables that a worker sets."""
    table = {"vocab_size": 256, "budget": {"seconds": 50, "tokens": 10_240}}
    (tmp_path / "config.json").write_text(json.dumps(table))
    monkeypatch.setenv("ASSAY_CONFIG", str(tmp_path / "config.json"))
    monkeypatch.setenv("ASSAY_PROFILE", "tiny")
    monkeypatch.setenv("ASSAY_SECONDS", "50")
    monkeypatch.delenv("NANOGPT_STARTED", raising=False)


def test_the_published_schedule(code: SimpleNamespace) -> None:
    def rate(t: int) -> float:
        progress = min(max((t - 256) / (26_880 - 256), 0.0), 1.0)
        factor = code.optim.schedule(t, progress, warmup=256, floor=0.1)
        return 0.0015 * float(factor)

    assert rate(0) == pytest.approx(0.0015 / 256)
    assert rate(255) == pytest.approx(0.0015)
    assert rate(256) == pytest.approx(0.0015)
    assert rate(13_568) == pytest.approx(0.0015 * 0.6 / 1.1)
    assert rate(26_880) == pytest.approx(0.0015 * 0.1 / 1.1)


def test_progress_by_steps_and_by_clock(code: SimpleNamespace, settings: None) -> None:
    ranks = code.ranks.Ranks.join()
    tiny = code.config.Tiny(warmup_steps=2)
    clock = code.train.Clock(tiny, {"tokens": 10_240}, ranks)
    assert clock.steps == 10
    assert clock.limit == float("inf")
    assert [clock.progress(step) for step in (0, 2, 6, 10)] == [0.0, 0.0, 0.5, 1.0]

    by_clock = replace(tiny, schedule_by="clock", steps=0, reserve_seconds=8.0)
    clock = code.train.Clock(by_clock, {"seconds": 50}, ranks)
    assert clock.limit == 42.0
    clock.now = 2.0
    assert clock.progress(2) == 0.0  # the warm-up ended at 2 seconds
    clock.now = 22.0
    assert clock.progress(100) == pytest.approx(0.5)
    clock.now = 60.0
    assert clock.progress(101) == 1.0


def test_a_budget_in_which_nothing_can_be_trained(code: SimpleNamespace, settings: None) -> None:
    ranks = code.ranks.Ranks.join()
    with pytest.raises(SystemExit, match="no end to train towards"):
        code.train.Clock(code.config.Tiny(), {"tokens": 1000}, ranks)
    with pytest.raises(SystemExit, match="reserve_seconds"):
        code.train.Clock(code.config.SingleGpu(reserve_seconds=60.0), {"seconds": 50}, ranks)


def test_profiles_and_flags(code: SimpleNamespace, settings: None) -> None:
    config, budget = code.config.load([])
    assert config == code.config.Tiny(vocab_size=256)
    assert budget == {"seconds": 50, "tokens": 10_240}
    flags = ["--learning_rate", "0.01", "--micro-batch", "4", "--compile", "true", "--size", "d24"]
    config, _ = code.config.load(flags)
    assert (config.learning_rate, config.micro_batch, config.compile) == (0.01, 4, True)
    assert (config.n_layer, config.n_head, config.n_embd) == (24, 16, 1024)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--batchsize", "3"], "--batchsize 3; fields: vocab_size"),
        (["--batch_size", "3.5"], "--batch_size must be of type int"),
        (["--compile", "maybe"], "--compile must be of type bool"),
        (["--learning_rate"], "stands alone"),
        (["--norm", "batchnorm"], "norm is 'batchnorm'; choose rmsnorm or layernorm"),
        (["--n_head", "3"], "multiple of n_head"),
        (["--context", "0"], "must be at least 1"),
    ],
)
def test_settings_that_cannot_be(
    code: SimpleNamespace, settings: None, flags: list[str], message: str
) -> None:
    with pytest.raises(SystemExit, match=message):
        code.config.load(flags)


def test_an_unknown_profile_and_a_batch_that_does_not_divide(
    code: SimpleNamespace, settings: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    paper = code.config.Config()
    assert code.config.rows_per_rank(paper, 8) == 32
    assert code.config.rows_per_rank(paper, 1) == 256
    with pytest.raises(SystemExit, match="batch_size 256 does not divide into 3 ranks"):
        code.config.rows_per_rank(paper, 3)
    with pytest.raises(SystemExit, match="micro-batches of 48"):
        code.config.rows_per_rank(replace(paper, micro_batch=48), 1)
    monkeypatch.setenv("ASSAY_PROFILE", "huge")
    with pytest.raises(SystemExit, match="no profile 'huge'; it has tiny"):
        code.config.load([])


def test_bf16_follows_the_hardware_class(
    code: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ASSAY_GPUS", raising=False)
    expected = {"cpu-bf16": True, "cpu-amx": True, "cpu-avx512": False, "cpu": False}
    for name, wanted in expected.items():
        monkeypatch.setenv("ASSAY_HARDWARE_CLASS", name)
        assert code.model.uses_bf16("auto") is wanted
        assert code.model.uses_bf16("bf16") is True
        assert code.model.uses_bf16("fp32") is False
    monkeypatch.setenv("ASSAY_GPUS", "1")
    assert code.model.uses_bf16("auto") is True


GOOD = shard(np.arange(2000) % 256)
BROKEN = {
    "train_000001.bin has 100 bytes, less than the header": GOOD[:100],
    "train_000001.bin starts with 7, 1: not a shard": shard([1] * 2000, magic=7),
    "train_000001.bin starts with 20240520, 2: not a shard": shard([1] * 2000, version=2),
    "train_000001.bin has no tokens": shard([]),
    "is damaged: 2000 tokens take 5024 bytes, it has 5022": GOOD[:-2],
    "is damaged: 2000 tokens take 5024 bytes, it has 5025": GOOD + b"x",
    "1000 tokens of training text are too few: more than 1024": shard([1] * 1000),
}


@pytest.mark.parametrize("message", BROKEN)
def test_a_shard_that_is_none(
    code: SimpleNamespace, write_shards: WriteShards, message: str
) -> None:
    write_shards(BROKEN[message])
    config = code.config.Tiny(vocab_size=256, order="sequential")
    with pytest.raises(SystemExit, match=message) as refused:
        code.data.Data(config)
    assert "Prepare" in str(refused.value) or "prepare the data again" in str(refused.value)


def test_no_shards_and_too_little_to_hold_back(
    code: SimpleNamespace, write_shards: WriteShards
) -> None:
    write_shards()
    with pytest.raises(SystemExit, match="no shards"):
        code.data.Data(code.config.Tiny(vocab_size=256))
    write_shards(GOOD)
    config = code.config.Tiny(vocab_size=256, val_every=5, val_tokens=1024)
    with pytest.raises(SystemExit, match="val_tokens = 1024 leaves too few"):
        code.data.Data(config)


@pytest.mark.parametrize("order", ["random", "sequential"])
def test_a_token_outside_the_vocabulary(
    code: SimpleNamespace, write_shards: WriteShards, order: str
) -> None:
    write_shards(shard([*[1] * 2000, 256]))
    data = code.data.Data(code.config.Tiny(vocab_size=256, order=order))
    with pytest.raises(SystemExit, match="token 256, outside the vocabulary of 256"):
        next(data.batches(0))
