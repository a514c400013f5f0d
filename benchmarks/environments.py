"""How fast are the bundled environments on a CPU?

    python -m benchmarks.environments [--rounds 15] [--steps 10]

Trains `nanogpt` `tiny` and the same model written straightforwardly (float32, stock modules,
torch.optim; see `straightforward`) by turns, in one process with one thread, on the same batches,
and compares the medians of tokens per CPU second. Prints a ratio; the last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.machine import about_machine

ROOT = Path(__file__).resolve().parent.parent
CODEBASE = ROOT / "environments" / "nanogpt" / "codebase"


def environment_training(config: Any) -> Callable[[Any, Any], float]:
    """A step of the environment's own training loop."""
    import model
    import torch
    import train
    from optim import AdamW, clip_gradients

    torch.manual_seed(0)
    net = model.GPT(config)
    parameters = list(net.parameters())
    optimizer = AdamW(parameters, config.beta1, config.beta2, config.adam_eps, config.weight_decay)

    def step(tokens: Any, targets: Any) -> float:
        batch = (tokens, targets)
        loss = train.accumulate_gradients(train.loss_of, net, batch, config, tokens.device)
        clip_gradients(parameters, config.grad_clip)
        optimizer.step(config.learning_rate)
        net.zero_grad(set_to_none=True)
        return float(loss)

    return step


def straightforward_training(config: Any) -> Callable[[Any, Any], float]:
    """A step of the same model in stock parts."""
    import torch

    from benchmarks.straightforward import GPT, Training

    torch.manual_seed(0)
    c = config
    net = GPT(c.vocab_size, c.context, c.n_layer, c.n_head, c.n_embd, c.mlp_ratio)
    return Training(net, c.learning_rate, c.weight_decay, c.grad_clip).step


def race(rounds: int, steps: int) -> dict[str, Any]:
    """Medians of tokens per CPU second, by turns."""
    import config as settings
    import model
    import torch

    torch.set_num_threads(1)
    config = settings.override(settings.PROFILES["tiny"](), ["--vocab_size", "256"])
    generator = torch.Generator().manual_seed(0)
    shape = (config.batch_size, config.context + 1)
    batches = [torch.randint(256, shape, generator=generator) for _ in range(steps)]
    sides = {"environment": environment_training(config)}
    sides["straightforward"] = straightforward_training(config)
    speeds: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(rounds + 1):
        for name, step in sides.items():
            started = time.process_time()
            for windows in batches:
                step(windows[:, :-1].contiguous(), windows[:, 1:].contiguous())
            seconds = time.process_time() - started
            if turn:  # the first turn warms up
                speeds[name].append(steps * config.batch_size * config.context / seconds)
    ours, theirs = (median(speeds[name]) for name in sides)
    return {
        "tokens_per_cpu_second": round(ours),
        "straightforward": round(theirs),
        "ratio": round(ours / theirs, 2),
        "dtype": "bfloat16" if model.uses_bf16(config.precision) else "float32",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=10)
    arguments = parser.parse_args()
    about = about_machine()
    kind = about["hardware_class"]
    os.environ |= {"OMP_NUM_THREADS": "1", "ASSAY_HARDWARE_CLASS": kind, "ASSAY_GPUS": "0"}
    sys.path.insert(0, str(CODEBASE))
    figures = race(arguments.rounds, arguments.steps)
    print(
        f"nanogpt tiny, {kind}: {figures['tokens_per_cpu_second']:,} tokens per CPU second in "
        f"{figures['dtype']}; straightforward float32: {figures['straightforward']:,}; "
        f"ratio {figures['ratio']}"
    )
    alternative = "the same model in float32 with stock modules, SDPA and torch.optim.AdamW"
    summary = {"name": "environments", "alternative": alternative}
    print(json.dumps(summary | about | figures))


if __name__ == "__main__":
    main()
