"""An environment for fake hosts: `toy` with profiles that ask for GPUs."""

from __future__ import annotations

import shutil
from pathlib import Path

TOY = Path(__file__).resolve().parents[4] / "environments" / "toy"
SIZES = (1, 2, 4, 8)


def profile_name(gpus: int) -> str:
    """The profile that needs so many GPUs."""
    return f"gpu{gpus}"


def write_environment(
    folder: Path, *, budget_seconds: float = 600.0, evaluation_seconds: float = 5.0
) -> Path:
    """Write `toy` with one profile per number of GPUs below `folder`, which is returned."""
    target = folder / "toy"
    shutil.copytree(TOY, target, ignore=shutil.ignore_patterns("__pycache__"))
    manifest = target / "environment.toml"
    profiles = "".join(
        f"""
[profiles.{profile_name(gpus)}]
description = "{gpus} GPUs"
cpus = {gpus}
gpus = {gpus}
memory_gb = 1

[profiles.{profile_name(gpus)}.budget]
seconds = {budget_seconds}
evaluation_seconds = {evaluation_seconds}

[profiles.{profile_name(gpus)}.config]
evaluations = 200
"""
        for gpus in SIZES
    )
    manifest.write_text(manifest.read_text() + profiles)
    return folder
