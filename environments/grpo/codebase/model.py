"""A decoder of the Qwen2 family; reads and writes Hugging Face folders (protected).

Pre-norm blocks with RMSNorm, rotary positions, grouped-query attention with biases on q, k and v,
and SwiGLU (Qwen2 technical report, arXiv 2407.10671). Modules are named as in `transformers`, so
that its `AutoModelForCausalLM.from_pretrained` reads what `save` writes, and `load` what it writes.

The same weights serve two paths: `hidden` over whole sequences, for training and for reading
prompts, and `decode`, one token per row with a static cache of keys and values.

Shapes: B rows, T positions, C = hidden_size, H query heads, K key-value heads, G = H / K,
D = C / H, V tokens, L layers, S positions of the cache.
"""

import json
import os
from dataclasses import asdict, dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch.utils.checkpoint import checkpoint


@dataclass(frozen=True)
class ModelConfig:
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-6
    tie_word_embeddings: bool = True
    max_position_embeddings: int = 4096
    # The token that ends a text; None where there is none.
    eos_token_id: int | None = None


class RMSNorm(nn.Module):
    def __init__(self, size, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x):
        return F.rms_norm(x, (x.size(-1),), self.weight, self.eps)


def rotate(x, cos, sin):
    """Turn pairs (i, i + D/2) of x (B, H, T, D) by the angles of cos, sin (..., T, D)."""
    left, right = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-right, left), dim=-1) * sin


class Attention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.size = config.hidden_size // self.heads
        C, kv = config.hidden_size, self.kv_heads * self.size
        self.q_proj = nn.Linear(C, C, bias=True)
        self.k_proj = nn.Linear(C, kv, bias=True)
        self.v_proj = nn.Linear(C, kv, bias=True)
        self.o_proj = nn.Linear(C, C, bias=False)

    def project(self, x, cos, sin):
        """q (B, H, T, D) and k, v (B, K, T, D), positions turned in."""
        B, T, _ = x.shape
        q = self.q_proj(x).view(B, T, self.heads, self.size).transpose(1, 2)
        k = self.k_proj(x).view(B, T, self.kv_heads, self.size).transpose(1, 2)
        v = self.v_proj(x).view(B, T, self.kv_heads, self.size).transpose(1, 2)
        return rotate(q, cos, sin), rotate(k, cos, sin), v

    def forward(self, x, cos, sin, cache=None):
        """Causal attention over x (B, T, C). Keys and values are left in `cache`, if given."""
        q, k, v = self.project(x, cos, sin)
        if cache is not None:
            B, T = x.shape[:2]
            cache[0, :B, :, :T], cache[1, :B, :, :T] = k, v
        y = F.scaled_dot_product_attention(
            q, k, v, is_causal=True, enable_gqa=self.heads != self.kv_heads
        )
        return self.o_proj(y.transpose(1, 2).reshape(x.shape))

    def decode(self, x, cos, sin, cache, rows, positions, bias):
        """One token per row: x (B, 1, C), cache (2, B, K, S, D), positions (B,), bias (B, 1, S)."""
        B, K, D = x.size(0), self.kv_heads, self.size
        q, k, v = self.project(x, cos, sin)
        cache[0, rows, :, positions] = k[:, :, 0]  # (B, K, D)
        cache[1, rows, :, positions] = v[:, :, 0]
        # The G query heads of a key-value head are rows of one matrix: no key is read twice.
        q = q.view(B, K, -1, D)
        scores = q @ cache[0].transpose(2, 3) * D**-0.5 + bias[:, None]  # (B, K, G, S)
        y = F.softmax(scores.float(), dim=-1).to(x.dtype) @ cache[1]  # (B, K, G, D)
        return self.o_proj(y.reshape(B, 1, -1))


