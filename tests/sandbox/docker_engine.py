"""The engine that Docker tests use, and a small image with a Python of its own."""

import functools
import io
import os
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path

from assay.sandbox import SandboxUnavailable
from assay.sandbox.docker.engine import Engine, connect
from tests.support.needs import missing

HOST = os.environ.get("ASSAY_TEST_DOCKER", "unix:///tmp/assay-docker/docker.sock")
_LEFT_OUT = {"site-packages", "test", "idlelib", "ensurepip", "lib2to3", "__pycache__", "tkinter"}


def require_docker() -> Engine:
    """The test engine; without one the test is skipped, or fails in CI."""
    problem = _problem()
    if problem is not None:
        missing(f"{problem}; for tests: scripts/start_docker.sh")
    return connect(HOST)


@functools.cache
def _problem() -> str | None:
    try:
        connect(HOST)
    except SandboxUnavailable as error:
        return str(error)
    return None


def containers(engine: Engine, scope: str) -> list[str]:
    """Ids of all containers with a scope."""
    found = engine.client.containers(all=True, filters={"label": f"assay.scope={scope}"})
    return [each["Id"] for each in found]


def python_archive() -> bytes:
    """A root file system with this interpreter, what it links to, and its standard library."""
    executable = os.path.realpath(sys.executable)
    stdlib = Path(sysconfig.get_path("stdlib"))
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for folder in ("proc", "sys", "dev", "tmp", "etc"):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if folder == "tmp" else 0o755
            archive.addfile(entry)
        archive.add(executable, "usr/local/bin/python3")
        for library in _libraries(executable, *stdlib.glob("lib-dynload/*.so")):
            archive.add(os.path.realpath(library), library.lstrip("/"))
        archive.add(stdlib, f"usr/local/lib/{stdlib.name}", filter=_wanted)
    return buffer.getvalue()


def _wanted(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    path = Path(entry.name)
    left_out = path.name in _LEFT_OUT or path.name.startswith("config-")
    return None if left_out else entry


def _libraries(*binaries: object) -> set[str]:
    listing = subprocess.run(
        ["ldd", *map(str, binaries)], capture_output=True, text=True, check=False
    ).stdout
    words = {word for line in listing.splitlines() for word in line.split()}
    return {word for word in words if word.startswith("/") and os.path.isfile(word)}
