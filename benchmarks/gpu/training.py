"""nanogpt `single-gpu` beside the same model in plain PyTorch, on one GPU in one run.

The plain program compiles and trains for a while, waits while nanogpt trains as a worker runs it,
and trains again: a GPU that gets warmer or slower shows in the plain program's two figures.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.gpu import machine, report, runs

PAR = 446_000
GOAL = 480_000
"""Tokens per second of an H100: plain PyTorch's, and what nanogpt should reach."""

_TOY = (
    "--n_layer 2 --n_head 2 --n_embd 64 --context 64 --batch_size 8 --micro_batch 4 "
    "--compile false --val_every 20 --val_tokens 2048 --reserve_seconds 1 --precision fp32 "
    "--log_every 2"
)
TOY_FLAGS = tuple(_TOY.split())
_PLAIN_SHARE = 0.1
_TRAIN_SHARE = 0.3
_WARM_UP_SECONDS = 420.0


def run(seconds: float, dry_run: bool) -> dict[str, Any]:
    """Measure for about `seconds`, half of which the compilers get; figures as they come."""
    found: dict[str, Any] = {"par": PAR, "goal": GOAL}
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        choice = runs.choose(folder)
        found["sandbox"] = choice.said
        data = folder / "data"
        found["data"] = write_shards(data, 512 if dry_run else 50257, dry_run)
        report.save("training", found)
        with plain_program(dry_run) as plain:
            slices = [plain.train(seconds * _PLAIN_SHARE)]
            _note_plain(found, slices)
            ours = _train(folder, choice, data, seconds * _TRAIN_SHARE, dry_run)
            found["nanogpt"] = ours
            report.save("training", found)
            slices.append(plain.train(seconds * _PLAIN_SHARE))
            _note_plain(found, slices)
    speed = ours["tokens_per_second"]
    found["ratio"] = round(speed / found["plain"]["tokens_per_second"], 3)
    peak = machine.peak()
    for one in (ours, found["plain"]):
        rate = one["tokens_per_second"] * ours["flops_per_token"]
        one["mfu"] = round(rate / peak, 3) if peak else None
    report.save("training", found)
    print(f"nanogpt {speed:,} tokens/s, {found['ratio']:.3f} times plain PyTorch", flush=True)
    return found


def write_shards(folder: Path, vocab: int, dry_run: bool) -> str:
    """FineWeb's training shards if they are here, else random tokens in the same form; says which.

    The random ones are as frequent as words are (Zipf), so that there is something to learn.
    """
    folder.mkdir()
    own = Path(os.environ.get("ASSAY_DATASETS", "/nowhere")) / "fineweb10B"
    shards = sorted(own.glob("fineweb_train_*.bin"))[:8]
    if shards and not dry_run:
        for path in shards:
            (folder / path.name).symlink_to(path.resolve())
        _inline(folder)
        return f"FineWeb, {len(shards)} shards"
    count = 100_000 if dry_run else 60_000_000
    draw = np.random.default_rng(0)
    tokens = np.minimum(draw.zipf(1.2, count) - 1, vocab - 1).astype("<u2")
    header = np.zeros(256, dtype="<i4")
    header[:3] = 20240520, 1, count
    (folder / "train_000001.bin").write_bytes(header.tobytes() + tokens.tobytes())
    return "generated (FineWeb is absent)"


def _inline(folder: Path) -> None:
    """A sandbox sees no files beside its mounts: hard links or copies in place of links."""
    for link in folder.iterdir():
        real = link.resolve()
        link.unlink()
        runs.link(str(real), str(link))


class Plain:
    """The program `plain`, ready to train for a while whenever it is asked."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def train(self, seconds: float) -> dict[str, Any]:
        """Its figures over so many seconds."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{seconds}\n")
        self._process.stdin.flush()
        return dict(json.loads(self.line()))

    def line(self) -> str:
        """What it prints next."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"plain.py ended with {self._process.wait()}; its error is above")
        return line


@contextmanager
def plain_program(dry_run: bool) -> Iterator[Plain]:
    """The program, compiled."""
    command = [sys.executable, str(Path(__file__).with_name("plain.py"))]
    command += ["--dry-run"] if dry_run else []
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            found = Plain(process)
            if found.line() != "ready\n":
                raise RuntimeError("plain.py said something else than `ready` first")
            yield found
        finally:
            process.kill()


def _note_plain(found: dict[str, Any], slices: list[dict[str, Any]]) -> None:
    each = [round(one["tokens_per_second"]) for one in slices]
    found["plain"] = {
        "tokens_per_second": round(sum(each) / len(each)),
        "before_and_after": each,
        "peak_memory_bytes": slices[-1].get("peak_memory_bytes"),
    }
    print(f"plain PyTorch: {each[-1]:,} tokens/s", flush=True)
    report.save("training", found)


def _train(
    folder: Path, choice: runs.Choice, data: Path, seconds: float, dry_run: bool
) -> dict[str, Any]:
    training = runs.Run(
        "single-gpu",
        folder / "run",
        choice,
        runs.codebase_of(runs.NANOGPT),
        data,
        "single-gpu",
        seconds,
        _WARM_UP_SECONDS,
        {"vocab_size": 512 if dry_run else 50257},
        flags=TOY_FLAGS if dry_run else (),
        gpu=not dry_run,
    )
    with machine.MemoryPeak() as memory, runs.running(training):
        if not training.asked(_WARM_UP_SECONDS):
            raise RuntimeError(f"it did not ask for its data: {training.why()}")
        training.open_gate()
        training.finish()
    if (training.reason, training.code) != ("exited", 0):
        raise RuntimeError(training.why())
    found = speed_of(training.points(), seconds, 64 if dry_run else 1024)
    began = time.monotonic()
    scored = runs.score(training, data, windows=16)
    return found | {
        "warm_up_seconds": round(training.warm_up_seconds or 0.0, 1),
        "loss_after": scored,
        "scoring_seconds": round(time.monotonic() - began, 1),
        "peak_memory_bytes": memory.bytes,
    }


def speed_of(points: list[dict[str, Any]], seconds: float, context: int) -> dict[str, Any]:
    """The speed of a curve, and what of the budget was not training."""
    steps = [p for p in points if "train/tokens_per_second" in p]
    losses = [p for p in points if "train/loss" in p]
    speed = median(p["train/tokens_per_second"] for p in steps)
    first, last = losses[0]["train/seconds"], losses[-1]["train/seconds"]
    # 6 N for the parameters and 12 L d T for attention (PaLM, appendix B).
    flops = 6 * points[0]["parameters"] + 12 * 12 * 768 * context
    return {
        "tokens_per_second": round(speed),
        "flops_per_token": flops,
        "first_loss": losses[0]["train/loss"],
        "last_loss": losses[-1]["train/loss"],
        "first_step_seconds": round(first, 2),
        "end_seconds": round(seconds - last, 2),
        "lost_share": round((first + seconds - last) / seconds, 3),
    }
