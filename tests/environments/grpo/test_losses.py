"""Advantages and losses equal tables that were computed by hand."""

from __future__ import annotations

import copy
import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch


def test_advantages(code: Any) -> None:
    # Two groups of four. Mean 0.25; deviations 0.75 and three times -0.25; their squares sum to
    # 0.75, over n - 1 = 3 that is 0.25, so the standard deviation is 0.5.
    rewards = torch.tensor([1.0, 0.0, 0.0, 0.0, 2.0, 2.0, 2.0, 2.0])
    advantages = code.advantages.group_advantages(rewards, 4, True, 0.0)
    assert advantages[:4].tolist() == pytest.approx([1.5, -0.5, -0.5, -0.5])
    assert advantages[4:].isnan().all()  # 0 / 0: what eps is for
    advantages = code.advantages.group_advantages(rewards, 4, True, 0.5)
    assert advantages.tolist() == pytest.approx([0.75, -0.25, -0.25, -0.25, 0, 0, 0, 0])
    # Dr. GRPO: no division.
    advantages = code.advantages.group_advantages(rewards, 4, False, 0.5)
    assert advantages.tolist() == pytest.approx([0.75, -0.25, -0.25, -0.25, 0, 0, 0, 0])
    advantages = code.advantages.group_advantages(rewards[:4], 2, False, 0.5)
    assert advantages.tolist() == pytest.approx([0.5, -0.5, 0, 0])


# Two completions of three and two tokens. Ratios new / old of the first: 1, 1.5, 0.5;
# of the second: 1.5, 0.5 and a masked 4.
OLD = torch.log(torch.tensor([[0.5, 0.2, 0.4], [0.4, 0.8, 0.1]]))
NEW = torch.log(torch.tensor([[0.5, 0.3, 0.2], [0.6, 0.4, 0.4]]))
MASK = torch.tensor([[1.0, 1.0, 1.0], [1.0, 1.0, 0.0]])
ADVANTAGES, REWARDS = torch.tensor([2.0, -1.0]), torch.tensor([1.0, 0.0])

TABLES = {
    # A = 2: min(2, 2) = 2, min(3, 2.4) = 2.4, min(1, 1.6) = 1.
    # A = -1: min(-1.5, -1.2) = -1.5, min(-0.5, -0.8) = -0.8, masked min(-4, -1.2) = -4.
    "grpo_clip": [[-2.0, -2.4, -1.0], [1.5, 0.8, 4.0]],
    # -2 * (ln 0.5, ln 0.3, ln 0.2) and ln 0.6, ln 0.4, ln 0.4.
    "reinforce_with_baseline": [
        [1.3862944, 2.4079456, 3.2188758],
        [-0.5108256, -0.9162907, -0.9162907],
    ],
    # -1 * the same logarithms, and 0.
    "no_baseline": [[0.6931472, 1.2039728, 1.6094379], [0.0, 0.0, 0.0]],
}
# (sum over the mask) / 5 tokens, and / (2 rows * 4).
MEANS = {
    "grpo_clip": (-3.1 / 5, -3.1 / 8),
    "reinforce_with_baseline": (5.5859995 / 5, 5.5859995 / 8),
    "no_baseline": (3.5065579 / 5, 3.5065579 / 8),
}


@pytest.mark.parametrize("loss_type", sorted(TABLES))
def test_losses(code: Any, loss_type: str) -> None:
    losses, found = code.loss.token_losses(loss_type, NEW, OLD, ADVANTAGES, REWARDS, 0.2)
    assert torch.allclose(losses, torch.tensor(TABLES[loss_type]), atol=1e-6)
    tokens, constant = (
        code.loss.reduce_loss(losses, MASK, normalizer, 4).item()
        for normalizer in ("tokens", "constant")
    )
    assert (tokens, constant) == pytest.approx(MEANS[loss_type], abs=1e-6)
    if loss_type == "grpo_clip":
        # Clipped in both senses: the second token of the first, the second of the second.
        assert found["clipped"].tolist() == [[0, 1, 0], [0, 1, 0]]
        assert code.loss.masked_mean(found["clipped"], MASK).item() == pytest.approx(2 / 5)


def test_a_clipped_token_has_no_gradient(code: Any) -> None:
    logp = NEW.clone().requires_grad_()
    config = code.config.read("tiny", ["--loss_normalizer", "constant", "--max_new_tokens", "4"])
    loss, _ = code.loss.policy_loss(logp, OLD, MASK, ADVANTAGES, REWARDS, config)
    loss.backward()
    # d/d logp of -rho * A is -rho * A; over 2 rows * 4.
    expected = torch.tensor([[-2.0, 0.0, -1.0], [1.5, 0.0, 0.0]]) / 8
    assert torch.allclose(logp.grad, expected, atol=1e-6)


