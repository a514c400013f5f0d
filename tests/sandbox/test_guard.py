"""A sandbox ends its program by itself when whoever started it hangs."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.sandbox.docker_engine import HOST, require_docker

# The process that started the program is stopped before the budget is over, and goes on later.
HANGING = """
import pathlib, sys
from assay.sandbox import Limits, SandboxSettings, SandboxSpec, open_sandbox
name, scratch, host, scope, mark = sys.argv[1:]
code = (
    "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)\\n"
    "print('ready', flush=True)\\n"
    "if os.fork() == 0: os.setsid()\\n"
    "while True: time.sleep(1)  # " + mark
)
sandbox = open_sandbox(
    SandboxSettings(
        name, scratch=pathlib.Path(scratch), docker_host=host, scope=scope, grace_seconds=0.3
    )
)
argv = (sandbox.python, "-I", "-S", "-c", code)
spec = SandboxSpec("t", argv, {}, (), "/", Limits(1.5, 1 << 28), stdout=1)
print("end", sandbox.start(spec).wait().reason, flush=True)
"""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("bubblewrap", marks=pytest.mark.bubblewrap),
        pytest.param("docker", marks=pytest.mark.docker),
    ],
)
def test_the_budget_holds_while_the_worker_hangs(
    name: str, tmp_path: Path, host_processes: Callable[[str], list[int]]
) -> None:
    if name == "docker":
        require_docker()
    mark = f"{time.time_ns()}"
    arguments = [name, str(tmp_path), HOST, f"guard-{mark}", mark]
    command = [sys.executable, "-c", HANGING, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
        os.kill(worker.pid, signal.SIGSTOP)
        deadline = time.monotonic() + 30
        while running := [p for p in host_processes(f"# {mark}") if is_alive(p)]:
            assert time.monotonic() < deadline, running
            time.sleep(0.05)
        os.kill(worker.pid, signal.SIGCONT)
        assert worker.stdout.readline() == "end wall\n"
        assert worker.wait(30) == 0


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
