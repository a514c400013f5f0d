"""`python -m tests.support.faults.hosts` as a child process, to be stopped and killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.faults.hosts import journal
from tests.support.warm_start import Process, Spawn, spawn

READY_SECONDS = 60.0
STOP_SECONDS = 30.0


class FleetProcess:
    """Some hosts in a process of their own; `adopts`: what they run outlives the process."""

    def __init__(
        self,
        label: str,
        tokens: Mapping[str, str],
        folder: Path,
        *,
        api: str,
        flags: Sequence[str] = (),
        spawn: Spawn = spawn,
    ) -> None:
        self.label = label
        self.names = list(tokens)
        self.journals = folder / "journals"
        self.adopts = "--adopt" in flags
        self._api = api
        self._flags = list(flags)
        self._tokens = folder / f"{label}.tokens.json"
        self._tokens.write_text(json.dumps(dict(tokens)))
        self._tokens.chmod(0o600)
        self.log = folder / f"{label}.log"
        self._out = folder / f"{label}.out"
        self._spawn = spawn
        self._process: Process | None = None

    def start(self, *, wait: bool = True) -> None:
        """Start it; with `wait`, return when its hosts are registered."""
        command = [sys.executable, "-m", "tests.support.faults.hosts", "--api", self._api]
        command += ["--tokens-file", str(self._tokens), "--journals", str(self.journals)]
        with self.log.open("ab") as log, self._out.open("wb") as out:
            self._process = self._spawn(
                [*command, *self._flags], os.environ, out.fileno(), log.fileno()
            )
        if wait:
            self.wait_ready()

    def wait_ready(self) -> None:
        """Wait until every host is registered."""
        deadline = time.monotonic() + READY_SECONDS
        while b"\n" not in self._out.read_bytes():
            if not self.running or time.monotonic() > deadline:
                raise RuntimeError(f"{self.label} is not ready:\n{self.log.read_text()[-3000:]}")
            time.sleep(0.02)

    @property
    def running(self) -> bool:
        """Whether the process is there."""
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """`kill -9`; what ran died with it, unless such runs outlive the process."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        if not self.adopts:
            self.bury()

    def pause(self) -> None:
        """SIGSTOP."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        os.kill(self._process.pid, number)

    def bury(self) -> int:
        """Note that what its hosts ran has ended. Returns how much that was."""
        return sum(journal.bury(self.journals / f"{name}.jsonl") for name in self.names)

    def end(self) -> None:
        """SIGTERM, if it runs: its hosts hand back what they have, and say goodbye."""
        if not self.running:
            return
        assert self._process is not None
        self.resume()
        self._signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()

    def stats(self) -> dict[str, int]:
        """What its hosts counted, after its end."""
        lines = [json.loads(line) for line in self._out.read_text().splitlines()]
        return {k: v for line in lines if line["event"] == "stopped" for k, v in line.items()}
