"""A service of one's own: `assay serve` as a child process, for as long as it is needed."""

from __future__ import annotations

import json
import os
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from assay.domain.errors import Unavailable

START_SECONDS = 60.0
#: A worker drains and the database is closed before the process ends by itself.
STOP_SECONDS = 45.0


@dataclass(frozen=True)
class Ready:
    """What the service says of itself once it answers."""

    api: str
    database: str
    objects: str
    sandbox: str
    sandbox_reason: str


@contextmanager
def serving(
    data_dir: Path,
    *,
    environment: Mapping[str, str] | None = None,
    program: Sequence[str] = (sys.executable, "-m", "assay.cli", "serve"),
    start_seconds: float = START_SECONDS,
) -> Iterator[Ready]:
    """Run a service on a free port while the block runs, and stop it afterwards.

    It has `start_seconds` to answer.

    Raises:
        Unavailable: it did not come up; the message holds the last lines of its log.
    """
    data_dir.mkdir(parents=True, exist_ok=True)
    log = data_dir / "serve.log"
    argv = [*program, "--host", "127.0.0.1", "--port", str(free_port())]
    argv += ["--data-dir", str(data_dir), "--sandbox", "auto"]
    with log.open("wb") as stderr:
        child = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env={**os.environ, **(environment or {})},
            start_new_session=True,  # Ctrl-C is ours to handle: the service is stopped in order
        )
        try:
            yield _wait_until_ready(child, log, start_seconds)
        finally:
            _stop(child)


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_until_ready(child: subprocess.Popen[bytes], log: Path, start_seconds: float) -> Ready:
    lines: queue.Queue[bytes] = queue.Queue()
    if child.stdout is None:
        raise Unavailable("the service has no stdout")
    threading.Thread(target=_pump, args=(child.stdout, lines), daemon=True).start()
    deadline = time.monotonic() + start_seconds
    while time.monotonic() < deadline:
        try:
            line = lines.get(timeout=0.2)
        except queue.Empty:
            if child.poll() is not None:
                raise Unavailable(_why(log, f"it ended with code {child.returncode}")) from None
            continue
        ready = _read_ready(line)
        if ready is not None:
            return ready
    raise Unavailable(_why(log, f"it was not ready within {start_seconds:g} s"))


def _pump(stream: IO[bytes], lines: queue.Queue[bytes]) -> None:
    """Read everything, so that the child never blocks on a full pipe."""
    for line in stream:
        lines.put(line)


def _read_ready(line: bytes) -> Ready | None:
    try:
        said = json.loads(line)
    except ValueError:
        return None
    if not isinstance(said, dict) or said.get("event") != "ready":
        return None
    return Ready(
        api=str(said["api"]),
        database=str(said.get("database", "")),
        objects=str(said.get("objects", "")),
        sandbox=str(said.get("sandbox", "")),
        sandbox_reason=str(said.get("sandbox_reason", "")),
    )


def _why(log: Path, what: str) -> str:
    tail = "\n".join(log.read_text(errors="replace").strip().splitlines()[-15:])
    return f"the service did not start: {what}; its log ({log}) ends:\n{tail or '(empty)'}"


def _stop(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is None:
        child.terminate()
        try:
            child.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
    if child.stdout is not None:
        child.stdout.close()
