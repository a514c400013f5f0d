"""Sandboxes with daemons, volumes and files, and a count of what they leave on the host."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from assay.sandbox import Limits, Mount, Sandbox, SandboxSpec, open_volume
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


def traces(scratch: Path, mark: str, engine: str = ENGINE) -> Traces:
    """Count what is on this host now, and in this Docker engine."""
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
        ["docker", "-H", engine, "ps", "-aq", "--filter", f"label=assay.scope={SCOPE}"],
        capture_output=True,
        text=True,
        check=False,
    )
    return Traces(processes, mounts, groups, len(listed.stdout.split()), stages + own)


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
