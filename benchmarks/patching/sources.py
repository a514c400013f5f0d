"""Trees of real files: the environments' codebases and modules of the standard library."""

from __future__ import annotations

import sysconfig
from functools import cache
from pathlib import Path
from random import Random

from benchmarks.patching.model import Tree

ROOT = Path(__file__).resolve().parents[2]
STDLIB = Path(sysconfig.get_path("stdlib"))

# Where a module of the standard library stands in a tree. Several trees have one base name in
# two folders, as packages do.
PLANS: tuple[dict[str, str], ...] = (
    {"train.py": "sched.py", "heap.py": "heapq.py", "text.py": "textwrap.py"},
    {"solver.py": "statistics.py", "numbers_core.py": "fractions.py", "run_log.py": "shelve.py"},
    {"args.py": "argparse.py", "train.py": "timeit.py"},
    {"diffing.py": "difflib.py", "main.py": "filecmp.py"},
    {"records.py": "dataclasses.py", "pretty.py": "pprint.py", "clone.py": "copy.py"},
    {"network/address.py": "ipaddress.py", "network/queue.py": "queue.py", "main.py": "trace.py"},
    {"json/decoder.py": "json/decoder.py", "json/encoder.py": "json/encoder.py",
     "tool.py": "csv.py"},
    {"data/utils.py": "base64.py", "model/utils.py": "random.py", "train.py": "calendar.py"},
    {"pool/process.py": "concurrent/futures/process.py",
     "pool/base.py": "concurrent/futures/_base.py"},
    {"src/tokens.py": "tokenize.py", "src/lexer.py": "shlex.py", "scripts/main.py": "code.py"},
    {"config.py": "configparser.py", "options.py": "getopt.py", "settings.py": "netrc.py"},
    {"core/locks.py": "asyncio/locks.py", "core/queues.py": "asyncio/queues.py",
     "core/tasks.py": "asyncio/tasks.py"},
    {"files/paths.py": "posixpath.py", "files/temp.py": "tempfile.py"},
    {"parse/config.py": "tomllib/_parser.py", "train/config.py": "plistlib.py"},
    {"loop.py": "asyncio/base_events.py"},
    {"rollout.py": "functools.py", "grader.py": "reprlib.py", "utils.py": "contextlib.py"},
    {"archive/tar_io.py": "zipfile.py", "archive/gz.py": "gzip.py",
     "archive/util.py": "shutil.py"},
    {"mail/policy.py": "email/policy.py", "mail/header.py": "email/header.py",
     "mail/parser.py": "email/feedparser.py"},
    {"optim.py": "optparse.py", "sampler.py": "graphlib.py"},
    {"learn/schedule.py": "sched.py", "learn/logs/handlers.py": "logging/config.py"},
)  # fmt: skip

LAUNCHER = """#!/bin/bash
# Runs one experiment; the name of the run is its folder.
set -euo pipefail

export WANDB_MODE=offline
export OMP_NUM_THREADS=4
run_name=${1:-baseline}

timeout 2h uv run \\
    --with numpy \\
    --index-strategy unsafe-best-match \\
    python train.py \\
        --learning_rate 1e-5 \\
        --train_steps 20 \\
        --group_size 8 \\
        --batch_size 4 \\
        --clip_range 0.2 \\
        --loss_type grpo_clip \\
        --run_name "$run_name"

echo "Training finished"

for seed in 1 2 3; do
    python evaluate.py --seed "$seed" --out "results/$run_name-$seed.json"
done

echo "Experiment finished successfully!"
"""

SETTINGS = """# Settings of the experiment.
title = "baseline"

[model]
layers = 6
heads = 6
width = 384
dropout = 0.1

[optimizer]
name = "adamw"
learning_rate = 3e-4
betas = [0.9, 0.95]
weight_decay = 0.1

[schedule]
warmup_steps = 100
total_steps = 5000
kind = "cosine"

[data]
batch_size = 32
block_size = 256
"""

NOTES = """# Experiment

A small model that is trained on text.

## How to run

1. Prepare the data with `python prepare.py`.
2. Start the training with `bash run.sh baseline`.
3. Read the result in `results/`.

## Settings

- `learning_rate`: step of the optimizer, 3e-4.
- `batch_size`: sequences in one step, 32.
- `dropout`: share of units that are switched off, 0.1.

The loss after 5000 steps is 1.47.
"""

OTHER_FILES: dict[str, str] = {"run.sh": LAUNCHER, "settings.toml": SETTINGS, "NOTES.md": NOTES}


def _environment(name: str) -> Tree:
    folder = ROOT / "environments" / name / "codebase"
    return {
        str(path.relative_to(folder)): path.read_text()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.suffix in {".py", ".sh", ".toml", ".md"}
    }


@cache
def trees() -> tuple[Tree, ...]:
    """Every base tree, in a fixed order."""
    found = [_environment("nanogpt"), _environment("toy")]
    for number, plan in enumerate(PLANS):
        tree = {path: (STDLIB / module).read_text("utf-8") for path, module in plan.items()}
        for name in list(OTHER_FILES)[: number % 4]:
            tree[name] = OTHER_FILES[name]
        found.append(tree)
    return tuple(found)


def some_tree(random: Random) -> Tree:
    """A copy of one tree; the environments' codebases come often, they are what Assay edits."""
    every = trees()
    if random.random() < 0.2:
        return dict(random.choice(every[:2]))
    return dict(random.choice(every))


def with_tabs(text: str) -> str:
    """The same text indented with one tab for four spaces."""
    lines = []
    for line in text.split("\n"):
        spaces = len(line) - len(line.lstrip(" "))
        lines.append("\t" * (spaces // 4) + " " * (spaces % 4) + line[spaces:])
    return "\n".join(lines)


def with_returns(text: str) -> str:
    return text.replace("\n", "\r\n")


def without_end(text: str) -> str:
    return text.rstrip("\n")
