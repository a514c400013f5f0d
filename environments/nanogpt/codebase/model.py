"""The GPT: pre-norm blocks, learned positions, GELU, and an output tied to the embedding.

GPT-2 (Radford et al., 2019) without biases and without gains in its norms. The output of attention
is scaled by 1 / sqrt(2 · layers), where GPT-2 shrinks the initial weights instead.

Tensor shapes: B sequences, T positions, C = n_embd channels, H heads of D = C / H channels, V
tokens; S = T positions to look at, or all so far where a cache has some already.
"""

import os
from dataclasses import asdict

import torch
import torch.nn as nn
import torch.nn.functional as F

from config import Config


def uses_bf16(precision):
    """Whether matrix products are in bfloat16.

    Decided by the hardware class and never by a timing: the same class must give the same numbers.
    """
    if precision != "auto":
        return precision == "bf16"
    hardware = os.environ.get("ASSAY_HARDWARE_CLASS", "")
    return on_gpu() or hardware.endswith("bf16") or hardware == "cpu-amx"


def in_bf16(residual):
    """Whether the residual stream is in bfloat16, where products are."""
    return on_gpu() if residual == "auto" else residual == "bf16"


def on_gpu():
    return int(os.environ.get("ASSAY_GPUS") or 0) > 0


class Norm(nn.Module):
    """Scales every position to unit size; nothing is learned."""

    def __init__(self, config):
        super().__init__()
        self.kind, self.eps = config.norm, config.norm_eps

    def forward(self, x):
        if self.kind == "layernorm":
            return F.layer_norm(x, x.shape[-1:], eps=self.eps)
        return F.rms_norm(x.float(), x.shape[-1:], eps=self.eps).type_as(x)


def attend(q, k, v, kernel):
    """Causal attention of queries (B, H, T, D) to keys and values (B, H, S, D): (B, H, T, D).

    With a cache S > T = 1: the one new position sees all that are there.
    """
    B, H, T, D = q.shape
    S = k.size(2)
    if kernel == "sdpa":
        return F.scaled_dot_product_attention(q, k, v, is_causal=T == S)
    # A position sees itself and what stands before it.
    mask = torch.full((T, S), float("-inf"), device=q.device).triu(diagonal=S - T + 1)
    # Plain matrix products: for bfloat16 on a CPU the backward pass of
    # scaled_dot_product_attention takes several times as long.
    q, k, v = (z.reshape(B * H, -1, D) for z in (q, k, v))
    scores = torch.baddbmm(mask.to(q.dtype), q, k.transpose(1, 2), alpha=D**-0.5)  # (B * H, T, S)
    return torch.bmm(F.softmax(scores, dim=-1).to(v.dtype), v).view(B, H, T, D)


class Cache:
    """Keys and values of the positions that were read, for predicting token by token."""

    def __init__(self, length):
        self.length = length  # room for so many positions
        self.read = 0
        self.kept = {}

    def extend(self, layer, k, v):
        """Keys and values (B, H, S, D) of all positions so far, now with k and v (B, H, T, D)."""
        B, H, T, D = k.shape
        if layer not in self.kept:
            self.kept[layer] = k.new_empty(2, B, H, self.length, D)
        self.kept[layer][:, :, :, self.read : self.read + T] = torch.stack([k, v])
        return self.kept[layer][:, :, :, : self.read + T]


class Attention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.n_head = config.n_head
        self.kernel = config.attention
        self.qkv = nn.Linear(config.n_embd, 3 * config.n_embd, bias=False)
        self.proj = nn.Linear(config.n_embd, config.n_embd, bias=False)

    def forward(self, x, cache=None):
        B, T, C = x.shape
        H, D = self.n_head, C // self.n_head
        q, k, v = self.qkv(x).view(B, T, 3, H, D).permute(2, 0, 3, 1, 4)  # (B, H, T, D) each
        if cache is not None:
            k, v = cache.extend(self, k, v)
        y = attend(q, k, v, self.kernel)  # (B, H, T, D)
        y = y.transpose(1, 2).reshape(B, T, C)
        return self.proj(y)


class MLP(nn.Module):
    def __init__(self, config):
        super().__init__()
        hidden = config.mlp_ratio * config.n_embd
        self.up = nn.Linear(config.n_embd, hidden, bias=False)
        self.down = nn.Linear(hidden, config.n_embd, bias=False)

    def forward(self, x):
        x = self.up(x)
        x = F.gelu(x)
        return self.down(x)


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.norm = Norm(config)
        self.attention = Attention(config)
        self.mlp = MLP(config)
        self.attention_scale = (2 * config.n_layer) ** -0.5

    def forward(self, x, cache=None):
        x = x + self.attention_scale * self.attention(self.norm(x), cache)
        x = x + self.mlp(self.norm(x))
        return x


class GPT(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.bf16 = uses_bf16(config.precision)
        # What blocks pass on: in bfloat16 it is half the bytes to move.
        self.stream = torch.bfloat16 if self.bf16 and in_bf16(config.residual) else torch.float32
        # Rows up to a multiple of 128 make the largest product faster. No token has these rows and
        # their logits are cut off, so that all other numbers are those of the smaller table.
        rows = -(-config.vocab_size // 128) * 128
        self.embedding = nn.Embedding(rows, config.n_embd)
        self.positions = nn.Parameter(torch.empty(config.context, config.n_embd))
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        self.norm = Norm(config)
        self.head = nn.Linear(config.n_embd, rows, bias=False)
        # The matrices of the blocks start as nn.Linear leaves them: uniform in ± 1 / sqrt(inputs).
        nn.init.normal_(self.embedding.weight, std=config.init_std)
        nn.init.normal_(self.positions, std=config.init_std)
        # One table for reading and writing tokens.
        self.head.weight = self.embedding.weight

    def forward(self, tokens, cache=None):
        """Logits (B, T, V) in float32 for the token after each of `tokens` (B, T).

        With a cache, `tokens` (B, 1) continue what the cache has read.
        """
        with torch.autocast(tokens.device.type, dtype=torch.bfloat16, enabled=self.bf16):
            return self.logits(tokens, cache).float()

    def logits(self, tokens, cache):
        T = tokens.size(1)
        start = cache.read if cache is not None else 0
        x = self.embedding(tokens)  # (B, T, C)
        x = x + self.positions[start : start + T]
        x = x.to(self.stream)
        for block in self.blocks:
            x = block(x, cache)
        x = self.norm(x)
        if cache is not None:
            cache.read += T
        return self.head(x)[..., : self.config.vocab_size]


def save(model, path):
    # The configuration travels with the weights, so that predict.py needs no other file.
    torch.save({"config": asdict(model.config), "weights": model.state_dict()}, path)


def load(path, device="cpu"):
    saved = torch.load(path, weights_only=True, map_location=device)
    model = GPT(Config(**saved["config"])).to(device)
    model.load_state_dict(saved["weights"])
    return model.eval()
