"""Train a model on demonstrations, to the level from which reinforcement learning has room.

Deterministic: with the same key, on one thread of a CPU of some class, the same weights come out
every time. Never on a GPU: a worker has leased none while it prepares data, and
sums would differ from run to run.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from sources import arithmetic
from sources.arithmetic import Arithmetic

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "codebase"))

import model as models
from generate import Sampler, Sampling, uniforms

PROMPT = "{question}=<think>"


@dataclass(frozen=True)
class WarmStart:
    """The table `[profiles.<name>.config.warm_start]` of the manifest."""

    # Digits of each of the two numbers.
    digits: int
    # Log-odds that a demonstration forgets a carry, by digit, from and to; see `Arithmetic`.
    minds: float
    forgets: float
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    # Optimiser steps, and demonstrations in each.
    steps: int
    batch_size: int
    # Of AdamW, for vectors and the embedding; and of Muon, for matrices.
    learning_rate: float
    matrix_learning_rate: float
    # Problems in the split train/.
    problems: int
    # The share of problems it solves greedily has to be in between.
    least: float
    most: float
    seed: int


class Muon:
    """Momentum whose matrices are orthogonalised (Jordan et al., 2024): fewer steps."""

    def __init__(self, matrices: Sequence[torch.Tensor], momentum: float = 0.95) -> None:
        self.matrices, self.momentum = list(matrices), momentum
        self.buffers = [torch.zeros_like(m) for m in self.matrices]

    @torch.no_grad()
    def step(self, learning_rate: float) -> None:
        for matrix, buffer in zip(self.matrices, self.buffers, strict=True):
            buffer.lerp_(matrix.grad, 1 - self.momentum)
            update = orthogonalise(matrix.grad.lerp(buffer, self.momentum))
            scale = max(1.0, matrix.size(0) / matrix.size(1)) ** 0.5
            matrix.add_(update, alpha=-learning_rate * scale)


def orthogonalise(matrix: torch.Tensor, steps: int = 5) -> torch.Tensor:
    """Newton-Schulz iteration towards the nearest matrix whose singular values are all 1."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = matrix if matrix.size(0) <= matrix.size(1) else matrix.T
    x = x / (x.norm() + 1e-7)
    for _ in range(steps):
        square = x @ x.T
        x = a * x + (b * square + c * square @ square) @ x
    return x if matrix.size(0) <= matrix.size(1) else x.T


def make_model(config: WarmStart) -> models.Model:
    torch.manual_seed(config.seed)
    model = models.Model(
        models.ModelConfig(
            vocab_size=len(arithmetic.VOCABULARY),
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            num_key_value_heads=config.kv_heads,
            max_position_embeddings=256,
        )
    )
    for name, weight in model.named_parameters():
        if weight.ndim == 2:
            torch.nn.init.normal_(weight, std=0.02 if "embed" in name else weight.size(1) ** -0.5)
        elif name.endswith("bias"):
            torch.nn.init.zeros_(weight)
    return model


def draw(
    rng: random.Random, rule: Arithmetic, digits: int, excluded: Callable[[str], bool]
) -> str:
    while True:
        question, _ = rule.problem(rng, digits)
        if not excluded(question):
            return question


def demonstrations(
    rng: random.Random,
    config: WarmStart,
    rule: Arithmetic,
    tokenizer: Any,
    excluded: Callable[[str], bool],
) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens (B, T), and True (B, T - 1) where tokens[:, 1:] is of the completion."""
    rows, starts = [], []
    for _ in range(config.batch_size):
        question = draw(rng, rule, config.digits, excluded)
        prompt = PROMPT.replace("{question}", question)
        completion = rule.demonstration(rng, question)
        starts.append(len(tokenizer.encode(prompt).ids))
        rows.append(tokenizer.encode(prompt + completion).ids)
    width = max(map(len, rows))
    tokens = torch.tensor([row + [0] * (width - len(row)) for row in rows])
    places = torch.arange(1, width)
    first, end = torch.tensor(starts)[:, None], torch.tensor([len(r) for r in rows])[:, None]
    return tokens, (places >= first) & (places < end)


def train(
    model: models.Model,
    config: WarmStart,
    rule: Arithmetic,
    tokenizer: Any,
    excluded: Callable[[str], bool],
) -> None:
    """Imitate demonstrations; learning rates rise over 20 steps and fall to a hundredth."""
    rng = random.Random(config.seed)
    named = list(model.named_parameters())
    matrices = [p for n, p in named if p.ndim == 2 and "embed" not in n]
    others = [p for n, p in named if p.ndim != 2 or "embed" in n]
    muon = Muon(matrices)
    adam = torch.optim.AdamW(others, lr=config.learning_rate, betas=(0.9, 0.95))
    for step in range(config.steps):
        tokens, wanted = demonstrations(rng, config, rule, tokenizer, excluded)
        logits = model.logits(model.hidden(tokens[:, :-1])[wanted])
        F.cross_entropy(logits, tokens[:, 1:][wanted]).backward()
        factor = min(1.0, (step + 1) / 20) * (1.0 - 0.99 * step / config.steps)
        adam.param_groups[0]["lr"] = config.learning_rate * factor
        adam.step()
        muon.step(config.matrix_learning_rate * factor)
        model.zero_grad(set_to_none=True)


def accuracy(
    model: models.Model, tokenizer: Any, problems: Sequence[tuple[str, str]], temperature: float
) -> float:
    """The share of (problem, answer) pairs that one sample of each answers right."""
    prompts = [tokenizer.encode(PROMPT.replace("{question}", p)).ids for p, _ in problems]
    how = Sampling(max_new=6 * len(problems[0][1]) + 8, temperature=temperature)
    numbers = uniforms((len(prompts), how.max_new), torch.Generator().manual_seed(0))
    texts = Sampler(model, tokenizer, rows=512).sample(prompts, 1, numbers, how).texts
    right = [
        t.endswith(f"<answer>{a}</answer>") for t, (_, a) in zip(texts, problems, strict=True)
    ]
    return sum(right) / len(right)


def make(
    config: WarmStart,
    rule: Arithmetic,
    problems: Sequence[tuple[str, str]],
    excluded: Callable[[str], bool],
    folder: Path,
) -> None:
    """Write a model that imitates demonstrations of `rule` to `folder`.

    `problems` are for checking its level; `excluded` ones are not shown to it.
    """
    torch.set_num_threads(1)
    tokenizer = arithmetic.make_tokenizer()
    model = make_model(config)
    train(model, config, rule, tokenizer, excluded)
    greedy, sampled = (accuracy(model, tokenizer, problems, t) for t in (0.0, 1.0))
    print(f"model: {greedy:.1%} solved greedily, {sampled:.1%} sampled")
    if not config.least <= greedy <= config.most:
        raise SystemExit(
            f"the warm start solves {greedy:.1%} of the problems; it must be between"
            f" {config.least:.0%} and {config.most:.0%}: change warm_start in environment.toml"
        )
    models.save(model, str(folder), [("tokenizer.json", tokenizer.to_str())])
