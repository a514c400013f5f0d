"""Every hyper-parameter. `Config` is the published recipe; the other profiles say what they change.
A flag of launch.py overrides a field of whichever profile runs: `--learning_rate 3e-5`.
"""

import dataclasses
import json
import os
from dataclasses import dataclass


@dataclass(frozen=True)
class Config:
    """Qwen2.5-Math-1.5B on MATH, one GPU, one hour: the profiles `paper` and `single-gpu`."""

    # --- Rollouts ---
    # Rollout batches; each is followed by `batch_size`-sized updates. Time may end it earlier.
    steps: int = 20
    # Different problems per rollout batch, and completions sampled for each (its group).
    prompts_per_step: int = 128
    group_size: int = 8
    # How completions are sampled. The evaluation takes greedy answers, whatever this is.
    temperature: float = 1.0
    top_p: float = 1.0
    # Tokens of a completion; what has not ended by then is cut off.
    max_new_tokens: int = 1024
    # The prompt template in prompts/; `{question}` stands for the problem.
    prompt: str = "r1_zero.txt"
    # Text that ends a completion, and stays in it.
    stop: str = "</answer>"
    # "own" samples with generate.py, "vllm" with vLLM, which has to be installed.
    engine: str = "own"
    # Rows sampled at once; their keys and values have to fit beside the training state.
    rollout_rows: int = 512

    # --- Rewards and advantages ---
    # True rewards a coin instead of the answer: the control run. A gain under it is no learning.
    random_rewards: bool = False
    # True gives no reward to completions that were cut off (Dr. GRPO).
    zero_truncated: bool = False
    # False leaves out the division by the group's standard deviation (Dr. GRPO).
    normalize_by_std: bool = True
    # Added to that standard deviation.
    advantage_eps: float = 1e-6

    # --- Loss ---
    # "grpo_clip", "reinforce_with_baseline" or "no_baseline"; see loss.py.
    loss_type: str = "grpo_clip"
    # How far the ratio of grpo_clip may leave 1.
    clip_range: float = 0.2
    # "tokens": mean over a microbatch's completion tokens; "constant": their sum over
    # rows * max_new_tokens (Dr. GRPO), so that long completions do not count less per token.
    loss_normalizer: str = "tokens"
    # Weight of the mean entropy per token, which is added to the objective. 0 does not compute it.
    entropy_weight: float = 0.0

    # --- Updates ---
    # Completions per optimiser step, how many of them are computed at once (gradients of
    # microbatches add up), and how often a rollout batch is gone through.
    batch_size: int = 64
    microbatch_size: int = 4
    epochs: int = 1
    # AdamW.
    learning_rate: float = 1e-5
    beta1: float = 0.9
    beta2: float = 0.95
    weight_decay: float = 0.0
    # Optimiser steps over which the learning rate rises to its value.
    warmup: int = 0
    # Share of the learning rate that is left at the last step; 1 is no decay, less is linear.
    final_learning_rate: float = 1.0
    # The gradient is scaled down to this norm where it is longer; 0 is off.
    grad_clip: float = 0.0
    # Weights on the GPU; a CPU computes in float32.
    dtype: str = "bfloat16"
    # Positions whose logits are held at once: those of 1,024 take 0.6 GB in float32, and are made
    # again for their gradient. 0: all of a microbatch.
    logit_positions: int = 1024
    # True holds the activations of one layer at a time and makes the others again for their
    # gradient: a third more compute for 15 GB less, see README.md.
    recompute_layers: bool = False

    # --- Leaving results ---
    # Checkpoints over the run, evenly spaced over `steps`; the evaluator looks at no more than its
    # own number of them, and the best one counts.
    checkpoints: int = 10
    # Seconds kept back at the end for writing the last checkpoint.
    reserve_seconds: float = 60.0

    @property
    def rows_at_once(self):
        return min(self.microbatch_size, self.batch_size)


@dataclass(frozen=True)
class Tiny(Config):
    """A char-level model of 0.1 M parameters with a secret arithmetic: seconds of one CPU core."""

    steps: int = 24
    prompts_per_step: int = 32
    max_new_tokens: int = 18
    prompt: str = "tiny.txt"
    microbatch_size: int = 64
    logit_positions: int = 0
    learning_rate: float = 0.0004
    grad_clip: float = 1.0
    checkpoints: int = 4
    reserve_seconds: float = 5.0


@dataclass(frozen=True)
class QuickGpu(Tiny):
    """The same with 3 M parameters and longer numbers: two minutes of a 24 GB card."""

    steps: int = 200
    prompts_per_step: int = 128
    max_new_tokens: int = 24
    batch_size: int = 256
    microbatch_size: int = 256
    learning_rate: float = 0.0001
    rollout_rows: int = 2048
    checkpoints: int = 5
    reserve_seconds: float = 10.0


PROFILES = {"tiny": Tiny, "quick-gpu": QuickGpu, "single-gpu": Config, "paper": Config}
CHOICES = {
    "engine": ("own", "vllm"),
    "loss_type": ("grpo_clip", "reinforce_with_baseline", "no_baseline"),
    "loss_normalizer": ("tokens", "constant"),
    "dtype": ("bfloat16", "float32"),
}


def read(profile, flags):
    """The profile's configuration, with `--name value` pairs of `flags` put over it.

    For a smoke, which tries the profile at a small size, $ASSAY_CONFIG has `overrides`: they win
    over flags, and those for fields that this file has no longer are left out.
    """
    if profile not in PROFILES:
        raise SystemExit(f"no profile {profile!r} in config.py: {', '.join(PROFILES)}")
    config = PROFILES[profile]()
    if len(flags) % 2:
        raise SystemExit(f"flags come in pairs, --name value; got {' '.join(flags)}")
    changes = {}
    for flag, text in zip(flags[::2], flags[1::2]):
        name = flag.removeprefix("--")
        if not flag.startswith("--") or not hasattr(config, name):
            known = ", ".join(f.name for f in dataclasses.fields(config))
            raise SystemExit(f"no flag {flag}; config.py knows: {known}")
        changes[name] = _parse(flag, text, type(getattr(config, name)))
    changes |= {n: v for n, v in _overrides().items() if hasattr(config, n)}
    config = dataclasses.replace(config, **changes)
    _check(config)
    return config


def _overrides():
    path = os.environ.get("ASSAY_CONFIG")
    if path is None:  # the predictor's, and by hand
        return {}
    with open(path) as file:
        return json.load(file).get("overrides", {})


def _parse(flag, text, kind):
    try:
        return {"true": True, "false": False}[text.lower()] if kind is bool else kind(text)
    except (KeyError, ValueError):
        raise SystemExit(f"{flag}: {text!r} is not a value of type {kind.__name__}") from None


def _check(config):
    for name, known in CHOICES.items():
        if getattr(config, name) not in known:
            raise SystemExit(f"{name} is {getattr(config, name)!r}; known: {', '.join(known)}")
    rollouts = config.prompts_per_step * config.group_size
    if rollouts % config.batch_size or config.batch_size % config.rows_at_once:
        raise SystemExit(
            f"{rollouts} completions per step (prompts_per_step * group_size) must divide into"
            f" batches of {config.batch_size}, and those into microbatches of"
            f" {config.microbatch_size}"
        )
