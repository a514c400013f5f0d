"""The embedded service as a child process, for benchmarks and tests that kill it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from assay.client import Client
from assay.contracts.batch import BatchRequest, IdeaRequest
from tests.support.warm_start import Process, Spawn, spawn

READY_SECONDS = 60


class ServiceProcess:
    """`assay serve` as a child process that can be killed and started again on its data.

    `env` holds variables for the next start; `launcher` is what Python runs before `serve`. With
    `port` 0 each start has a port of its own.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        sandbox: str = "auto",
        cpus: int = 2,
        env: Mapping[str, str] | None = None,
        port: int = 0,
        spawn: Spawn = spawn,
    ) -> None:
        self.data_dir = data_dir
        self.env = dict(env or {})
        self.launcher = ["-m", "assay.cli"]
        self._flags = ["--sandbox", sandbox, "--cpus", str(cpus), "--port", str(port)]
        self._spawn = spawn
        self._process: Process | None = None
        self._output = ExitStack()
        self.ready: dict[str, Any] = {}

    def assay(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command of `assay` against it; whatever its exit code is."""
        return subprocess.run(
            [sys.executable, "-m", "assay.cli", *arguments],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
            env={**os.environ, "ASSAY_API_URL": self.ready["api"], "COLUMNS": "200"},
        )

    def start(self) -> dict[str, Any]:
        """Start it and wait for its line of JSON, which is returned.

        Raises:
            RuntimeError: it ended instead; the message holds what it printed.
        """
        self._output.close()
        command = [sys.executable, *self.launcher, "serve"]
        command += ["--data-dir", str(self.data_dir), *self._flags]
        # Without a key, evaluations use the public data.
        env = {"ASSAY_WORKER_HELD_OUT_KEY": ""} | os.environ | self.env
        with ExitStack() as files:
            errors = files.enter_context(tempfile.TemporaryFile("w+"))
            reading, writing = os.pipe()
            output = files.enter_context(os.fdopen(reading))
            try:
                self._process = self._spawn(command, env, writing, errors.fileno())
            finally:
                os.close(writing)
            line = output.readline()
            if not line:
                self._process.wait(READY_SECONDS)
                errors.seek(0)
                raise RuntimeError(f"assay serve ended: {errors.read()}")
            self._output = files.pop_all()
        self.ready = json.loads(line)
        return self.ready

    @property
    def running(self) -> bool:
        """Whether the process is there."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The process id of the service."""
        assert self._process is not None
        return self._process.pid

    def client(self) -> Client:
        """A client of the running service."""
        return Client(str(self.ready["api"]))

    def kill(self) -> None:
        """`kill -9`: nothing of the process gets to clean up."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self._output.close()

    def stop(self, seconds: float = 60) -> int:
        """SIGTERM, as a person's Ctrl-C would. Returns the exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        code = self._process.wait(seconds)
        self._output.close()
        return code


@contextmanager
def running(data_dir: Path, *, sandbox: str = "auto", cpus: int = 2) -> Iterator[ServiceProcess]:
    """A service that is stopped at the end."""
    service = ServiceProcess(data_dir, sandbox=sandbox, cpus=cpus)
    service.start()
    try:
        yield service
    finally:
        service.stop()


def toy_ideas(count: int, *, first: int = 0, seconds: float = 0) -> list[IdeaRequest]:
    """Ideas for `toy` whose codebases all differ: each sets another size of step.

    `seconds`: for so long each of them sleeps, at least.
    """
    pause = f"\nimport time; time.sleep({seconds})" if seconds else ""
    return [
        IdeaRequest(
            text=(
                f"[Experiment] Take steps of {step}.\n[Code Changes]\nIn `search.py`:\n"
                "<<<<<<< SEARCH\nSTEP = 0.6\n=======\n"
                f"STEP = {step}{pause}\n>>>>>>> REPLACE\n[End]"
            ),
            client_key=f"step-{step}",
        )
        for step in (round(0.05 + 0.001 * (first + i), 4) for i in range(count))
    ]


def toy_batch(ideas: list[IdeaRequest], *, baseline_seeds: int = 1) -> BatchRequest:
    """A batch of `toy` ideas."""
    return BatchRequest.model_validate(
        {
            "environment": "toy",
            "profile": "tiny",
            "ideas": [idea.model_dump() for idea in ideas],
            "options": {"baseline_seeds": baseline_seeds},
        }
    )