def test_microbatches_add_up_to_the_batch(code: Any, small: Any) -> None:
    """With the constant normaliser the gradient does not depend on the microbatch's size."""
    prompts = [[1, 2, 3], [4, 5]]
    how = code.generate.Sampling(6, stop="zz")
    numbers = code.generate.uniforms((4, 6), torch.Generator().manual_seed(0))
    tokens = torch.randint(0, 19, (4, 6), generator=torch.Generator().manual_seed(0))
    samples = code.generate.Samples(
        tokens, numbers, torch.tensor([6, 3, 4, 5]), [True] * 4, ["a", "b", "c", "d"]
    )
    assert how.max_new == 6
    rollouts = code.rollout.assemble(prompts, 2, samples, [1.0, 0.0, 0.0, 1.0])
    advantages = torch.tensor([1.0, -1.0, -0.5, 0.5])
    weights = {}
    for size in (4, 1):
        model = code.model.Model(small.config)
        model.load_state_dict(small.state_dict())
        config = code.config.read(
            "tiny", ["--batch_size", "4", "--microbatch_size", str(size),
                     "--loss_normalizer", "constant"],
        )  # fmt: skip
        old = code.train.old_log_probs(model, rollouts, config)
        optimizer = code.optim.AdamW(model.parameters(), config)
        import random

        found = code.train.update(
            model, optimizer, rollouts, advantages, old, lambda n: 1e-3, config, random.Random(0)
        )
        assert math.isfinite(found["loss"])
        assert optimizer.steps == 1
        weights[size] = model.lm_head.weight
    assert (weights[4] - weights[1]).abs().max() < 1e-5
    assert not torch.equal(weights[4], small.lm_head.weight)


def test_adamw_is_torchs(code: Any) -> None:
    config = code.config.read("tiny", ["--weight_decay", "0.1"])
    torch.manual_seed(0)
    ours, theirs = torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(3))
    own = code.optim.AdamW([ours], config)
    reference = torch.optim.AdamW([theirs], lr=0.01, betas=(0.9, 0.95), weight_decay=0.1)
    for _ in range(5):
        ours.grad = torch.randn(3)
        theirs.grad = ours.grad.clone()
        own.step(0.01)
        reference.step()
    assert torch.allclose(ours, theirs, atol=1e-7)


def test_small_updates_of_bfloat16_weights_are_lost(code: Any) -> None:
    """What the README says of the profiles of MATH, which train bfloat16 weights at 1e-5."""
    start = torch.tensor([0.003, 0.0041, 0.02, 0.5], dtype=torch.bfloat16)
    weights = torch.nn.Parameter(start.clone())
    optimizer = code.optim.AdamW([weights], code.config.read("paper", []))
    for _ in range(100):
        weights.grad = torch.ones_like(weights)
        optimizer.step(1e-5)
    assert (weights != start).tolist() == [True, False, False, False]


def test_the_schedule(code: Any) -> None:
    rates = [code.optim.schedule(i, 10, 2, 0.1) for i in range(10)]
    assert rates[:3] == [0.5, 1.0, 1.0]
    assert rates[-1] == pytest.approx(0.1)
    assert rates[2:] == sorted(rates[2:], reverse=True)
    assert {code.optim.schedule(i, 10, 0, 1.0) for i in range(10)} == {1.0}


def some_rollouts(code: Any) -> Any:
    tokens = torch.randint(0, 19, (4, 9), generator=torch.Generator().manual_seed(0))
    lengths = torch.tensor([9, 3, 0, 7])
    samples = code.generate.Samples(tokens, torch.zeros(4, 9), lengths, [True] * 4, list("abcd"))
    return code.rollout.assemble([[1, 2, 3], [4, 5]], 2, samples, [1.0, 0.0, 0.0, 1.0])


def learned(code: Any, model: Any, rollouts: Any) -> SimpleNamespace:
    """Log-probabilities, entropies, gradients, and the sizes of what waited for the gradient."""
    saved: list[torch.Size] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor.shape)
        return tensor

    model.zero_grad(set_to_none=True)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        logp, entropy = code.train.log_probs(model, rollouts, with_entropy=True)
        loss = (logp * torch.linspace(0.5, 2.0, logp.size(1))).sum() + 0.1 * (entropy**2).sum()
    loss.backward()
    gradients = [p.grad for p in model.parameters()]
    return SimpleNamespace(logp=logp, entropy=entropy, gradients=gradients, saved=saved)


