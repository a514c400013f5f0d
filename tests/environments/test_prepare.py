"""What becomes of prepared data, whatever environment it belongs to."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from assay.environments.bundle import write_tree
from assay.environments.catalog import Environment
from assay.environments.prepare import prepare_data

MANIFEST = """
name = "private"
title = "t"
problem = "p"
[metric]
name = "score"
direction = "minimize"
[entry_points]
train = ["python", "train.py"]
[profiles.tiny]
[profiles.tiny.budget]
seconds = 5
"""
PREPARE = """
import os, pathlib, sys
out = pathlib.Path(sys.argv[sys.argv.index("--out") + 1])
own = pathlib.Path(os.environ["OWN_FILE"])
for split in ("train", "search", "sealed"):
    (out / split / "model").mkdir(parents=True, mode=0o700)
    file = out / split / "model" / "weights"
    file.write_text(split)
    file.chmod(0o600)
os.link(own, out / "train" / "linked")
"""


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_sandbox_user_can_read_what_training_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "own"
    own.write_text("x")
    own.chmod(0o600)
    monkeypatch.setenv("OWN_FILE", str(own))
    files = {"environment.toml": MANIFEST, "prepare.py": PREPARE, "codebase/train.py": ""}
    files["evaluator/evaluate.py"] = "def evaluate(run): ..."
    folder = tmp_path / "private"
    write_tree({name: text.encode() for name, text in files.items()}, folder)
    data = prepare_data(Environment.load(folder), "tiny", tmp_path / "cache")
    assert mode(data / "train" / "model") & 0o555 == 0o555
    assert mode(data / "train" / "model" / "weights") & 0o444 == 0o444
    # What is held out is for the evaluator alone, and a user's own file keeps its mode.
    assert mode(data / "search" / "model" / "weights") == 0o600
    assert mode(own) == 0o600
