"""`nanogpt` `tiny` as one would write it first: float32, stock modules, torch.optim.

The model, the optimiser and the batches are those of the environment; only how they are computed
is not.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    """Pre-norm attention and MLP; the output of attention is scaled by 1 / sqrt(2 · layers)."""

    def __init__(self, width: int, heads: int, layers: int, ratio: int) -> None:
        super().__init__()
        self.heads, self.scale = heads, (2 * layers) ** -0.5
        self.norm1 = nn.LayerNorm(width, elementwise_affine=False, bias=False)
        self.norm2 = nn.LayerNorm(width, elementwise_affine=False, bias=False)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.proj = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, ratio * width, bias=False)
        self.down = nn.Linear(ratio * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # (B, T, C) -> (B, T, C)
        b, t, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).split(c, dim=2)
        q, k, v = (z.view(b, t, self.heads, c // self.heads).transpose(1, 2) for z in (q, k, v))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.scale * self.proj(y.transpose(1, 2).reshape(b, t, c))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """Learned positions, and an output tied to the embedding."""

    def __init__(
        self, vocab: int, context: int, layers: int, heads: int, width: int, ratio: int
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads, layers, ratio) for _ in range(layers)))
        self.norm = nn.LayerNorm(width, elementwise_affine=False, bias=False)
        nn.init.normal_(self.embedding.weight, std=0.02)
        nn.init.normal_(self.positions.weight, std=0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:  # (B, T) -> (B, T, V)
        x = self.embedding(tokens) + self.positions(torch.arange(tokens.size(1)))
        return functional.linear(self.norm(self.blocks(x)), self.embedding.weight)


class Training:
    """One step after the other on given batches."""

    def __init__(self, net: nn.Module, rate: float, decay: float, clip: float) -> None:
        self.net, self.clip = net, clip
        self.optimizer = torch.optim.AdamW(
            net.parameters(), lr=rate, betas=(0.9, 0.95), weight_decay=decay
        )

    def step(self, tokens: torch.Tensor, targets: torch.Tensor) -> float:
        """The loss before the step."""
        loss = functional.cross_entropy(self.net(tokens).flatten(0, 1), targets.flatten())
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.net.parameters(), self.clip)
        self.optimizer.step()
        return loss.item()
