"""What the bundled environments reach on one GPU, in one command of under ten minutes.

    make bench-gpu                                # on a machine with an NVIDIA GPU
    python -m benchmarks.gpu --dry-run            # the same path on a CPU with toy sizes

1. `nanogpt` `single-gpu` (124 M parameters, bfloat16, compiled) for `--train-seconds` on
   generated text: tokens/s without compilation, share of the GPU's arithmetic (MFU), loss curve.
   Par is 430,000 tokens/s on an H100 or H200, good is 480,000.
2. Rollouts of a model of the shape of Qwen2.5-1.5B with random weights, 512 rows in groups of 8,
   by the `grpo` environment's sampler and by plain `generate` of transformers, as a ratio. Par is
   60,000 tokens/s.

Prints what it measures as it goes; the last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
NANOGPT = ROOT / "environments" / "nanogpt"
GRPO = ROOT / "environments" / "grpo" / "codebase"
PEAK = {"H100": 989e12, "H200": 989e12, "A100": 312e12, "4090": 165e12}
"""Dense bfloat16 operations per second."""


@dataclass(frozen=True)
class Rollouts:
    """The shape of the sampled model, and how much is sampled."""

    hidden: int = 1536
    intermediate: int = 8960
    layers: int = 28
    heads: int = 12
    kv_heads: int = 2
    vocab: int = 151_936
    prompts: int = 64
    group: int = 8
    prompt_tokens: int = 128
    new_tokens: int = 512
    reference_prompts: int = 16
    reference_tokens: int = 128


TOY = Rollouts(64, 192, 2, 4, 2, 512, 4, 4, 8, 24, 2, 12)
TOY_FLAGS = (
    "--n_layer 2 --n_head 2 --n_embd 64 --context 64 --batch_size 8 --micro_batch 4 "
    "--compile false --val_every 20 --val_tokens 2048 --reserve_seconds 2 --precision fp32"
)


def train(seconds: float, dry: bool, folder: Path) -> dict[str, Any]:
    """Train `single-gpu` for a while and read its curve."""
    from assay.environments.catalog import Environment
    from assay.environments.prepare import prepare_data

    data = prepare_data(
        Environment.load(NANOGPT),
        "tiny" if dry else "quick-gpu",  # byte tokens are tokens of the larger vocabulary, too
        ROOT / ".assay" / "bench-cache",
    )
    config = folder / "config.json"
    budget = {"budget": {"seconds": seconds}}
    config.write_text(json.dumps({"vocab_size": 512 if dry else 50257, **budget}))
    (folder / "out").mkdir()
    environment = os.environ | {
        "ASSAY_DATA": str(data / "train"),
        "ASSAY_OUT": str(folder / "out"),
        "ASSAY_CONFIG": str(config),
        "ASSAY_SEED": "0",
        "ASSAY_PROFILE": "single-gpu",
        "ASSAY_HARDWARE_CLASS": "cpu" if dry else "gpu",
        "ASSAY_GPUS": "0" if dry else "1",
        "ASSAY_SECONDS": f"{seconds:g}",
        "ASSAY_THREADS": "1",
    }
    command = [sys.executable, "launch.py", *(TOY_FLAGS.split() if dry else [])]
    subprocess.run(command, cwd=NANOGPT / "codebase", env=environment, check=True)
    points = [json.loads(line) for line in (folder / "out" / "metrics.jsonl").open()]
    return _curve(points, 64 if dry else 1024)


def _curve(points: list[dict[str, Any]], context: int) -> dict[str, Any]:
    steps = [p for p in points if "train/tokens_per_second" in p]
    # The first ones hold the compilation.
    speed = median(p["train/tokens_per_second"] for p in steps[len(steps) // 3 :])
    shown = [steps[i * (len(steps) - 1) // 9] for i in range(10)] if len(steps) > 9 else steps
    for point in shown:
        print(f"  step {point['step']:>6}: loss {point['train/loss']:.4f}", flush=True)
    # 6 N for the parameters and 12 L d T for attention (PaLM, appendix B).
    flops = 6 * points[0]["parameters"] + 12 * 12 * 768 * context
    return {
        "tokens_per_second": round(speed),
        "flops_per_token": flops,
        "first_loss": points[1]["train/loss"],
        "last_loss": steps[-1]["train/loss"],
        "seconds": steps[-1]["train/seconds"],
    }


def rollouts(size: Rollouts, dry: bool) -> dict[str, Any]:
    """The environment's sampler against `generate`, tokens per second each."""
    import model as models
    import torch
    from generate import Sampler, Sampling, uniforms

    device, dtype = ("cpu", torch.float32) if dry else ("cuda", torch.bfloat16)
    torch.manual_seed(0)
    shape = models.ModelConfig(
        vocab_size=size.vocab,
        hidden_size=size.hidden,
        intermediate_size=size.intermediate,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.kv_heads,
    )
    with torch.device(device):
        model = models.Model(shape).to(dtype)
    draw = random.Random(0)
    prompts = [
        [draw.randrange(size.vocab) for _ in range(size.prompt_tokens)]
        for _ in range(size.prompts)
    ]
    rows = size.prompts * size.group
    numbers = uniforms((rows, size.new_tokens), torch.Generator().manual_seed(0))
    sampler = Sampler(model, _NoTokenizer(size.vocab), rows)
    how = Sampling(size.new_tokens, stop="</answer>")
    ours = 0.0
    for turn in range(3):  # the first one records the graphs
        took = _timed(lambda: sampler.sample(prompts, size.group, numbers, how), dry)
        speed = rows * size.new_tokens / took
        ours = max(ours, speed)
        print(f"  sampler, turn {turn}: {speed:,.0f} tokens/s", flush=True)
    plain = _generate(model, models, prompts, size, dry)
    print(f"  generate: {plain:,.0f} tokens/s", flush=True)
    return {"tokens_per_second": round(ours), "generate": round(plain), "ratio": ours / plain}


