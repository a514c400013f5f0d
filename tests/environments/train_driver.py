"""Trains codebases of nanogpt one after the other, each in a fork of this process.

Importing torch takes a second; a fork of a process that has it takes none. Jobs are read from
stdin as JSON, the last line of stdout is `{name: {"error": text or null, "checks": {...}}}`.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

import torch


def main() -> None:
    torch.set_num_threads(1)
    reports = {job["name"]: in_fork(job) for job in json.load(sys.stdin)}
    sys.stdout.write(json.dumps(reports) + "\n")


def in_fork(job: dict[str, Any]) -> dict[str, Any]:
    report = Path(job["folder"]) / "report.json"
    if (child := os.fork()) == 0:
        try:
            found = {"error": None, "checks": train_and_check(job)}
        except BaseException:
            found = {"error": traceback.format_exc(), "checks": {}}
        report.write_text(json.dumps(found))
        os._exit(0)
    os.waitpid(child, 0)
    found = json.loads(report.read_text())
    assert isinstance(found, dict)
    return found


def train_and_check(job: dict[str, Any]) -> dict[str, Any]:
    folder = Path(job["folder"])
    os.chdir(folder / "code")
    sys.path.insert(0, str(folder / "code"))
    os.environ.update(ASSAY_OUT=str(folder / "out"), ASSAY_SEED=str(job["seed"]))
    with (folder / "log").open("w") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    import train  # of the codebase; as a program it would end this process

    train.main(job["flags"])
    return check(folder / "out" / "model.pt")


@torch.no_grad()
def check(path: Path) -> dict[str, Any]:
    """Load the model as predict.py does: shapes, and how much a later byte changes the past."""
    import model

    net = model.load(path)
    weights = hashlib.sha256()
    for name, tensor in sorted(net.state_dict().items()):
        weights.update(name.encode() + tensor.numpy().tobytes())
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(97, 123, (4, 64), generator=generator)
    changed = tokens.clone()
    changed[:, 40:] = torch.randint(97, 123, (4, 24), generator=generator)
    before, after = net(tokens), net(changed)
    return {
        "weights": weights.hexdigest(),
        "shape": list(before.shape),
        "short": list(net(tokens[:, :5]).shape),
        "dtype": str(before.dtype),
        "finite": bool(before.isfinite().all()),
        "future": (before[:, :40] - after[:, :40]).abs().max().item(),
    }


if __name__ == "__main__":
    main()
