"""What the hosts of a fleet are and how they behave."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.faults.hosts.work import Mischief, Work

GIB = 1 << 30


@dataclass(frozen=True)
class HostOptions:
    """One host's size, clock and work."""

    gpus: int = 8
    cpus: int = 64
    memory_bytes: int = 512 * GIB
    hardware_class: str = "fake-gpu"
    isolated: bool = True
    sync_seconds: float = 10.0
    poll_seconds: float = 5.0  # how long a sync waits at the API; 0: `sync_seconds` apart
    progress_seconds: float = 1.0
    patience_seconds: float = 60.0  # how long a claim or a finish is tried
    work: Work = field(default_factory=Work)
    mischief: Mischief = field(default_factory=Mischief)


@dataclass(frozen=True)
class HostName:
    """A host, with the token it was admitted by and its journal."""

    name: str
    token: str
    journal: Path


Stats = Counter[str]
