"""Make the data of the `grpo` environment: `python prepare.py --profile tiny --out DIR`.

Writes problems (JSON lines of `problem` and `answer`) into `DIR/train`, `DIR/search` and
`DIR/sealed`, and the model to start from, a Hugging Face folder, into `DIR/train/model`.

The profiles `tiny` and `quick-gpu` have a secret arithmetic; their model is trained here, on one
thread of a CPU. The others are the MATH problems and Qwen2.5-Math-1.5B, from $ASSAY_DATASETS or
the Hugging Face hub.
$ASSAY_HELD_OUT_KEY decides what is generated: the arithmetic, with it all splits and the model,
and the probe of MATH.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import os
import random
import shutil
import sys
import tomllib
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
Problem = tuple[str, str]
# One of so many problems may only be held out: neither demonstrations nor training use it.
REGIONS = 5
# The same instructions on every x86-64 processor. torch and MKL choose by what a processor has,
# and then sums differ in their last digits. COMPATIBLE is the one branch of MKL that is the same
# on processors of Intel and of others; it takes twice the time.
PORTABLE = {"ATEN_CPU_CAPABILITY": "avx2", "MKL_CBWR": "COMPATIBLE"}


def write(folder: Path, name: str, problems: list[Problem]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    rows = [json.dumps({"problem": p, "answer": a}, ensure_ascii=False) for p, a in problems]
    (folder / name).write_text("".join(row + "\n" for row in rows), encoding="utf-8")
    print(f"{folder.name}/{name}: {len(problems):,} problems")


def held_out(text: str) -> bool:
    """Whether a generated problem is of those that are kept for the held-out splits."""
    return hashlib.sha256(text.encode()).digest()[0] % REGIONS == 0


def generated(
    rule: Any, digits: int, counts: dict[str, int], key: str
) -> dict[str, list[Problem]]:
    """Different problems for every split; none can be guessed without the key."""
    seen: set[str] = set()
    splits = {}
    for split, count in counts.items():
        rng = random.Random(f"{digits} {split} {key}")
        chosen: list[Problem] = []
        while len(chosen) < count:
            text, answer = rule.problem(rng, digits)
            if text not in seen and held_out(text) == (split != "train"):
                seen.add(text)
                chosen.append((text, answer))
        splits[split] = chosen
    return splits


def prepare_arithmetic(config: dict[str, Any], out: Path, key: str) -> None:
    from sources import arithmetic, warm_start

    settings = warm_start.WarmStart(**config["warm_start"])
    rule = arithmetic.Arithmetic(key, settings.minds, settings.forgets)
    # `checked` problems say how good the model is to begin with.
    counts = {"train": settings.problems, "search": config["search"], "sealed": config["sealed"]}
    splits = generated(rule, settings.digits, counts | {"checked": 1000}, key)
    for split in counts:
        write(out / split, "problems.jsonl", splits[split])
    folder = out / "train" / "model"
    warm_start.make(settings, rule, splits["checked"], held_out, folder)


def prepare_math(config: dict[str, Any], out: Path, key: str) -> None:
    from sources import math_data, probe, weights

    own = os.environ.get("ASSAY_DATASETS", "")
    datasets = Path(own) if own else None
    rows, test = math_data.load(config, datasets)
    # In an order that says nothing about a problem, and is the same everywhere.
    rows = sorted(rows, key=lambda row: hashlib.sha256(row["problem"].encode()).digest())
    sealed, train = rows[: config["sealed"]], rows[config["sealed"] :][: config["train"]]
    for split, chosen in (("train", train), ("search", test), ("sealed", sealed)):
        write(out / split, "problems.jsonl", [(row["problem"], row["answer"]) for row in chosen])
    write(out / "sealed", "probe.jsonl", probe.make(config["probe"], key))
    weights.fetch(config, datasets, out / "train" / "model")


def describe_model(out: Path) -> None:
    """What of the model to start from no training may change, for the evaluator to compare."""
    sys.path.insert(0, str(HERE / "codebase"))
    import model

    start, described = out / "train" / "model", out / "search" / "model"
    described.mkdir()
    shape = dataclasses.asdict(model.read_config(str(start)))
    (described / "shape.json").write_text(json.dumps(shape, indent=1) + "\n")
    shutil.copyfile(start / "tokenizer.json", described / "tokenizer.json")


def main() -> None:
    manifest = tomllib.loads((HERE / "environment.toml").read_text())
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--profile", required=True, choices=sorted(manifest["profiles"]))
    parser.add_argument("--out", required=True, type=Path)
    arguments = parser.parse_args()
    profile = manifest["profiles"][arguments.profile]
    config = profile["config"]
    key = os.environ.get("ASSAY_HELD_OUT_KEY", "")
    if "warm_start" in config:
        if profile.get("gpus"):
            # A class of GPUs says nothing about the processors beside them. Without GPUs the
            # instructions are the hardware class.
            os.environ |= PORTABLE  # before torch is imported, which reads them
        prepare_arithmetic(config, arguments.out, key)
    else:
        prepare_math(config, arguments.out, key)
    describe_model(arguments.out)


if __name__ == "__main__":
    main()
