"""Every choice of this codebase in one place, kernels and number formats included.

`Config` is the published baseline and the profile `paper`; the classes below it are the other
profiles and list what they change. `python launch.py --learning_rate 0.002` overrides a field for
one run, `--size d24` the three that make up a size.
"""

import json
import os
from dataclasses import dataclass, fields, replace


@dataclass(frozen=True)
class Config:
    """124 M parameters on FineWeb: AdamW, 262,144 tokens a step, at most 26,880 steps."""

    # --- Model ---
    # Tokens are 0 to vocab_size - 1. The data decide: the profile's table in environment.toml wins.
    vocab_size: int = 50257
    # The longest sequence the model can read; training sequences have this length.
    context: int = 1024
    n_layer: int = 12
    n_head: int = 12
    # Width of the residual stream; each head has n_embd / n_head channels.
    n_embd: int = 768
    # Width of the hidden layer of the MLP, in multiples of n_embd.
    mlp_ratio: int = 4
    # Standard deviation of the initial embeddings of tokens and positions.
    init_std: float = 0.02
    # "rmsnorm" (in float32, without gains) or "layernorm" (the same but centred; one pass on a CPU).
    norm: str = "rmsnorm"
    # Added to the mean square before the root.
    norm_eps: float = 1e-6
    # "sdpa" (fused) or "bmm" (plain products: for bfloat16 on a CPU several times as fast).
    attention: str = "sdpa"
    # Matrix products in "bf16" or "fp32"; "auto": bf16 on GPUs and where a CPU computes in it.
    precision: str = "auto"
    # What is passed from block to block in "bf16" or "fp32", where products are in bf16; "auto":
    # bf16 on GPUs.
    residual: str = "auto"
    # Compile the loss with torch.compile: about a minute, before the budget's clock (warm_up.py).
    compile: bool = True

    # --- Optimiser: AdamW on all parameters ---
    learning_rate: float = 0.0015
    # Steps over which the learning rate rises to its value.
    warmup_steps: int = 256
    # Where the decay ends: at floor / (1 + floor) of the learning rate, 9.1 % here.
    lr_floor: float = 0.1
    # What the decay follows: "steps" of a known number, or the "clock" of the budget.
    schedule_by: str = "steps"
    beta1: float = 0.9
    beta2: float = 0.95
    adam_eps: float = 1e-8
    weight_decay: float = 0.1
    # The gradient is scaled down to this norm where it is longer.
    grad_clip: float = 1.0

    # --- Batches ---
    # Sequences per step over all ranks: the one place that says how large a batch is.
    batch_size: int = 256
    # Sequences that a rank computes at once; 0: all it has. Gradients of the rest are added up.
    micro_batch: int = 32
    # "sequential": the text from start to end and again. "random": windows drawn with the seed.
    order: str = "sequential"

    # --- Budget ---
    # Steps at most; 0: as many as the clock allows. A budget of tokens replaces this.
    steps: int = 26880
    # Seconds of the budget left for the end: the last step, writing the model, leaving.
    reserve_seconds: float = 20.0

    # --- What a run tells and leaves on its way ---
    # Steps between two points of the learning curve.
    log_every: int = 10
    # Steps between two losses on text that is not trained on; 0: never.
    val_every: int = 250
    # How many tokens at the end of the training data are kept for that.
    val_tokens: int = 1048576
    # Seconds between two checkpoints, by which the evaluator finds the time to a target; 0: none.
    checkpoint_every_seconds: float = 60.0


@dataclass(frozen=True)
class Tiny(Config):
    """630,784 parameters on bytes: seconds on one CPU core, the same bits for the same seed."""

    context: int = 64
    n_layer: int = 3
    n_head: int = 4
    n_embd: int = 128
    norm: str = "layernorm"
    attention: str = "bmm"
    compile: bool = False
    learning_rate: float = 0.003
    warmup_steps: int = 28
    batch_size: int = 16
    micro_batch: int = 0
    order: str = "random"
    val_every: int = 0
    checkpoint_every_seconds: float = 0.0


@dataclass(frozen=True)
class QuickGpu(Config):
    """10.8 M parameters on bytes: two minutes on a GPU with 24 GB."""

    context: int = 256
    n_layer: int = 6
    n_head: int = 6
    n_embd: int = 384
    warmup_steps: int = 100
    schedule_by: str = "clock"
    batch_size: int = 128
    micro_batch: int = 128
    order: str = "random"
    steps: int = 0
    reserve_seconds: float = 8.0
    val_tokens: int = 65536
    checkpoint_every_seconds: float = 0.0