class MLP(nn.Module):
    def __init__(self, config):
        super().__init__()
        C, hidden = config.hidden_size, config.intermediate_size
        self.gate_proj = nn.Linear(C, hidden, bias=False)
        self.up_proj = nn.Linear(C, hidden, bias=False)
        self.down_proj = nn.Linear(hidden, C, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = MLP(config)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x, attend):
        x = x + attend(self.self_attn, self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class Trunk(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)


class Model(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        # How training saves memory; see config.py.
        self.logit_positions, self.recompute_layers = 0, False
        self.model = Trunk(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight

    def angles(self, positions):
        """(cos, sin) of shape (..., D) for positions (...), in the dtype of the weights."""
        weight = self.lm_head.weight
        size = self.config.hidden_size // self.config.num_attention_heads
        powers = torch.arange(0, size, 2, dtype=torch.float32, device=weight.device) / size
        turns = positions.float()[..., None] * self.config.rope_theta**-powers  # (..., D / 2)
        turns = torch.cat((turns, turns), dim=-1)
        return turns.cos().to(weight.dtype), turns.sin().to(weight.dtype)

    def hidden(self, tokens, cache=None):
        """The last hidden states (B, T, C) of tokens (B, T).

        Rows start at position 0 and may be filled up at their ends with anything: no position sees
        what comes after it. `cache` (L, 2, B', K, S, D) takes keys and values of the first B rows.
        """
        cos, sin = self.angles(torch.arange(tokens.size(1), device=tokens.device))  # (T, D)
        x = self.model.embed_tokens(tokens)
        for i, layer in enumerate(self.model.layers):
            own = None if cache is None else cache[i]

            def attend(attention, h, own=own):
                return attention(h, cos, sin, own)

            x = recomputed(layer, x, attend) if self.recompute_layers else layer(x, attend)
        return self.model.norm(x)

    def logits(self, hidden):
        """Logits (..., V) of hidden states (..., C). Ask only for positions that are wanted."""
        return self.lm_head(hidden)

    def decode(self, tokens, positions, cache):
        """Logits (B, V) after tokens (B,) at `positions` (B,); cache (L, 2, B, K, S, D) is written.

        Every shape is fixed by B and S, so that a CUDA graph can hold the whole step.
        """
        span = torch.arange(cache.size(4), device=tokens.device)
        bias = torch.zeros(tokens.size(0), 1, cache.size(4), dtype=cache.dtype, device=cache.device)
        bias.masked_fill_((span > positions[:, None])[:, None], float("-inf"))  # (B, 1, S)
        cos, sin = (a[:, None, None] for a in self.angles(positions))  # (B, 1, 1, D)
        rows = torch.arange(tokens.size(0), device=tokens.device)
        x = self.model.embed_tokens(tokens)[:, None]  # (B, 1, C)
        for i, layer in enumerate(self.model.layers):
            own = cache[i]
            where = (own, rows, positions, bias)
            x = layer(x, lambda attention, h, where=where: attention.decode(h, cos, sin, *where))
        return self.logits(self.model.norm(x)[:, 0])

    def new_cache(self, rows, length):
        """An empty cache of keys and values, (L, 2, rows, K, length, D)."""
        c, weight = self.config, self.lm_head.weight
        size = c.hidden_size // c.num_attention_heads
        shape = (c.num_hidden_layers, 2, rows, c.num_key_value_heads, length, size)
        # Zeros and not whatever is there: a NaN that is masked out is still a NaN.
        return torch.zeros(shape, dtype=weight.dtype, device=weight.device)


def recomputed(function, *inputs):
    """`function(*inputs)`, whose intermediate results are made again for the gradient."""
    return checkpoint(function, *inputs, use_reentrant=False, preserve_rng_state=False)


def save(model, folder, extra_files=()):
    """Write config.json and model.safetensors; `extra_files` are (name, text) beside them."""
    os.makedirs(folder, exist_ok=True)
    described = asdict(model.config) | {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_act": "silu",
        "torch_dtype": str(model.lm_head.weight.dtype).removeprefix("torch."),
    }
    for name, text in (("config.json", json.dumps(described, indent=2)), *extra_files):
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            file.write(text)
    weights = {name: w.detach().contiguous() for name, w in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        del weights["lm_head.weight"]
    save_file(weights, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})


def read_config(folder):
    path = os.path.join(folder, "config.json")
    if not os.path.isfile(path):
        raise SystemExit(f"{folder} has no config.json: it must be a Hugging Face model folder")
    with open(path, encoding="utf-8") as file:
        found = json.load(file)
    if found.get("model_type") != "qwen2":
        raise SystemExit(f"{path}: model_type is {found.get('model_type')!r}; only 'qwen2' is read")
    # Newer versions of transformers write the base of the rotary angles one level down.
    rope = found.get("rope_parameters") or found.get("rope_scaling") or {}
    if found.get("use_sliding_window") or rope.get("rope_type", "default") != "default":
        raise SystemExit(f"{path}: sliding windows and scaled rotary positions are not supported")
    found.setdefault("rope_theta", rope.get("rope_theta", 10000.0))
    found.setdefault("tie_word_embeddings", False)  # the default of transformers
    if isinstance(found.get("eos_token_id"), list):
        found["eos_token_id"] = found["eos_token_id"][0]
    names = ModelConfig.__dataclass_fields__
    try:
        return ModelConfig(**{k: v for k, v in found.items() if k in names})
    except TypeError as error:
        raise SystemExit(f"{path}: {error}") from None


def weight_files(folder):
    """The folder's safetensors files: one, or those that an index names."""
    single = os.path.join(folder, "model.safetensors")
    index = single + ".index.json"
    if os.path.isfile(single):
        return [single]
    if not os.path.isfile(index):
        raise SystemExit(f"{folder} has neither model.safetensors nor an index of shards")
    with open(index, encoding="utf-8") as file:
        names = sorted(set(json.load(file)["weight_map"].values()))
    paths = [os.path.join(folder, os.path.basename(name)) for name in names]
    for path in paths:
        if not os.path.isfile(path):
            raise SystemExit(f"{path} is missing, though {index} names it; fetch the weights again")
    return paths


def load(folder, device="cpu", dtype=None):
    """The model in a Hugging Face folder; `dtype` None keeps the weights as they are stored."""
    config = read_config(folder)
    weights = {}
    for path in weight_files(folder):
        weights |= load_file(path, device=str(device))
    if config.tie_word_embeddings:
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    # No memory for weights that are replaced at once.
    with torch.device("meta"):
        model = Model(config)
    try:
        model.load_state_dict(weights, assign=True)
    except RuntimeError as error:
        raise SystemExit(f"{folder}: the weights do not fit config.json: {error}") from None
    if config.tie_word_embeddings:
        model.lm_head.weight = model.model.embed_tokens.weight
    return model.to(dtype=dtype) if dtype is not None else model
