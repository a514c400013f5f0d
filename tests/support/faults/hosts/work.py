"""What a fake host pretends to run: known bytes, known numbers, a known length."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from pathlib import Path

from assay.contracts.worker import AttemptSpec
from assay.domain.hashing import derive_seed

UNITS = 1 << 20
FAILURE_CODE = "crashed"


def share(*parts: object) -> float:
    """A number in [0, 1) that depends on its parts alone."""
    return (derive_seed(*parts) % UNITS) / UNITS


@dataclass(frozen=True)
class Work:
    """How long runs take and what they leave. Zero seconds: as fast as the API answers."""

    low: float = 0.0
    high: float = 0.0
    log_bytes: int = 512
    piece_bytes: int = 256
    points: int = 2
    artifact_bytes: int = 128
    failing: float = 0.0  # share of codebases that fail
    hold: Path | None = None  # while this file is there, no run comes to its end

    def seconds(self, measurement: str) -> float:
        """The length of a measurement's run: the same for each of its attempts."""
        return self.low + (self.high - self.low) * share("length", measurement)

    def fails(self, codebase: str) -> bool:
        """Whether a codebase is one of those that fail."""
        return share("fails", codebase) < self.failing

    @property
    def held(self) -> bool:
        return self.hold is not None and self.hold.exists()

    @property
    def pieces(self) -> int:
        return math.ceil(self.log_bytes / self.piece_bytes)


@dataclass(frozen=True)
class Mischief:
    """How hosts misbehave. Shares are of attempts."""

    start_failures: float = 0.0
    infrastructure: float = 0.0
    repeat: int = 1  # every report is sent so often
    late_seconds: float = 0.0  # and once more, so much later
    reorder: bool = False
    adopt: bool = False  # runs outlive their host's process
    deaf_to_stop: bool = False  # goes on with what it was told to stop
    boasted_gpus: int = 0  # it says that it has so many more than it has
    sick_gpus: int = 0  # so many of its GPUs must not be used
    bad_hosts: tuple[str, ...] = ()  # how the names of hosts end where every start fails

    def fails_to_start(self, host: str, attempt: str) -> bool:
        return host.endswith(self.bad_hosts) or share("start", attempt) < self.start_failures

    def breaks(self, attempt: str) -> bool:
        return share("breaks", attempt) < self.infrastructure


def value(codebase: str, seed: int) -> float:
    """The metric of a codebase: the same on every host and at every attempt."""
    return 0.9 * share("value", codebase, seed)


def log_bytes(attempt: str, token: int, offset: int, size: int) -> bytes:
    """Bytes that a run writes, at an offset: they differ from every other run's."""
    first, last = offset // 32, (offset + size + 31) // 32
    blocks = b"".join(
        hashlib.sha256(f"{attempt}:{token}:{n}".encode()).digest() for n in range(first, last)
    )
    start = offset - first * 32
    return blocks[start : start + size]


def point(attempt: str, seq: int) -> dict[str, float]:
    """A point of a run's curve."""
    return {"loss": share("point", attempt, seq)}


def artifact(spec: AttemptSpec, size: int) -> bytes:
    """The artifact of a run."""
    return log_bytes(f"artifact:{spec.attempt}", spec.lease_token, 0, size)
