"""The arena, an honest model trained in it, and its loss as this process computes it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.attacks.scoring.arena import (
    Arena,
    Outcome,
    Tree,
    baseline,
    read_shard,
    unpack_artifact,
)
from tests.support.needs import require_bubblewrap


def hardware_class() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    flags = cpuinfo.read_text() if cpuinfo.exists() else ""
    return "cpu-bf16" if "avx512_bf16" in flags or "amx_bf16" in flags else "cpu-fp32"


@pytest.fixture(scope="session")
def arena(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    require_bubblewrap()
    found = Arena.open(tmp_path_factory.mktemp("arena"), hardware_class())
    yield found
    found.close()


#: Losses have four decimals: the same loss over other secret positions may be rounded up once
#: and down once, on some processors.
ROUNDING = 1.5e-4


@dataclass(frozen=True)
class Honest:
    """The baseline after its training: how it scored, and what it left."""

    outcome: Outcome
    artifact: Tree

    @property
    def loss(self) -> float:
        return self.outcome.loss


@pytest.fixture(scope="session")
def honest(arena: Arena) -> Honest:
    """The twin of every cheat, trained and scored by the worker."""
    outcome = arena.attempt(baseline())
    assert outcome.code == "succeeded", (outcome.message, outcome.log)
    return Honest(outcome, unpack_artifact(outcome))


@dataclass(frozen=True)
class Windows:
    """The held-out windows that are scored, (256, 65) bytes."""

    rows: list[bytes]

    def none_in(self, text: bytes) -> bool:
        """Whether no piece of 20 bytes of any window stands in `text`, as it is or escaped."""
        pieces = (row[i : i + 20] for row in self.rows for i in range(0, len(row) - 20, 5))
        return not any(p in text or repr(p)[2:-1].encode() in text for p in pieces)


@pytest.fixture(scope="session")
def windows(arena: Arena, honest: Honest) -> Windows:
    text = read_shard(arena.data() / "search" / "val_000000.bin")
    stride = len(text) // 256
    return Windows([text[i * stride : i * stride + 65] for i in range(256)])