@dataclass(frozen=True)
class SingleGpu(Config):
    """The model of `paper` for 25 minutes of one GPU; the learning rate follows the clock."""

    schedule_by: str = "clock"
    micro_batch: int = 64
    steps: int = 0
    checkpoint_every_seconds: float = 0.0


PROFILES = {"tiny": Tiny, "quick-gpu": QuickGpu, "single-gpu": SingleGpu, "paper": Config}
# n_layer, n_head, n_embd of the published family.
SIZES = {"d12": (12, 12, 768), "d24": (24, 16, 1024), "d36": (36, 20, 1280), "d48": (48, 25, 1600)}
CHOICES = {
    "norm": ("rmsnorm", "layernorm"),
    "attention": ("sdpa", "bmm"),
    "precision": ("auto", "bf16", "fp32"),
    "residual": ("auto", "bf16", "fp32"),
    "schedule_by": ("steps", "clock"),
    "order": ("sequential", "random"),
}


def load(flags):
    """(config, budget) of $ASSAY_PROFILE with `flags` such as ["--learning_rate", "0.002"].

    The budget is a dict with `seconds` and perhaps `tokens`, from $ASSAY_CONFIG. For a smoke, which
    tries the profile on a small model, that file has `overrides`: they win over flags, and those
    for fields that this file has no longer are left out.
    """
    profile = os.environ.get("ASSAY_PROFILE", "tiny")
    if profile not in PROFILES:
        raise SystemExit(f"config.py has no profile {profile!r}; it has {', '.join(PROFILES)}")
    with open(os.environ["ASSAY_CONFIG"]) as file:
        table = json.load(file)
    config = PROFILES[profile]()
    if "vocab_size" in table:
        config = replace(config, vocab_size=table["vocab_size"])
    config = override(config, flags)
    smaller = table.get("overrides", {})
    config = replace(config, **{n: smaller[n] for n in smaller if hasattr(config, n)})
    check(config)
    return config, table.get("budget", {})


def override(config, flags):
    """The config with each `--name value` of `flags` in place of its field."""
    types = {field.name: type(getattr(config, field.name)) for field in fields(config)}
    if len(flags) % 2:
        raise SystemExit(f"flags come as --name value, but {flags[-1]!r} stands alone")
    for flag, text in zip(flags[::2], flags[1::2]):
        name = flag.removeprefix("--").replace("-", "_")
        if name == "size" and text in SIZES:
            n_layer, n_head, n_embd = SIZES[text]
            config = replace(config, n_layer=n_layer, n_head=n_head, n_embd=n_embd)
        elif name in types:
            config = replace(config, **{name: parse(name, text, types[name])})
        else:
            raise SystemExit(f"config.py has no {flag} {text}; fields: {', '.join(types)}")
    return config


def parse(name, text, wanted):
    if wanted is bool and text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        if wanted is not bool:
            return wanted(text)
    except ValueError:
        pass
    raise SystemExit(f"--{name} must be of type {wanted.__name__}, not {text!r}")


def check(config):
    """Refuses what cannot be meant, before any budget is spent."""
    for name, allowed in CHOICES.items():
        if getattr(config, name) not in allowed:
            raise SystemExit(f"{name} is {getattr(config, name)!r}; choose {' or '.join(allowed)}")
    for name in ("vocab_size", "context", "n_layer", "n_head", "n_embd", "batch_size", "log_every"):
        if getattr(config, name) < 1:
            raise SystemExit(f"{name} is {getattr(config, name)}; it must be at least 1")
    if config.n_embd % config.n_head:
        raise SystemExit(f"n_embd {config.n_embd} must be a multiple of n_head {config.n_head}")


def rows_per_rank(config, world):
    """How many sequences of a step one of `world` ranks computes."""
    rows = config.batch_size // world
    if config.batch_size % world or rows % (config.micro_batch or rows):
        raise SystemExit(
            f"batch_size {config.batch_size} does not divide into {world} ranks with "
            f"micro-batches of {config.micro_batch}; change batch_size or micro_batch"
        )
    return rows
