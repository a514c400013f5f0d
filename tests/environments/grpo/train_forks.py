"""Trains codebases of grpo one after the other, each in a fork of this process.

Importing torch takes longer than three steps of training; a fork of a process that has it imports
nothing. Folders with `code` and `out` come as arguments, then `--` and the flags of train.py; the
last line of stdout is JSON: what went wrong in each folder, or null.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import traceback
from pathlib import Path

import tokenizers  # noqa: F401
import torch


def main() -> None:
    torch.set_num_threads(1)
    border = sys.argv.index("--")
    folders, flags = sys.argv[1:border], sys.argv[border + 1 :]
    errors = {folder: in_fork(Path(folder), flags) for folder in folders}
    sys.stdout.write(json.dumps(errors) + "\n")


def in_fork(folder: Path, flags: list[str]) -> str | None:
    error = folder / "error"
    if (child := os.fork()) == 0:
        try:
            train(folder, flags)
        except BaseException:
            error.write_text(traceback.format_exc())
        os._exit(0)
    os.waitpid(child, 0)
    return error.read_text() if error.exists() else None


def train(folder: Path, flags: list[str]) -> None:
    """What launch.py does, its own flags included."""
    os.chdir(folder / "code")
    sys.path.insert(0, str(folder / "code"))
    os.environ["ASSAY_OUT"] = str(folder / "out")
    with (folder / "log").open("w") as log:
        os.dup2(log.fileno(), 1)
    sys.argv = ["train.py", *runpy.run_path("launch.py")["FLAGS"], *flags]
    runpy.run_path("train.py", run_name="__main__")


if __name__ == "__main__":
    main()
