"""Loss, gradients and an optimiser step equal those of a plain implementation written here."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

pytestmark = pytest.mark.slow

STYLES = {
    "paper": {"norm": "rmsnorm", "attention": "sdpa", "vocab_size": 301},
    "tiny": {"norm": "layernorm", "attention": "bmm", "vocab_size": 256},
}
SMALL = {
    "context": 24,
    "n_layer": 3,
    "n_head": 2,
    "n_embd": 16,
    "precision": "fp32",
    "compile": False,
}


def norm(x: Tensor, kind: str, eps: float) -> Tensor:
    if kind == "layernorm":
        x = x - x.mean(-1, keepdim=True)
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt()


def attention(x: Tensor, weights: dict[str, Tensor], name: str, heads: int) -> Tensor:
    """One head, one sequence and one position after the other."""
    rows, length, width = x.shape
    size = width // heads
    q, k, v = (x @ weights[f"{name}.qkv.weight"].T).split(width, dim=-1)
    y = []
    for row in range(rows):
        for t in range(length):
            for h in range(heads):
                part = slice(h * size, (h + 1) * size)
                scores = k[row, : t + 1, part] @ q[row, t, part] / math.sqrt(size)
                y.append(scores.softmax(0) @ v[row, : t + 1, part])
    joined = torch.stack(y).view(rows, length, width)
    return joined @ weights[f"{name}.proj.weight"].T


def plain_logits(tokens: Tensor, weights: dict[str, Tensor], config: Any) -> Tensor:
    table = weights["embedding.weight"][: config.vocab_size]
    x = table[tokens] + weights["positions"][: tokens.size(1)]
    for layer in range(config.n_layer):
        block = f"blocks.{layer}"
        z = norm(x, config.norm, config.norm_eps)
        y = attention(z, weights, f"{block}.attention", config.n_head)
        x = x + y / math.sqrt(2 * config.n_layer)
        z = norm(x, config.norm, config.norm_eps)
        z = F.gelu(z @ weights[f"{block}.mlp.up.weight"].T)
        x = x + z @ weights[f"{block}.mlp.down.weight"].T
    return norm(x, config.norm, config.norm_eps) @ table.T


def plain_adamw(
    parameter: Tensor, gradients: list[Tensor], rates: list[float], config: Any
) -> Tensor:
    """The parameter after a step with each of the gradients, element by element."""
    x = parameter.detach().double()
    mean, square = torch.zeros_like(x), torch.zeros_like(x)
    for t, (gradient, rate) in enumerate(zip(gradients, rates, strict=True), start=1):
        g = gradient.double()
        mean = config.beta1 * mean + (1 - config.beta1) * g
        square = config.beta2 * square + (1 - config.beta2) * g * g
        m, s = mean / (1 - config.beta1**t), square / (1 - config.beta2**t)
        x = x - rate * config.weight_decay * x
        x = x - rate * m / (s.sqrt() + config.adam_eps)
    return x.float()


def made(code: SimpleNamespace, style: str) -> tuple[Any, Any, Tensor, Tensor]:
    """(config, model, tokens, targets); weights far from their start, so that nothing is small."""
    config = replace(code.config.Config(), **SMALL, **STYLES[style])
    torch.manual_seed(3)
    net = code.model.GPT(config)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(3.0)
    text = torch.randint(config.vocab_size, (3, 25))
    return config, net, text[:, :-1], text[:, 1:]


@pytest.mark.parametrize("style", STYLES)
def test_loss_and_all_gradients(code: SimpleNamespace, style: str) -> None:
    config, net, tokens, targets = made(code, style)
    loss = code.train.loss_of(net, tokens, targets)
    loss.backward()
    # The tied table is one tensor, which both ends of the plain model use.
    weights = {n: p.detach().clone().requires_grad_() for n, p in net.named_parameters()}
    logits = plain_logits(tokens, weights, config)
    plain = F.cross_entropy(logits.reshape(-1, config.vocab_size), targets.reshape(-1))
    plain.backward()
    assert logits.detach().allclose(net(tokens).detach(), atol=1e-5)
    assert loss.item() == pytest.approx(plain.item(), abs=1e-5)
    assert len(weights) == 2 + 4 * config.n_layer
    for name, parameter in net.named_parameters():
        expected = weights[name].grad
        assert expected is not None
        assert expected.abs().max() > 1e-4, name
        assert (parameter.grad - expected).abs().max() < 1e-5, name


@pytest.mark.parametrize("style", STYLES)
def test_a_step_of_the_optimiser(code: SimpleNamespace, style: str) -> None:
    """Clipping and AdamW, two steps: the second has moments that are not those of the start."""
    config, net, tokens, targets = made(code, style)
    parameters = list(net.parameters())
    before = [p.detach().clone() for p in parameters]
    optimizer = code.optim.AdamW(
        parameters, config.beta1, config.beta2, config.adam_eps, config.weight_decay
    )
    limit, rates = 0.05, [2e-3, 1e-3]
    seen: list[list[Tensor]] = []
    for rate in rates:
        net.zero_grad()
        code.train.loss_of(net, tokens, targets).backward()
        gradients = [p.grad.detach().clone() for p in parameters if p.grad is not None]
        length = math.sqrt(sum(float(g.double().pow(2).sum()) for g in gradients))
        assert length > limit
        seen.append([g * (limit / (length + 1e-6)) for g in gradients])
        assert code.optim.clip_gradients(parameters, limit).item() == pytest.approx(length)
        optimizer.step(rate)
    for index, parameter in enumerate(parameters):
        expected = plain_adamw(before[index], [s[index] for s in seen], rates, config)
        assert (parameter.detach() - expected).abs().max() < 1e-5
        assert (parameter.detach() - before[index]).abs().max() > 1e-4


def test_the_fused_update_is_the_one_written_out(code: SimpleNamespace) -> None:
    """The kernel that GPUs get, on a CPU."""
    config, net, tokens, targets = made(code, "paper")
    start = [p.detach().clone() for p in net.parameters()]
    code.train.loss_of(net, tokens, targets).backward()
    gradients = [p.grad for p in net.parameters()]

    def updated(fused: bool) -> list[Tensor]:
        parameters = [p.clone() for p in start]
        optimizer = code.optim.AdamW(
            parameters, config.beta1, config.beta2, config.adam_eps, config.weight_decay
        )
        for rate in (2e-3, 1e-3, 5e-4):
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient * rate * 1e3
            if fused:
                optimizer.steps += 1
                optimizer.fused_update([p.grad for p in parameters], rate)
            else:
                optimizer.step(rate)
        return parameters

    for fused, written, before in zip(updated(True), updated(False), start, strict=True):
        assert (fused - written).abs().max() < 1e-6
        assert (written - before).abs().max() > 1e-4


def test_a_residual_stream_in_bfloat16(
    code: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As GPUs have it by default; it changes the loss by rounding alone."""
    config, net, tokens, targets = made(code, "paper")
    exact = code.train.loss_of(net, tokens, targets).item()
    seen: list[torch.dtype] = []
    for residual in ("fp32", "bf16"):
        other = code.model.GPT(replace(config, precision="bf16", residual=residual))
        other.load_state_dict(net.state_dict())
        other.blocks[-1].register_forward_hook(lambda *found: seen.append(found[2].dtype))
        loss = code.train.loss_of(other, tokens, targets)
        loss.backward()
        assert loss.item() == pytest.approx(exact, abs=0.03)
        assert all(p.grad.dtype == torch.float32 for p in other.parameters())
    assert seen == [torch.float32, torch.bfloat16]
    assert code.model.GPT(replace(config, precision="bf16")).stream == torch.float32
    monkeypatch.setenv("ASSAY_GPUS", "1")
    assert code.model.GPT(replace(config, precision="bf16")).stream == torch.bfloat16
    assert code.model.GPT(config).stream == torch.float32  # where products are in float32


