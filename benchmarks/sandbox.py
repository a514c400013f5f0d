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
from dataclasses import dataclass, replace
from pathlib import Path

from assay.sandbox import (
    Limits,
    Mount,
    Sandbox,
    SandboxError,
    SandboxSettings,
    SandboxSpec,
    SandboxUnavailable,
    choose_sandbox,
    open_sandbox,
    open_volume,
)
from assay.sandbox.staging import PARENTS

ENGINE = os.environ.get("ASSAY_TEST_DOCKER", "unix:///tmp/assay-docker/docker.sock")
SCOPE = f"bench-{os.getpid()}"
LIMITS = Limits(20, 256 << 20, 32, disk_bytes=16 << 20, disk_files=100, cpus=1)
DAEMONS = """
import os, time
for _ in range(2):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execve("/bin/sleep", ["sleep", "30.{mark}"], {{}})
        os._exit(0)
open("{folder}/file", "w").write("x" * 10000)
open("/tmp/{mark}", "w").write("x")
print("ready", flush=True)
time.sleep({seconds})
"""


@dataclass(frozen=True)
class Traces:
    """Everything that sandboxes of this process may leave on a host."""

    processes: int
    mounts: int
    cgroups: int
    containers: int
    files: int

    def minus(self, before: Traces) -> dict[str, int]:
        """What has been added since."""
        return {name: count - getattr(before, name) for name, count in vars(self).items()}


def control_groups(prefix: str) -> list[Path]:
    """Control groups by the beginning of their name.

    `os.walk` goes on when a group of somebody else is removed under it; `Path.glob` does not.
    """
    return [
        Path(folder) / name
        for folder, names, _ in os.walk("/sys/fs/cgroup")
        for name in names
        if name.startswith(prefix)
    ]


def traces(scratch: Path, mark: str) -> Traces:
    """Count what is on this host now."""
    processes = 0
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            processes += mark.encode() in (entry / "cmdline").read_bytes()
        except OSError:
            continue
    mounts = Path("/proc/self/mountinfo").read_text().count(str(scratch))
    groups = len(control_groups(f"assay-{os.getpid()}-"))
    stages = sum(len(list(Path(p).glob(f"assay-*-{os.getpid()}-*"))) for p in PARENTS)
    own = sum(1 for path in scratch.rglob("*"))
    listed = subprocess.run(
        ["docker", "-H", ENGINE, "ps", "-aq", "--filter", f"label=assay.scope={SCOPE}"],
        capture_output=True,
        text=True,
        check=False,
    )
    return Traces(processes, mounts, groups, len(listed.stdout.split()), stages + own)


def start(sandbox: Sandbox, code: str, mounts: tuple[Mount, ...], stdout: int) -> float:
    """Start a program, wait for its end; the seconds it took."""
    argv = (sandbox.python, "-I", "-S", "-c", code)
    spec = SandboxSpec(SCOPE, argv, {}, mounts, "/", LIMITS, stdout=stdout)
    began = time.monotonic()
    sandbox.start(spec).wait()
    return time.monotonic() - began


def torment(sandbox: Sandbox, scratch: Path, number: int, mark: str) -> None:
    """One sandbox with daemons, a volume and files; every other one is killed."""
    killed = number % 2 == 0
    folder = scratch / f"job-{number}"
    folder.mkdir()
    reader, writer = os.pipe()
    try:
        with open_volume(folder, 16 << 20, 100):
            mount = Mount(folder, "/job", writable=True)
            code = DAEMONS.format(
                mark=mark, folder=sandbox.path(mount), seconds=30 if killed else 0
            )
            spec = SandboxSpec(
                SCOPE,
                (sandbox.python, "-I", "-S", "-c", code),
                {},
                (mount,),
                "/",
                LIMITS,
                stdout=writer,
            )
            handle = sandbox.start(spec)
            if killed:
                os.read(reader, 10)
                handle.kill()
            handle.wait()
            if sandbox.name == "subprocess":
                Path(f"/tmp/{mark}").unlink(missing_ok=True)  # nothing keeps it from there
    finally:
        os.close(reader)
        os.close(writer)
        (folder / "file").unlink(missing_ok=True)
        folder.rmdir()


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