@pytest.mark.parametrize("positions", [1, 4, 18, 19, 100])
def test_logits_in_parts_give_the_same(code: Any, small: Any, positions: int) -> None:
    rollouts = some_rollouts(code)
    assert rollouts.mask.sum() == 19
    model = copy.deepcopy(small)
    plain = learned(code, model, rollouts)
    model.logit_positions = positions
    sizes: list[int] = []
    logits = model.logits
    model.logits = lambda hidden: sizes.append(len(hidden)) or logits(hidden)
    found = learned(code, model, rollouts)
    assert torch.allclose(found.logp, plain.logp, atol=1e-6)
    assert torch.allclose(found.entropy, plain.entropy, atol=1e-6)
    for one, two in zip(found.gradients, plain.gradients, strict=True):
        assert torch.allclose(one, two, rtol=1e-4, atol=1e-5)
    # Rows of the vocabulary: none waits for the gradient, and each is made twice, in its part.
    wide = [shape for shape in found.saved if shape[-1:] == (19,) and len(shape) == 2]
    assert max(sizes) == min(positions, 19)
    assert sum(sizes) == (38 if positions < 19 else 19)
    assert bool(wide) == (positions >= 19)


def test_layers_that_are_made_again_give_the_same(code: Any, small: Any) -> None:
    rollouts = some_rollouts(code)
    model = copy.deepcopy(small)
    plain = learned(code, model, rollouts)
    model.recompute_layers = True
    found = learned(code, model, rollouts)
    assert torch.equal(found.logp, plain.logp)
    for one, two in zip(found.gradients, plain.gradients, strict=True):
        assert torch.allclose(one, two, rtol=1e-4, atol=1e-5)
    # The widest activations of every layer, (B, T, intermediate_size), are not kept.
    wide = [shape for shape in plain.saved if shape[-1] == 48 and len(shape) == 3]
    assert len(wide) >= 3 * 2
    assert not [shape for shape in found.saved if shape[-1] == 48 and len(shape) == 3]


def test_peaks_are_of_their_part(code: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    peak = SimpleNamespace(bytes=66e9)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: peak.bytes)
    monkeypatch.setattr(
        torch.cuda, "reset_peak_memory_stats", lambda: setattr(peak, "bytes", 12e9)
    )
    device = torch.device("cuda")
    assert code.train.peak_gb("rollout", device) == {"rollout_peak_gb": 66.0}
    assert code.train.peak_gb("update", device) == {"update_peak_gb": 12.0}
    assert code.train.peak_gb("update", torch.device("cpu")) == {}


ENGINES = [
    (False, None, "this profile has no GPU: use --engine own"),
    (False, "0.11", "this profile has no GPU: use --engine own"),
    (True, None, "vLLM is not installed.*pip install vllm.*or use --engine own"),
]


@pytest.mark.parametrize(("is_cuda", "version", "says"), ENGINES)
def test_vllm_is_used_where_it_can_be_or_nothing_is(
    code: Any, monkeypatch: pytest.MonkeyPatch, is_cuda: bool, version: str | None, says: str
) -> None:
    monkeypatch.setattr(code.vllm_engine, "version", lambda: version)
    model = SimpleNamespace(lm_head=SimpleNamespace(weight=SimpleNamespace(is_cuda=is_cuda)))
    config = code.config.read("paper", ["--engine", "vllm"])
    with pytest.raises(SystemExit, match=says):
        code.rollout.make_engine(model, None, config, "")


def test_a_log_names_the_engine_and_its_version(
    code: Any, small: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for profile in code.config.PROFILES:
        # Wherever vLLM is installed: only who asks for it gets it.
        monkeypatch.setattr(code.vllm_engine, "version", lambda: "0.11")
        config = code.config.read(profile, [])
        assert isinstance(code.rollout.make_engine(small, None, config, ""), code.generate.Sampler)
        assert capsys.readouterr().out == f"engine: own, torch {torch.__version__}\n"
    model = SimpleNamespace(lm_head=SimpleNamespace(weight=SimpleNamespace(is_cuda=True)))
    monkeypatch.setattr(code.vllm_engine, "Engine", lambda *arguments: arguments)
    config = code.config.read("paper", ["--engine", "vllm"])
    assert code.rollout.make_engine(model, "t", config, "f") == (model, "t", config, "f")
    assert capsys.readouterr().out == "engine: vllm 0.11\n"
