"""A small GPT over bytes.

The shape is GPT-2's (pre-norm blocks, learned positions, GELU, output tied to the embedding), with the
simplifications that have proved harmless: no biases, and normalisation without learned gains.

Tensor shapes: B sequences, T positions, C = n_embd channels, H heads of D = C / H channels, V bytes.
"""

import os
from dataclasses import asdict, dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F

# Decided by the hardware class and never by a timing: the same class must give the same numbers.
USE_BF16 = os.environ.get("ASSAY_HARDWARE_CLASS", "").endswith("bf16")


@dataclass
class ModelConfig:
    vocab_size: int = 256
    # The longest sequence the model can read. Predictions are asked for on up to 64 bytes.
    context: int = 64
    n_layer: int = 3
    n_head: int = 4
    n_embd: int = 128
    # Width of the hidden layer of the MLP, in multiples of n_embd.
    mlp_ratio: int = 4
    # Standard deviation of the initial embeddings and matrices.
    init_std: float = 0.02


def norm(x):
    """Layer norm without gains: on a CPU it is fused, where an RMS norm is three passes over x."""
    return F.layer_norm(x, (x.size(-1),))


class Attention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.n_head = config.n_head
        self.qkv = nn.Linear(config.n_embd, 3 * config.n_embd, bias=False)
        self.proj = nn.Linear(config.n_embd, config.n_embd, bias=False)

    def forward(self, x, mask):
        B, T, C = x.shape
        H, D = self.n_head, C // self.n_head
        q, k, v = self.qkv(x).view(B, T, 3, H, D).permute(2, 0, 3, 1, 4)  # (B, H, T, D) each
        q, k, v = (z.reshape(B * H, T, D) for z in (q, k, v))
        # Plain matrix products: for bfloat16 on a CPU the backward pass of
        # scaled_dot_product_attention takes several times as long.
        scores = torch.baddbmm(mask.to(q.dtype), q, k.transpose(1, 2), alpha=D**-0.5)
        y = torch.bmm(F.softmax(scores, dim=-1).to(v.dtype), v)  # (B * H, T, D)
        y = y.view(B, H, T, D).transpose(1, 2).reshape(B, T, C)
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
        self.attention = Attention(config)
        self.mlp = MLP(config)

    def forward(self, x, mask):
        x = x + self.attention(norm(x), mask)
        x = x + self.mlp(norm(x))
        return x


class GPT(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.n_embd)
        self.positions = nn.Parameter(torch.zeros(config.context, config.n_embd))
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        self.head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=config.init_std)
        # Few bytes are frequent; one table for reading and writing them trains faster.
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        """Logits (B, T, V) in float32 for the byte after each of `tokens` (B, T)."""
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=USE_BF16):
            return self.logits(tokens).float()

    def logits(self, tokens):
        T = tokens.size(1)
        # A position sees itself and what stands before it.
        mask = torch.full((T, T), float("-inf")).triu(diagonal=1)
        x = self.embedding(tokens)
        x = x + self.positions[:T]
        for block in self.blocks:
            x = block(x, mask)
        x = norm(x)
        return self.head(x)


def save(model, path):
    # The configuration travels with the weights, so that predict.py needs no other file.
    torch.save({"config": asdict(model.config), "weights": model.state_dict()}, path)


def load(path):
    saved = torch.load(path, weights_only=True)
    model = GPT(ModelConfig(**saved["config"]))
    model.load_state_dict(saved["weights"])
    return model.eval()
