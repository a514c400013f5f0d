"""The codebase's modules imported here, and shards to train on."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

CODEBASE = Path(__file__).resolve().parents[3] / "environments" / "nanogpt" / "codebase"
MODULES = ("config", "model", "data", "optim", "ranks", "train", "launch", "predict")


@pytest.fixture
def code(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """The modules by name. Other environments have modules of the same names: none stays."""
    monkeypatch.syspath_prepend(str(CODEBASE))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = {name: sys.modules.pop(name) for name in MODULES if name in sys.modules}
    yield SimpleNamespace(**{name: importlib.import_module(name) for name in MODULES})
    for name in MODULES:
        sys.modules.pop(name, None)
    sys.modules.update(before)


def shard(tokens: Sequence[int] | np.ndarray, magic: int = 20240520, version: int = 1) -> bytes:
    """A shard as it lies on the disk."""
    header = np.zeros(256, dtype="<i4")
    header[:3] = magic, version, len(tokens)
    return header.tobytes() + np.asarray(tokens, dtype="<u2").tobytes()


WriteShards = Callable[..., Path]


@pytest.fixture
def write_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WriteShards:
    """Write train_000001.bin, … with these contents and make their folder $ASSAY_DATA."""

    def write(*contents: bytes) -> Path:
        folder = tmp_path / "train"
        folder.mkdir(exist_ok=True)
        for number, content in enumerate(contents, start=1):
            (folder / f"train_{number:06d}.bin").write_bytes(content)
        monkeypatch.setenv("ASSAY_DATA", str(folder))
        return folder

    return write