class _NoTokenizer:
    """Random weights write no text: no completion ends early, so that every token is counted."""

    def __init__(self, vocab: int) -> None:
        self.vocab = vocab

    def get_vocab_size(self) -> int:
        return self.vocab

    def decode(self, tokens: list[int], **_: Any) -> str:
        return ""

    def decode_batch(self, rows: list[list[int]], **_: Any) -> list[str]:
        return [""] * len(rows)


def _generate(model: Any, models: Any, prompts: list[Any], size: Rollouts, dry: bool) -> float:
    """Tokens per second of transformers on the same weights: fewer of them, as it is slow."""
    import torch
    from transformers import AutoModelForCausalLM

    device = "cpu" if dry else "cuda"
    with tempfile.TemporaryDirectory() as folder:
        models.save(model, folder)
        theirs = AutoModelForCausalLM.from_pretrained(folder, dtype="auto").to(device)
    asked = torch.tensor(prompts[: size.reference_prompts], device=device)
    asked = asked.repeat_interleave(size.group, 0)
    settings = {"max_new_tokens": size.reference_tokens, "min_new_tokens": size.reference_tokens}
    settings |= {"do_sample": True, "top_k": 0, "pad_token_id": 0}
    mask = torch.ones_like(asked)
    took = 0.0
    for _ in range(2):  # the first one warms up
        took = _timed(lambda: theirs.generate(asked, attention_mask=mask, **settings), dry)
    return len(asked) * size.reference_tokens / took


def _timed(work: Any, dry: bool) -> float:
    import torch

    started = time.perf_counter()
    work()
    if not dry:
        torch.cuda.synchronize()
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--train-seconds", type=float, default=240.0)
    parser.add_argument("--dry-run", action="store_true")
    arguments = parser.parse_args()
    dry = arguments.dry_run
    name, peak = "cpu", 0.0
    if not dry:
        import torch

        if not torch.cuda.is_available():
            raise SystemExit("there is no GPU here, or torch is a CPU build; try --dry-run")
        name = torch.cuda.get_device_name()
        peak = next((v for k, v in PEAK.items() if k in name), 0.0)
    sys.path.insert(0, str(GRPO))
    print(f"{name}: rollouts", flush=True)
    sampled = rollouts(TOY if dry else Rollouts(), dry)
    print(f"{name}: nanogpt single-gpu", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        trained = train(min(arguments.train_seconds, 12 if dry else 480), dry, Path(folder))
    trained["mfu"] = (
        trained["tokens_per_second"] * trained["flops_per_token"] / peak if peak else 0
    )
    alternative = "par: 430,000 training tokens/s, 60,000 rollout tokens/s; transformers generate"
    summary = {"name": "gpu", "device": name, "dry_run": dry, "alternative": alternative}
    print(json.dumps(summary | {"training": trained, "rollouts": sampled}))


if __name__ == "__main__":
    main()
