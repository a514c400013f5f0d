"""Runs a codebase as a smoke of its profile does, on a processor."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from assay.contracts.environment import Profile
from tests.environments.conftest import Bundled


def smoke_of(bundled: Bundled, profile: str) -> Profile:
    """A profile at the size of the smoke that it declares."""
    chosen = bundled.environment.manifest.smoke_profile(profile)
    assert chosen is not None
    assert chosen[0] == profile
    return chosen[1]


def steps_of_smoke(bundled: Bundled, data: Path, folder: Path, **overrides: object) -> set[int]:
    """The steps that `quick-gpu` took at the size of its smoke, until there were two."""
    config = smoke_of(bundled, "quick-gpu").config
    budget = bundled.environment.profile("quick-gpu").budget.model_dump(exclude_none=True)
    overrides = config["overrides"] | overrides
    table = config | {"overrides": overrides, "budget": budget}
    (folder / "config.json").write_text(json.dumps(table))
    (folder / "out").mkdir()
    with bundled.environment.complete_folder() as complete:
        process = subprocess.Popen(
            [sys.executable, "-B", "launch.py"],
            cwd=complete / "codebase",
            env={
                "PATH": os.environ["PATH"],
                "ASSAY_DATA": str(data / "train"),
                "ASSAY_OUT": str(folder / "out"),
                "ASSAY_CONFIG": str(folder / "config.json"),
                "ASSAY_PROFILE": "quick-gpu",
                "ASSAY_SEED": "0",
                "ASSAY_SECONDS": "600",
                "ASSAY_THREADS": "1",
                "OMP_NUM_THREADS": "1",
                "PYTHONDONTWRITEBYTECODE": "1",
            },
        )
        try:
            return _steps(process, folder / "out" / "metrics.jsonl")
        finally:
            process.kill()
            process.wait()


def _steps(process: subprocess.Popen[bytes], curve: Path) -> set[int]:
    """The steps that a training told until there were two, or it had ended."""
    while True:
        ended = process.poll()
        text = curve.read_text() if curve.exists() else ""
        whole = [line for line in text.splitlines(keepends=True) if line.endswith("\n")]
        steps = {json.loads(line)["step"] for line in whole}
        if len(steps) > 1 or ended is not None:
            assert not ended, "the training failed"
            return steps
        try:
            process.wait(0.1)
        except subprocess.TimeoutExpired:
            continue
