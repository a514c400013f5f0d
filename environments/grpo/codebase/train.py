"""GRPO: sample groups of completions, reward them, and make the better ones likelier.

Started by launch.py. Leaves checkpoints in $ASSAY_OUT/checkpoints/01, 02, ...: Hugging Face folders
with the prompt that belongs to them. The last one is the final model.
"""

import json
import os
import random
import signal
import sys
import time

# Before torch is imported, which takes a second: time runs from the start of the process.
STARTED = time.monotonic()

import torch  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402

import config as configs  # noqa: E402
import model as models  # noqa: E402
from advantages import advantages_of  # noqa: E402
from data import batches, load_problems, load_prompt  # noqa: E402
from loss import masked_mean, policy_loss  # noqa: E402
from optim import AdamW, clip_gradients, schedule  # noqa: E402
from rollout import collect, make_engine  # noqa: E402


def log_probs(model, rollouts, with_entropy=False):
    """Log-probabilities (B, T - 1) of tokens[:, 1:], 0 outside the mask; and entropies, or None.

    Logits are computed at the positions of completions alone, `logit_positions` of them at a time:
    with 150,000 tokens in the vocabulary they take more memory than everything else.
    """
    wanted = rollouts.mask.bool()
    hidden = model.hidden(rollouts.tokens[:, :-1])[wanted]  # (n, C)
    targets = rollouts.tokens[:, 1:][wanted]
    at_once = model.logit_positions
    if 0 < at_once < len(hidden):
        parts = [
            models.recomputed(scores, model, *part, with_entropy)
            for part in zip(hidden.split(at_once), targets.split(at_once))
        ]
        chosen = torch.cat([found for found, _ in parts])
        entropy = torch.cat([found for _, found in parts]) if with_entropy else None
    else:
        chosen, entropy = scores(model, hidden, targets, with_entropy)
    logp = torch.zeros_like(rollouts.mask).masked_scatter(wanted, chosen)
    if entropy is None:
        return logp, None
    return logp, torch.zeros_like(rollouts.mask).masked_scatter(wanted, entropy)


def scores(model, hidden, targets, with_entropy):
    """Log-probabilities (n,) of targets (n,) after hidden (n, C); and entropies (n,), or None."""
    logits = model.logits(hidden).float()  # (n, V)
    total = logits.logsumexp(dim=-1)
    chosen = logits.gather(-1, targets[:, None])[:, 0] - total
    if not with_entropy:
        return chosen, None
    # H = log sum exp(z) - sum p z
    return chosen, total - (torch.softmax(logits, dim=-1) * logits).sum(dim=-1)


@torch.no_grad()
def old_log_probs(model, rollouts, config):
    """Log-probabilities (N, T - 1) under the weights that sampled, before they are updated."""
    old = torch.zeros_like(rollouts.mask)
    for start in range(0, len(rollouts), config.rows_at_once):
        rows = list(range(start, start + config.rows_at_once))
        found, _ = log_probs(model, rollouts.select(rows))
        old[rows, : found.size(1)] = found
    return old


def microbatch_loss(model, part, old, advantages, config):
    """The loss of a few rollouts and what to log; old (B, T - 1), advantages (B,)."""
    logp, entropy = log_probs(model, part, with_entropy=config.entropy_weight != 0)
    old = old[:, : logp.size(1)]
    loss, found = policy_loss(logp, old, part.mask, advantages, part.rewards, config)
    if entropy is not None:
        mean_entropy = masked_mean(entropy, part.mask)
        loss = loss - config.entropy_weight * mean_entropy
        found["entropy"] = mean_entropy.item()
    return loss, found


def update(model, optimizer, rollouts, advantages, old, rate, config, rng):
    """Go through a rollout batch in optimiser steps of `batch_size`; returns means to log.

    `rate(n)` is the learning rate of the run's n-th optimiser step.
    """
    sums, count = {}, 0
    pieces = config.batch_size // config.rows_at_once
    for _ in range(config.epochs):
        order = rng.sample(range(len(rollouts)), len(rollouts))
        for start in range(0, len(order), config.batch_size):
            for piece in range(pieces):
                first = start + piece * config.rows_at_once
                rows = order[first : first + config.rows_at_once]
                part = rollouts.select(rows)
                loss, found = microbatch_loss(model, part, old[rows], advantages[rows], config)
                (loss / pieces).backward()
                for name, value in (found | {"loss": loss.item()}).items():
                    sums[name] = sums.get(name, 0.0) + value / pieces
            norm = clip_gradients(optimizer.parameters, config.grad_clip)
            sums["grad_norm"] = sums.get("grad_norm", 0.0) + norm.item()
            optimizer.step(rate(optimizer.steps))
            optimizer.zero_grad()
            count += 1
    return {name: value / count for name, value in sums.items()}


class Checkpoints:
    """Writes $ASSAY_OUT/checkpoints/01, 02, ...: each appears complete, and never changes."""

    def __init__(self, out, model, files):
        self.out, self.model, self.files = out, model, files
        self.folder = os.path.join(out, "checkpoints")
        os.makedirs(self.folder, exist_ok=True)
        self.written = 0

    def save(self):
        self.written += 1
        name = f"{self.written:02d}"
        unfinished = os.path.join(self.out, f"unfinished-{name}")
        models.save(self.model, unfinished, self.files)
        os.rename(unfinished, os.path.join(self.folder, name))


def is_due(step, config):
    """Whether a checkpoint is due after `step` (from 0): `checkpoints` of them, evenly spaced."""
    scheduled = config.checkpoints * (step + 1) // config.steps
    return scheduled > config.checkpoints * step // config.steps


