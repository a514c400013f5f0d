"""Pre-train the model of model.py for a budget of tokens and leave `model.pt` in $ASSAY_OUT.

    ASSAY_DATA=… ASSAY_OUT=… ASSAY_CONFIG=config.json ASSAY_SEED=0 python train.py
"""

import json
import os
import signal
import time
from dataclasses import dataclass

import torch
import torch.nn.functional as F

import model
from data import batches, load_text
from optim import AdamW, schedule


@dataclass
class TrainConfig:
    # Sequences per step and bytes per sequence. Smaller batches mean more steps of the same budget.
    batch_size: int = 16
    context: int = 64
    learning_rate: float = 0.001
    # Steps over which the learning rate rises to its value.
    warmup: int = 20
    beta1: float = 0.9
    beta2: float = 0.95
    weight_decay: float = 0.1
    # The gradient is scaled down to this norm where it is longer.
    grad_clip: float = 1.0
    # Steps between two points of the learning curve.
    log_every: int = 10


def clip_gradients(parameters, limit):
    """Scales the gradients so that their joint norm is at most `limit`; returns the norm before."""
    gradients = [p.grad for p in parameters]
    length = torch.stack(torch._foreach_norm(gradients)).norm()
    torch._foreach_mul_(gradients, (limit / (length + 1e-6)).clamp(max=1.0))
    return length.item()


def main():
    config = TrainConfig()
    with open(os.environ["ASSAY_CONFIG"]) as file:
        budget = json.load(file)["budget"]
    seed, out = int(os.environ["ASSAY_SEED"]), os.environ["ASSAY_OUT"]
    # Sums in a fixed order: the same seed gives the same weights, bit for bit.
    torch.set_num_threads(int(os.environ.get("ASSAY_THREADS", "1")))
    torch.manual_seed(seed)

    # Asked to stop (time is up, or somebody cancelled), finish the step and keep what was learned.
    asked_to_stop = []
    signal.signal(signal.SIGTERM, lambda *_: asked_to_stop.append(True))

    net = model.GPT(model.ModelConfig())
    parameters = list(net.parameters())
    optimizer = AdamW(parameters, config.beta1, config.beta2, config.weight_decay)
    steps = budget["tokens"] // (config.batch_size * config.context)
    source = batches(load_text(), config.batch_size, config.context, seed)
    print(f"{sum(p.numel() for p in parameters):,} parameters, {steps} steps", flush=True)

    started = time.monotonic()
    with open(os.path.join(out, "metrics.jsonl"), "a") as curves:
        for step in range(steps):
            tokens, targets = next(source)
            logits = net(tokens)
            loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
            loss.backward()
            grad_norm = clip_gradients(parameters, config.grad_clip)
            learning_rate = config.learning_rate * schedule(step, steps, config.warmup)
            optimizer.step(learning_rate)
            net.zero_grad(set_to_none=True)
            last = step == steps - 1 or bool(asked_to_stop)
            if step % config.log_every == 0 or last:
                point = {
                    "step": step,
                    "train/loss": loss.item(),
                    "train/grad_norm": grad_norm,
                    "train/learning_rate": learning_rate,
                    "train/seconds": time.monotonic() - started,
                }
                curves.write(json.dumps(point) + "\n")
                curves.flush()
            if last:
                break

    # Under a temporary name first: whatever reads model.pt finds a whole file.
    path = os.path.join(out, "model.pt")
    model.save(net, path + ".part")
    os.replace(path + ".part", path)
    print(f"step {step}: train loss {loss.item():.4f}, {time.monotonic() - started:.1f} s", flush=True)


if __name__ == "__main__":
    main()
