"""Code and words that a model which implements a research idea would write."""

from __future__ import annotations

from random import Random

PARAMETERS = (
    ("scale", "1.0"), ("warmup_steps", "100"), ("dropout", "0.1"), ("temperature", "0.7"),
    ("use_ema", "False"), ("reduction", '"mean"'), ("beta", "0.98"), ("max_norm", "1.0"),
)  # fmt: skip

NAMES = ("loss", "reward", "score", "advantage", "weights", "result", "estimate", "margin")

IMPORTS = (
    "import math", "import random", "import time", "import collections", "import itertools",
    "import statistics", "from collections import defaultdict", "from functools import partial",
    "from typing import Any", "import json", "from dataclasses import dataclass",
)  # fmt: skip

WRAPPERS = (
    "if step >= warmup_steps:", "with torch.no_grad():", "if not self.training:",
    "with contextlib.suppress(ValueError):", "if scale > 0:", "with timer('forward'):",
)  # fmt: skip

REMARKS = (
    "Scale by the inverse of the running variance.", "Cosine decay after the warm-up.",
    "Clip before the update, not after.", "Ties are broken by the lower index.",
    "Only the upper half contributes.", "Weights are shared across heads here.",
)  # fmt: skip

STATEMENTS = (
    "{name} = max(0.0, min(1.0, {name}))", "{name} *= 1.0 - step / max(1, total_steps)",
    "history.append(float({name}))", "{name} = {name} / (1e-{small} + norm)",
    "assert {name} is not None, '{name} is missing'", "momentum = {decimal} * momentum + {name}",
    "print(f'{name}: {{{name}:.4f}}')", "seen_{name} = set()", "scale_{small} = {decimal}",
)  # fmt: skip

BLOCKS = (
    (
        "# Keep a running mean of the {name}.",
        "decay = {decimal}",
        "if running_{name} is None:",
        "    running_{name} = {name}",
        "else:",
        "    running_{name} = decay * running_{name} + (1 - decay) * {name}",
    ),
    (
        "{name}_norm = sum(value * value for value in {name}_values) ** 0.5",
        "if {name}_norm > {number}:",
        "    {name}_values = [value * {number} / {name}_norm for value in {name}_values]",
    ),
    (
        "# Curriculum: easy examples first.",
        "progress = min(1.0, step / {hundreds})",
        "keep = int(len(batch) * (0.5 + 0.5 * progress))",
        "",
        "batch = sorted(batch, key=len)[:keep]",
    ),
    (
        "for group in optimizer.param_groups:",
        "    group['lr'] = base_lr * {decimal} ** (step // {hundreds})",
    ),
    (
        "try:",
        "    {name} = compute_{name}(batch, temperature={decimal})",
        "except ZeroDivisionError:",
        "    {name} = 0.0",
    ),
)

HELPERS = (
    (
        "def clipped_{name}({name}, low=-{number}, high={number}):",
        '    """{name} within its bounds."""',
        "    return max(low, min(high, {name}))",
    ),
    (
        "def cosine_rate(step, total={hundreds}, peak={decimal}):",
        '    """Half a cosine from the peak to nothing."""',
        "    if step >= total:",
        "        return 0.0",
        "    return 0.5 * peak * (1 + math.cos(math.pi * step / total))",
    ),
    (
        "def {name}_bonus(values, threshold={decimal}):",
        "    bonus = 0.0",
        "    for value in values:",
        "        if value > threshold:",
        "            bonus += {decimal} * (value - threshold)",
        "",
        "    return bonus",
    ),
)

NEW_FILES = (
    (
        '"""Averages of weights over the training."""',
        "",
        "import copy",
        "",
        "",
        "class Average:",
        "    def __init__(self, model, decay={decimal}):",
        "        self.decay = decay",
        "        self.model = copy.deepcopy(model)",
        "",
        "    def update(self, model):",
        "        for mine, other in zip(self.model.parameters(), model.parameters()):",
        "            mine.mul_(self.decay).add_(other, alpha=1 - self.decay)",
    ),
    (
        "import math",
        "",
        "STEPS = {hundreds}",
        "",
        "",
        "def {name}_rate(step):",
        "    if step < STEPS // {number}:",
        "        return step / STEPS",
        "",
        "    return {decimal} * math.exp(-step / STEPS)",
        "",
        "",
        "def {name}_mask(length, share={decimal}):",
        "    return [index < share * length for index in range(length)]",
    ),
)
NEW_NAMES = ("averaging.py", "rates.py", "replay_buffer.py", "curriculum.py", "extra_loss.py")


def _numbers(random: Random) -> dict[str, str]:
    return {
        "small": str(random.randint(3, 9)),
        "number": str(random.randint(2, 12)),
        "decimal": f"0.{random.randint(11, 99)}",
        "hundreds": str(random.randint(2, 60) * 100),
    }


def statement(random: Random) -> str:
    return random.choice(STATEMENTS).format(name=random.choice(NAMES), **_numbers(random))


def block(random: Random, indent: str) -> list[str]:
    name, numbers = random.choice(NAMES), _numbers(random)
    lines = [line.format(name=name, **numbers) for line in random.choice(BLOCKS)]
    return [indent + line if line else "" for line in lines]


def helper(random: Random, indent: str) -> list[str]:
    name, numbers = random.choice(NAMES), _numbers(random)
    lines = [line.format(name=name, **numbers) for line in random.choice(HELPERS)]
    return [indent + line if line else "" for line in lines]


def new_file(random: Random) -> str:
    name, numbers = random.choice(NAMES), _numbers(random)
    lines = [line.format(name=name, **numbers) for line in random.choice(NEW_FILES)]
    return "\n".join(lines) + "\n"


def clip(random: Random, name: str) -> str:
    return random.choice(
        [
            f"{name} = max({name}, 0)",
            f"{name} *= 0.{random.randint(2, 9)}",
            f"history.append({name})",
        ]
    )


def other_number(random: Random, old: str) -> str:
    """A different number of the same look."""
    if "e" in old.lower() or "." in old:
        new = f"{random.randint(1, 9)}.{random.randint(1, 9)}e-{random.randint(2, 6)}"
        return new if "e" in old.lower() else f"0.{random.randint(101, 989)}"
    if old.isdigit():
        return str(int(old) * random.choice([2, 4, 10]) + random.choice([0, 1, 1]) + (old == "0"))
    return str(random.randint(2, 900))
