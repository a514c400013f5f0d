"""What a sandbox costs to start, and that a thousand of them leave nothing behind.

    make bench-sandbox
    python -m benchmarks.sandbox --count 1000 --docker-count 1000

Three backends side by side, in turns, so that a busy moment of the machine meets all of them; the
alternative is a plain child process. Then sandboxes with daemons inside are started and, every
other one, killed; afterwards processes, mounts, control groups, containers and files are counted.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from assay.sandbox import (
    Mount,
    Sandbox,
    SandboxError,
    SandboxSettings,
    SandboxSpec,
    SandboxUnavailable,
    choose_sandbox,
    open_sandbox,
)
from tests.support.leftovers import ENGINE, LIMITS, SCOPE, torment, traces


def start(sandbox: Sandbox, code: str, mounts: tuple[Mount, ...], stdout: int) -> float:
    """Start a program, wait for its end; the seconds it took."""
    argv = (sandbox.python, "-I", "-S", "-c", code)
    spec = SandboxSpec(SCOPE, argv, {}, mounts, "/", LIMITS, stdout=stdout)
    began = time.monotonic()
    sandbox.start(spec).wait()
    return time.monotonic() - began


def startups(sandboxes: dict[str, Sandbox], rounds: int) -> dict[str, list[float]]:
    """Seconds from start to end of an empty Python program, backends in turns."""
    seconds: dict[str, list[float]] = {name: [] for name in ("child", *sandboxes)}
    with open(os.devnull, "wb") as null:
        for turn in range(rounds + 1):
            python = next(iter(sandboxes.values())).python
            began = time.monotonic()
            subprocess.run([python, "-I", "-S", "-c", "pass"], check=True, stdout=null)
            taken = {"child": time.monotonic() - began}
            for name, sandbox in sandboxes.items():
                taken[name] = start(sandbox, "pass", (), null.fileno())
            if turn:  # the first one makes the image and fills the caches
                for name, value in taken.items():
                    seconds[name].append(value)
    return seconds


def opened(scratch: Path) -> dict[str, Sandbox]:
    """The backends that work here."""
    found: dict[str, Sandbox] = {}
    for name in ("subprocess", "bubblewrap", "docker"):
        settings = SandboxSettings(
            name, scratch=scratch, docker_host=ENGINE, scope=SCOPE, grace_seconds=0.1
        )
        try:
            if name == "bubblewrap":
                choose_sandbox("bubblewrap", scratch)
            sandbox = open_sandbox(replace(settings, grace_seconds=0.1))
            with open(os.devnull, "wb") as null:
                start(sandbox, "pass", (), null.fileno())
        except (SandboxError, SandboxUnavailable) as error:
            print(f"{name}: not here: {error}")
            continue
        found[name] = sandbox
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--docker-count", type=int, default=100)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-sandbox-") as name:
        scratch = Path(name)
        sandboxes = opened(scratch)
        seconds = startups(sandboxes, args.rounds)
        print(
            f"{'backend':12} {'median':>9} {'fastest':>9}   from start to end of `python -c pass`"
        )
        for backend, values in seconds.items():
            print(
                f"{backend:12} {1000 * statistics.median(values):7.1f} ms "
                f"{1000 * min(values):6.1f} ms"
            )
        left: dict[str, dict[str, int]] = {}
        for backend, sandbox in sandboxes.items():
            left[backend] = _endure(sandbox, scratch, args)
    medians = {name: round(1000 * statistics.median(v), 1) for name, v in seconds.items()}
    result = {
        "benchmark": "sandbox",
        "start_ms": medians,
        "alternative": "a plain child process",
        "ratio": {n: round(medians[n] / medians["child"], 1) for n in sandboxes},
        "left_behind": left,
    }
    print(json.dumps(result))
    if any(count > 0 for found in left.values() for count in found.values()):
        raise SystemExit(1)


def _endure(sandbox: Sandbox, scratch: Path, args: argparse.Namespace) -> dict[str, int]:
    count = args.docker_count if sandbox.name == "docker" else args.count
    mark = f"{time.time_ns()}"
    before, began = traces(scratch, mark), time.monotonic()
    for number in range(count):
        torment(sandbox, scratch, number, mark)
    taken = time.monotonic() - began
    found = traces(scratch, mark).minus(before)
    print(f"{sandbox.name}: {count} started, every other one killed, {taken:.0f} s; left: {found}")
    return found


if __name__ == "__main__":
    main()
