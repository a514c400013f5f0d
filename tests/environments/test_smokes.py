"""Smokes of the GPU profiles: their own classes at the sizes that the manifests declare."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

from tests.environments.conftest import Bundled, load
from tests.environments.smoking import smoke_of, steps_of_smoke

GPU_PROFILES = ("quick-gpu", "single-gpu", "paper")
BOTH = pytest.mark.parametrize("name", ["nanogpt", "grpo"])
EACH = pytest.mark.parametrize("profile", GPU_PROFILES)


def config_of(
    bundled: Bundled,
    profile: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    table: dict[str, Any],
    flags: tuple[str, ...] = (),
) -> Any:
    """What the codebase's config.py makes of a profile and this $ASSAY_CONFIG."""
    (tmp_path / "config.json").write_text(json.dumps(table))
    monkeypatch.setenv("ASSAY_CONFIG", str(tmp_path / "config.json"))
    monkeypatch.setenv("ASSAY_PROFILE", profile)
    code = runpy.run_path(str(bundled.environment.folder / "codebase" / "config.py"))
    return code["load"](flags)[0] if "load" in code else code["read"](profile, flags)


@BOTH
@EACH
def test_every_gpu_profile_declares_a_smoke_on_one_gpu(name: str, profile: str) -> None:
    bundled = load(name)
    small, whole = smoke_of(bundled, profile), bundled.environment.profile(profile)
    assert small.gpus == 1
    assert small.cpus <= whole.cpus
    assert 90 <= small.budget.seconds <= 180, "a cold compilation has to fit"
    assert small.config == whole.config | {"overrides": small.config["overrides"]}


@EACH
def test_nanogpt_computes_as_its_profile_does_on_few_layers(
    profile: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    nanogpt = load("nanogpt")
    table = smoke_of(nanogpt, profile).config
    # A size that an idea chose in launch.py does not undo what makes a smoke small.
    flags = ("--n_layer", "48", "--learning_rate", "0.5")
    whole = config_of(nanogpt, profile, monkeypatch, tmp_path, {}, flags)
    small = config_of(nanogpt, profile, monkeypatch, tmp_path, table, flags)
    for same in ("compile", "attention", "precision", "norm", "n_embd", "n_head", "learning_rate"):
        assert getattr(small, same) == getattr(whole, same), same
    assert (small.compile, small.attention, small.learning_rate) == (True, "sdpa", 0.5)
    assert (small.n_layer, small.vocab_size) == (4, table["vocab_size"])
    assert small.batch_size == 2 * small.micro_batch, "gradients of micro-batches add up"
    assert small.val_tokens % (small.micro_batch * small.context) == 0, "no other shape to compile"
    assert (small.log_every, small.val_every) == (1, 1)


@EACH
def test_grpo_takes_two_short_steps_whatever_the_group_is(
    profile: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    grpo = load("grpo")
    table = smoke_of(grpo, profile).config
    for group in ("1", "5", "64"):
        flags = ("--group_size", group, "--steps", "500")
        small = config_of(grpo, profile, monkeypatch, tmp_path, table, flags)
        assert (small.steps, small.group_size) == (2, int(group))
        assert small.checkpoints == small.steps, "the first step is followed by a checkpoint"


@BOTH
def test_fields_that_an_idea_removed_are_left_out(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bundled = load(name)
    plain = config_of(bundled, "quick-gpu", monkeypatch, tmp_path, {})
    table = {"overrides": {"removed_by_an_idea": 2, "learning_rate": 0.25}}
    found = config_of(bundled, "quick-gpu", monkeypatch, tmp_path, table)
    assert found.learning_rate == 0.25 != plain.learning_rate
    assert not hasattr(found, "removed_by_an_idea")


@pytest.mark.slow
def test_nanogpt_takes_its_steps_on_a_processor(nanogpt_data: Path, tmp_path: Path) -> None:
    """On the data of `tiny`, and not compiled, which takes minutes on a processor."""
    assert len(steps_of_smoke(load("nanogpt"), nanogpt_data, tmp_path, compile=False)) > 1
