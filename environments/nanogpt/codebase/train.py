"""Pre-train the model of model.py within the budget and leave `model.pt` in $ASSAY_OUT.

    ASSAY_DATA=… ASSAY_OUT=… ASSAY_CONFIG=config.json ASSAY_SEED=0 python train.py [--name value …]
"""

import gc

# Imports make no garbage, and looking for it is a tenth of their time. `build` decides what follows.
gc.disable()

import json
import os
import signal
import sys
import time
from contextlib import nullcontext

import torch
import torch.nn.functional as F

import config as settings
import model
from data import Data
from optim import AdamW, clip_gradients, schedule
from ranks import Ranks


def loss_of(net, tokens, targets):
    """The loss that is trained on: mean cross-entropy of `targets` (B, T), in nats."""
    logits = net(tokens)  # (B, T, V)
    loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
    return loss


class Clock:
    """What of the budget is spent. `now` and `stop` are the same on all ranks."""

    def __init__(self, config, budget, ranks):
        self.config, self.ranks = config, ranks
        self.started = float(os.environ.get("NANOGPT_STARTED", time.monotonic()))
        tokens = budget.get("tokens")
        step_tokens = config.batch_size * config.context
        self.steps = tokens // step_tokens if tokens else config.steps or 10**9
        # A budget of tokens ends by itself: a result must not depend on how fast the machine is.
        seconds = float(os.environ.get("ASSAY_SECONDS", "inf"))
        self.limit = float("inf") if tokens else seconds - config.reserve_seconds
        self.warm_at = 0.0
        # Asked to stop (time is up, or somebody cancelled), finish the step and keep what is there.
        self.asked = False
        signal.signal(signal.SIGTERM, self._ask)
        self._check()
        self.look()

    def start(self, at):
        """Start anew: since `at` the text is there."""
        self.started = at
        self.look()

    def _ask(self, *_):
        self.asked = True

    def _check(self):
        by_clock = self.config.schedule_by == "clock"
        endless = self.steps == 10**9 or by_clock
        if self.steps < 1 or (endless and not 0 < self.limit < float("inf")):
            raise SystemExit(
                f"no end to train towards: {self.steps} steps, {self.limit:g} seconds. Give the "
                "profile's budget more tokens or seconds than one step and reserve_seconds take"
            )

    def look(self):
        now = time.monotonic() - self.started
        self.now, stop = self.ranks.largest(now, float(self.asked or now > self.limit))
        self.stop = stop > 0

    def progress(self, step):
        """The share of the training after the warm-up that has passed, 0 to 1."""
        warmup = self.config.warmup_steps
        if step <= warmup:
            self.warm_at = self.now
        if self.config.schedule_by == "clock":
            passed, whole = self.now - self.warm_at, self.limit - self.warm_at
        else:
            passed, whole = step - warmup, self.steps - warmup
        return min(max(passed / max(whole, 1e-9), 0.0), 1.0)


class Curve:
    """The lines of metrics.jsonl, written by rank 0; the others take part in the sums."""

    def __init__(self, config, ranks, parameters):
        self.ranks = ranks
        self.step_tokens = config.batch_size * config.context
        self.before = None
        self.file = None
        if ranks.rank == 0:
            self.file = open(os.path.join(os.environ["ASSAY_OUT"], "metrics.jsonl"), "a")
        bf16 = model.uses_bf16(config.precision)
        self.add(
            step=0,
            dtype="bfloat16" if bf16 else "float32",
            dtype_bits=16 if bf16 else 32,
            ranks=ranks.world,
            parameters=sum(p.numel() for p in parameters),
        )

    def add(self, **point):
        if self.file:
            self.file.write(json.dumps(point) + "\n")
            self.file.flush()

    def add_step(self, step, now, loss, grad_norm, learning_rate):
        """A point of training; only here is the GPU waited for. Returns the loss over all ranks."""
        loss = self.ranks.sum(loss).item() / self.ranks.world
        point = {
            "train/loss": loss,
            "train/grad_norm": grad_norm.item(),
            "train/learning_rate": learning_rate,
            "train/seconds": now,
        }
        if self.before is not None:
            steps, seconds = step - self.before[0], now - self.before[1]
            point["train/tokens_per_second"] = self.step_tokens * steps / max(seconds, 1e-9)
        self.before = step, now
        self.add(step=step, **point)
        return loss


def accumulate_gradients(loss_function, net, batch, config, device):
    """The mean loss over this rank's rows, and its gradients in the parameters."""
    tokens, targets = (part.to(device, non_blocking=True) for part in batch)
    rows = config.micro_batch or len(tokens)
    parts = list(zip(tokens.split(rows), targets.split(rows)))
    total = torch.zeros((), device=device)
    # Several ranks send their gradients with the last part.
    no_sync = getattr(loss_function, "no_sync", nullcontext)
    for number, (some_tokens, some_targets) in enumerate(parts, start=1):
        with nullcontext() if number == len(parts) else no_sync():
            loss = loss_function(net, some_tokens, some_targets) / len(parts)
            loss.backward()
        total += loss.detach()
    return total


