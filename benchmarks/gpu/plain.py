"""The model of nanogpt `single-gpu` as everybody writes it: plain PyTorch, in one file.

Fused attention, autocast to bfloat16, torch.compile, fused AdamW, gradient accumulation. It is the
yardstick of `training`, which starts it as a program of its own: it compiles, prints `ready`, and
for each line `seconds` on stdin trains for so long and prints what it reached.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F  # noqa: N812
from torch import Tensor


@dataclass(frozen=True)
class Shape:
    layers: int = 12
    heads: int = 12
    width: int = 768
    context: int = 1024
    vocab: int = 50304
    micro_batch: int = 64
    parts: int = 4


TOY = Shape(2, 2, 64, 64, 512, 4, 2)


class Block(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width = shape.width
        self.heads = shape.heads
        self.scale = (2 * shape.layers) ** -0.5
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.proj = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        rows, length, width = x.shape
        split = self.qkv(norm(x)).split(width, dim=2)
        q, k, v = (z.view(rows, length, self.heads, -1).transpose(1, 2) for z in split)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        y = y.transpose(1, 2).reshape(rows, length, width)
        x = x + self.scale * self.proj(y)
        return x + self.down(F.gelu(self.up(norm(x))))


def norm(x: Tensor) -> Tensor:
    return F.rms_norm(x, (x.size(-1),), eps=1e-6)


class Model(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.tokens = nn.Embedding(shape.vocab, shape.width)
        self.positions = nn.Embedding(shape.context, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.head = nn.Linear(shape.width, shape.vocab, bias=False)
        self.head.weight = self.tokens.weight
        nn.init.normal_(self.tokens.weight, std=0.02)
        nn.init.normal_(self.positions.weight, std=0.02)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        places = torch.arange(tokens.size(1), device=tokens.device)
        x = self.tokens(tokens) + self.positions(places)
        for block in self.blocks:
            x = block(x)
        logits = self.head(norm(x))
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


class Trainer:
    """The model with its optimiser and tokens that lie on the device."""

    def __init__(self, shape: Shape, device: str) -> None:
        torch.manual_seed(0)
        torch.set_float32_matmul_precision("high")
        self.shape, self.device = shape, device
        self.model = Model(shape).to(device)
        self.loss: Any = torch.compile(self.model) if device == "cuda" else self.model
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), 1.5e-3, (0.9, 0.95), weight_decay=0.1, fused=True
        )
        size = (shape.parts, shape.micro_batch, shape.context + 1)
        self.batch = torch.randint(shape.vocab, size, device=device)

    def step(self) -> None:
        for part in self.batch:
            with torch.autocast(self.device, torch.bfloat16, enabled=self.device == "cuda"):
                loss = self.loss(part[:, :-1], part[:, 1:]) / len(self.batch)
            loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def wait(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()

    def speed(self, seconds: float) -> float:
        """Tokens per second over so many seconds of whole steps."""
        self.wait()
        began, steps = time.perf_counter(), 0
        while time.perf_counter() - began < seconds:
            self.step()
            self.wait()  # a hundredth of a step
            steps += 1
        took = time.perf_counter() - began
        return steps * self.batch[:, :, 1:].numel() / took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dry-run", action="store_true")
    dry = parser.parse_args().dry_run
    trainer = Trainer(TOY if dry else Shape(), "cpu" if dry else "cuda")
    for _ in range(3):
        trainer.step()
    trainer.wait()
    print("ready", flush=True)
    for line in sys.stdin:
        found: dict[str, Any] = {"tokens_per_second": trainer.speed(float(line))}
        if not dry:
            found["peak_memory_bytes"] = torch.cuda.max_memory_allocated()
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