def test_short_gradients_are_not_scaled(code: SimpleNamespace) -> None:
    _, net, tokens, targets = made(code, "tiny")
    code.train.loss_of(net, tokens, targets).backward()
    parameters = list(net.parameters())
    before = [p.grad.clone() for p in parameters if p.grad is not None]
    code.optim.clip_gradients(parameters, 1e6)
    assert all(torch.equal(b, p.grad) for b, p in zip(before, parameters, strict=True))


def test_the_size_and_start_of_the_published_model(code: SimpleNamespace) -> None:
    config = code.config.Config()
    with torch.device("meta"):
        net = code.model.GPT(config)
    count = sum(p.numel() for p in net.parameters())
    padding = (50304 - 50257) * 768
    assert count - padding == 50257 * 768 + 1024 * 768 + 12 * 12 * 768**2
    small = replace(config, **{**SMALL, "n_embd": 64, "vocab_size": 5000, "context": 500})
    torch.manual_seed(0)
    net = code.model.GPT(small)
    for table in (net.embedding.weight, net.positions):
        assert table.std().item() == pytest.approx(0.02, rel=0.02)
    up = net.blocks[0].mlp.up.weight  # nn.Linear: uniform in ± 1 / sqrt(inputs)
    assert up.abs().max().item() == pytest.approx(64**-0.5, rel=0.01)
    assert up.std().item() == pytest.approx(64**-0.5 / math.sqrt(3), rel=0.02)


@pytest.mark.parametrize("attention", ["sdpa", "bmm"])
def test_token_by_token_is_the_same_as_at_once(code: SimpleNamespace, attention: str) -> None:
    config, _, tokens, _ = made(code, "paper")
    net = code.model.GPT(replace(config, attention=attention)).eval()
    with torch.no_grad():
        cache = code.model.Cache(tokens.size(1))
        steps = [net(tokens[:, t : t + 1], cache) for t in range(tokens.size(1))]
        assert torch.cat(steps, dim=1).allclose(net(tokens), atol=1e-5)