def validation_loss(loss_function, net, data, ranks):
    """The mean loss on the text that was held back, over the sequences of all ranks."""
    sums = torch.zeros(2, device=ranks.device)
    for batch in data.validation(data.config.micro_batch or data.config.batch_size):
        tokens, targets = (part.to(ranks.device, non_blocking=True) for part in batch)
        # With gradients, though nobody asks for them: torch.compile would compile once more.
        loss = loss_function(net, tokens, targets).detach()
        sums += torch.stack([loss * len(tokens), torch.full_like(loss, len(tokens))])
    total, rows = ranks.sum(sums).tolist()
    return total / rows


def save(net, out, name=None):
    """Leaves model.pt in `out`, or in its folder checkpoints/`name`. What has that name is whole."""
    unfinished = os.path.join(out, f"unfinished-{name or 'model'}")
    path = os.path.join(unfinished, "model.pt")
    os.makedirs(unfinished)
    model.save(net, path)
    if name is None:
        os.replace(path, os.path.join(out, "model.pt"))
        os.rmdir(unfinished)
    else:
        os.makedirs(os.path.join(out, "checkpoints"), exist_ok=True)
        os.rename(unfinished, os.path.join(out, "checkpoints", name))


def prepare(flags):
    """Everything but the model; what is wrong with the settings or the data is found here."""
    config, budget = settings.load(flags)
    ranks = Ranks.join()
    # Sums in a fixed order: the same seed gives the same weights, bit for bit.
    torch.set_num_threads(int(os.environ.get("ASSAY_THREADS", "1")))
    clock = Clock(config, budget, ranks)
    rows = settings.rows_per_rank(config, ranks.world)
    return config, ranks, clock, Data(config, ranks.rank, ranks.world, rows)


def build(config, ranks, seed):
    """The model, the same on all ranks, and the function of its loss."""
    torch.manual_seed(seed)
    with ranks.device:
        net = model.GPT(config)
    # Nothing made so far is garbage; looking for it can stop a rank for half a second.
    gc.collect()
    gc.freeze()
    gc.disable()
    loss_function = torch.compile(loss_of, dynamic=False) if config.compile else loss_of
    return net, ranks.overlap(net, loss_function)


def warm_up(loss_function, net, parameters, optimizer, data, batch, config, ranks):
    """Compile on made-up tokens of all shapes that the training will have."""
    from warm_up import rehearse

    def step():
        accumulate_gradients(loss_function, net, batch, config, ranks.device)
        ranks.average_gradients(parameters)
        clip_gradients(parameters, config.grad_clip)

    def validate():
        for rows in data.validation_sizes(config.micro_batch or config.batch_size):
            loss_function(net, *(part.to(ranks.device) for part in data.made_up(rows)))

    rehearse(step, validate, net, parameters, optimizer, ranks)


def main(flags):
    config, ranks, clock, data = prepare(flags)
    seed, out = int(os.environ["ASSAY_SEED"]), os.environ["ASSAY_OUT"]
    batches = data.batches(seed)
    batch = next(batches)
    net, loss_function = build(config, ranks, seed)
    parameters = list(net.parameters())
    optimizer = AdamW(parameters, config.beta1, config.beta2, config.adam_eps, config.weight_decay)
    curve = Curve(config, ranks, parameters)
    every = config.checkpoint_every_seconds
    due = every or float("inf")

    if data.is_awaited:
        warm_up(loss_function, net, parameters, optimizer, data, batch, config, ranks)
        clock.start(data.ask())
        batch = next(batches)
    for step in range(clock.steps):
        progress = clock.progress(step)
        factor = schedule(step, progress, config.warmup_steps, config.lr_floor)
        learning_rate = config.learning_rate * factor
        loss = accumulate_gradients(loss_function, net, batch, config, ranks.device)
        ranks.average_gradients(parameters)
        grad_norm = clip_gradients(parameters, config.grad_clip)
        optimizer.step(learning_rate)
        net.zero_grad(set_to_none=True)
        batch = next(batches)  # read while the GPU is busy
        clock.look()
        last = clock.stop or step == clock.steps - 1
        if step % config.log_every == 0 or last:
            shown = curve.add_step(step, clock.now, loss, grad_norm, learning_rate)
        if config.val_every and (step + 1) % config.val_every == 0 and not last:
            found = validation_loss(loss_function, net, data, ranks)
            curve.add(step=step, **{"train/validation_loss": found})
        if clock.now >= due or (last and every):
            due = clock.now + every
            if ranks.rank == 0:
                save(net, out, name=f"{clock.now:09.2f}")
        if last:
            break

    if ranks.rank == 0:
        save(net, out)
        print(f"step {step}: train loss {shown:.4f}, {clock.now:.1f} s", flush=True)
    if config.val_every:
        found = validation_loss(loss_function, net, data, ranks)
        curve.add(step=step, **{"train/validation_loss": found})
    ranks.leave()


if __name__ == "__main__":
    main(sys.argv[1:])
    # Everything is written. Without this, taking torch apart object by object costs half a second.
    sys.stdout.flush()
    os._exit(0)