def open_model(folder, config):
    """The model on the device, in the dtype it is trained in, and its tokenizer."""
    has_gpu = int(os.environ.get("ASSAY_GPUS", "0")) > 0
    if has_gpu and not torch.cuda.is_available():
        raise SystemExit("ASSAY_GPUS says that there is a GPU, but torch finds none")
    dtype = getattr(torch, config.dtype) if has_gpu else torch.float32
    model = models.load(folder, "cuda" if has_gpu else "cpu", dtype)
    model.logit_positions = config.logit_positions
    model.recompute_layers = config.recompute_layers
    path = os.path.join(folder, "tokenizer.json")
    if not os.path.isfile(path):
        raise SystemExit(f"{path} is missing: the model's tokenizer in the `tokenizers` format")
    return model, Tokenizer.from_file(path)


def read_text(*path):
    with open(os.path.join(*path), encoding="utf-8") as file:
        return file.read()


def peak_gb(part, device):
    """The most GB of the GPU in use since the last call, as `<part>_peak_gb`; of a CPU nothing."""
    if device.type != "cuda":
        return {}
    peak = torch.cuda.max_memory_allocated() / 1e9
    torch.cuda.reset_peak_memory_stats()
    return {f"{part}_peak_gb": peak}


def is_late(config, longest):
    """Whether another step of `longest` seconds could run into the reserve for the end."""
    seconds = float(os.environ.get("ASSAY_SECONDS", "inf"))
    return time.monotonic() - STARTED + longest > seconds - config.reserve_seconds


class Trainer:
    """The policy and all that changes it."""

    def __init__(self, data, config, seed):
        folder = os.path.join(data, "model")
        self.config, self.template = config, load_prompt(config.prompt)
        self.source = batches(load_problems(data), config.prompts_per_step, seed)
        self.model, self.tokenizer = open_model(folder, config)
        # What belongs to the weights in a checkpoint.
        self.files = (
            ("tokenizer.json", read_text(folder, "tokenizer.json")),
            ("prompt.txt", self.template),
        )
        self.engine = make_engine(self.model, self.tokenizer, config, folder)
        self.optimizer = AdamW(self.model.parameters(), config)
        self.generator, self.rng = torch.Generator().manual_seed(seed), random.Random(seed)

    def rate(self, update):
        """The learning rate of the run's optimiser step number `update`."""
        c = self.config
        updates = c.steps * c.epochs * c.prompts_per_step * c.group_size // c.batch_size
        factor = schedule(update, updates, c.warmup, c.final_learning_rate)
        return c.learning_rate * factor

    def step(self):
        """A rollout batch and the updates on it; what to log."""
        began = time.monotonic()
        problems = next(self.source)
        rollouts = collect(
            self.engine, self.tokenizer, self.template, problems, self.config, self.generator
        )
        device = rollouts.tokens.device
        peak = peak_gb("rollout", device)
        self.engine.release()
        sampled = time.monotonic()
        advantages = advantages_of(rollouts.rewards, self.config)
        old = old_log_probs(self.model, rollouts, self.config)
        found = update(
            self.model, self.optimizer, rollouts, advantages, old, self.rate, self.config, self.rng
        )
        gap = (old - rollouts.sampled_logp).abs()
        return found | {
            "mean_reward": rollouts.rewards.mean().item(),
            "finished": rollouts.finished.mean().item(),
            "tokens": rollouts.mask.sum(dim=1).mean().item(),
            # How far the sampler's arithmetic is from training's.
            "sampler_gap": masked_mean(gap, rollouts.mask).item(),
            "learning_rate": self.rate(self.optimizer.steps - 1),
            "rollout_seconds": sampled - began,
            "update_seconds": time.monotonic() - sampled,
            **peak,
            **peak_gb("update", device),
        }


def main():
    config = configs.read(os.environ["ASSAY_PROFILE"], sys.argv[1:])
    out, seed = os.environ["ASSAY_OUT"], int(os.environ["ASSAY_SEED"])
    # Sums in a fixed order: the same seed gives the same weights, bit for bit.
    torch.set_num_threads(int(os.environ.get("ASSAY_THREADS", "1")))
    torch.manual_seed(seed)

    # Asked to stop (somebody cancelled), finish the step and keep what was learned. Where a step
    # takes longer than the ten seconds until the kill, the checkpoints before it remain.
    asked_to_stop = []
    signal.signal(signal.SIGTERM, lambda *_: asked_to_stop.append(True))

    trainer = Trainer(os.environ["ASSAY_DATA"], config, seed)
    checkpoints = Checkpoints(out, trainer.model, trainer.files)
    longest = 0.0
    with open(os.path.join(out, "metrics.jsonl"), "a") as curves:
        for step in range(config.steps):
            began = time.monotonic()
            found = trainer.step()
            point = {"step": step} | {f"train/{name}": value for name, value in found.items()}
            curves.write(json.dumps(point) + "\n")
            curves.flush()
            longest = max(longest, time.monotonic() - began)
            stop = bool(asked_to_stop) or is_late(config, longest)
            if stop or is_due(step, config):
                checkpoints.save()
            if stop:
                break
    peaks = [f", {name} {gb:.1f}" for name, gb in found.items() if name.endswith("_peak_gb")]
    reward = f"mean reward {found['mean_reward']:.3f}"
    print(f"{step + 1} steps, {reward}{''.join(peaks)}", flush=True)


if __name__ == "__main__":
    main()
