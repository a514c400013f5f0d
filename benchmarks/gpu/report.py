"""What a part has measured so far, on the disk: a kill loses nothing."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

_FOLDER = "ASSAY_BENCH_GPU_FOLDER"


def open_folder(folder: Path) -> None:
    """Let `save` write below this folder, also in processes that are started from now on."""
    folder.mkdir(parents=True, exist_ok=True)
    os.environ[_FOLDER] = str(folder.resolve())


def save(part: str, figures: dict[str, Any]) -> None:
    """Store the figures of a part, in place of earlier ones; nothing happens without a folder."""
    if _FOLDER not in os.environ:
        return
    path = Path(os.environ[_FOLDER]) / f"{part}.json"
    new = path.with_suffix(".new")
    new.write_text(json.dumps(figures, indent=1) + "\n")
    new.replace(path)


def saved(part: str) -> dict[str, Any]:
    """What was stored last for a part; empty if nothing was."""
    with contextlib.suppress(KeyError, FileNotFoundError):
        found = json.loads((Path(os.environ[_FOLDER]) / f"{part}.json").read_text())
        return dict(found)
    return {}
