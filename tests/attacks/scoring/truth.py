"""The loss of a trained codebase as this process computes it, without a sandbox or a protocol."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from unittest import mock

import numpy as np
import torch

from assay.environments.bundle import write_tree
from tests.attacks.scoring.arena import Arena, Tree, read_shard


def _model(
    arena: Arena, files: Mapping[str, bytes], artifact: Tree, folder: Path
) -> torch.nn.Module:
    """The codebase's model with its checkpoint; only for codebases that are trusted."""
    write_tree(files, folder / "code")
    (folder / "model.pt").write_bytes(artifact["model.pt"])
    sys.path.insert(0, str(folder / "code"))
    try:
        with mock.patch.dict(os.environ, {"ASSAY_HARDWARE_CLASS": arena.hardware_class}):
            module = importlib.import_module("model")
            model: torch.nn.Module = module.load(folder / "model.pt")
    finally:
        sys.path.pop(0)
        for name in ("model", "config"):  # the next codebase has modules of the same names
            sys.modules.pop(name, None)
    return model


@torch.no_grad()
def losses(
    arena: Arena, files: Mapping[str, bytes], artifact: Tree, folder: Path
) -> tuple[float, float]:
    """Mean loss on the scored windows, and how far losses from prefixes alone are from those of
    whole windows (the largest mean difference among some lengths)."""
    torch.set_num_threads(1)
    net = _model(arena, files, artifact, folder)
    held_out = read_shard(arena.data() / "search" / "val_000000.bin")
    text = np.frombuffer(held_out, dtype=np.uint8)
    stride = len(text) // 256
    rows = np.stack([text[i * stride : i * stride + 65] for i in range(256)]).astype(np.int64)
    tokens, labels = torch.from_numpy(rows[:, :-1]), torch.from_numpy(rows[:, 1:])
    whole = _cross_entropy(net(tokens).transpose(1, 2), labels)
    apart = [
        _cross_entropy(net(tokens[:, :t])[:, -1], labels[:, t - 1]) - whole[:, t - 1]
        for t in (1, 2, 9, 33, 63)
    ]
    return whole.mean().item(), max(abs(d.mean().item()) for d in apart)


def _cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(logits.double(), labels, reduction="none")
