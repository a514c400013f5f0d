"""What fake hosts started and stopped, in files that no service writes or reads.

Every line is one `write` to a file opened for appending, so a killed process loses at most the
line it was writing. Times are CLOCK_MONOTONIC, which all processes of a machine share.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


class Journal:
    """One host's file."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def note(self, event: str, **facts: Any) -> None:
        """Append a line."""
        line = json.dumps({"at": time.monotonic(), "event": event, **facts})
        os.write(self._file, line.encode() + b"\n")

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


@dataclass
class Interval:
    """One start of an attempt's container, with its stop if there was one."""

    host: str
    attempt: str
    token: int
    measurement: str
    devices: tuple[str, ...]
    start: float
    stop: float | None = None
    reason: str = ""
    written: dict[str, int] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, int]:
        return self.attempt, self.token


def lines(path: Path) -> list[dict[str, Any]]:
    """Every whole line of a journal."""
    if not path.exists():
        return []
    whole, _, _ = path.read_bytes().rpartition(b"\n")
    return [json.loads(line) for line in whole.splitlines() if line]


def intervals(folder: Path) -> list[Interval]:
    """Every container that hosts with a journal in this folder started, in order of start."""
    found = [one for path in sorted(folder.glob("*.jsonl")) for one in _of_host(path)]
    return sorted(found, key=lambda one: one.start)


def _of_host(path: Path) -> Iterable[Interval]:
    running: dict[tuple[str, int], Interval] = {}
    every: list[Interval] = []
    for line in lines(path):
        if line["event"] == "start":
            one = Interval(
                host=path.stem,
                attempt=line["attempt"],
                token=line["token"],
                measurement=line["spec"]["measurement"],
                devices=tuple(line["devices"]),
                start=line["at"],
                facts=line,
            )
            running[one.key] = one
            every.append(one)
        elif line["event"] == "stop":
            stopped = running.pop((line["attempt"], line["token"]), None)
            if stopped is not None:
                stopped.stop, stopped.reason = line["at"], line["reason"]
                stopped.written = line["written"]
    return every


def open_intervals(path: Path) -> list[Interval]:
    """Containers of one host that have not stopped."""
    return [one for one in _of_host(path) if one.stop is None]


def bury(path: Path) -> int:
    """Note that what runs by this journal has ended with its host. Returns how many did."""
    left = open_intervals(path)
    journal = Journal(path)
    for one in left:
        journal.note("stop", attempt=one.attempt, token=one.token, reason="died", written={})
    journal.close()
    return len(left)


def events(folder: Path, event: str) -> list[dict[str, Any]]:
    """All lines of one kind, with the host they come from."""
    return [
        {"host": path.stem, **line}
        for path in sorted(folder.glob("*.jsonl"))
        for line in lines(path)
        if line["event"] == event
    ]
