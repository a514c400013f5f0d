"""Helpers for sandbox tests, and the rule that CI may not skip those that need bubblewrap."""

import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from assay.sandbox import (
    Exit,
    Handle,
    Limits,
    Mount,
    Sandbox,
    SandboxSettings,
    SandboxSpec,
    open_sandbox,
)

GIB = 1 << 30


@dataclass(frozen=True)
class Ended:
    """What a program in a sandbox did."""

    exit: Exit
    out: str
    err: str
    seconds: float


class Started:
    """A program in a sandbox with its output in files."""

    def __init__(self, handle: Handle, out: Path, err: Path) -> None:
        self.handle, self.out, self.err = handle, out, err
        self._since = time.monotonic()

    def printed(self, text: str, seconds: float = 10.0) -> None:
        """Wait until the program has printed `text`."""
        deadline = time.monotonic() + seconds
        while text not in self.out.read_text():
            if time.monotonic() > deadline:
                pytest.fail(f"not printed: {text!r}; stderr: {self.err.read_text()}")
            time.sleep(0.005)

    def wait(self, cancel: threading.Event | None = None) -> Ended:
        ended = self.handle.wait(cancel)
        seconds = time.monotonic() - self._since
        return Ended(ended, self.out.read_text(), self.err.read_text(), seconds)


class Starter:
    """Starts Python code in one sandbox."""

    def __init__(self, sandbox: Sandbox, folder: Path) -> None:
        self.sandbox, self.folder = sandbox, folder
        self._count = 0

    def start(
        self,
        code: str,
        *,
        mounts: tuple[Mount, ...] = (),
        env: Mapping[str, str] | None = None,
        cwd: str = "/",
        flags: tuple[str, ...] = ("-I", "-S"),
        wall: float = 20.0,
        warm_up: float = 0.0,
        memory: int = GIB,
        processes: int = 64,
        cpu: float | None = None,
        cpus: float | None = None,
        gpus: tuple[str, ...] = (),
        sees_held_out: bool = False,
    ) -> Started:
        self._count += 1
        out, err = (self.folder / f"{self._count}.{name}" for name in ("out", "err"))
        limits = Limits(
            wall, memory, processes, cpu_seconds=cpu, cpus=cpus, warm_up_seconds=warm_up
        )
        with out.open("wb") as stdout, err.open("wb") as stderr:
            spec = SandboxSpec(
                name="test",
                argv=(self.sandbox.python, *flags, "-c", code),
                env=env or {},
                mounts=mounts,
                cwd=cwd,
                limits=limits,
                stdout=stdout.fileno(),
                stderr=stderr.fileno(),
                gpus=gpus,
                sees_held_out=sees_held_out,
            )
            handle = self.sandbox.start(spec)
        return Started(handle, out, err)

    def finish(self, code: str, **options: object) -> Ended:
        """Start and wait; the program must exit with 0."""
        ended = self.start(code, **options).wait()  # type: ignore[arg-type]
        assert ended.exit.reason == "exited", ended
        assert ended.exit.code == 0, ended
        return ended


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty folder for the logs and sources of one test."""
    path = tmp_path / "logs"
    path.mkdir()
    return path


@pytest.fixture
def settings(tmp_path: Path) -> Callable[[str], SandboxSettings]:
    return lambda name: SandboxSettings(name, grace_seconds=0.5, scratch=tmp_path / "scratch")


@pytest.fixture
def bubblewrap(settings: Callable[[str], SandboxSettings], folder: Path) -> Starter:
    return Starter(open_sandbox(settings("bubblewrap")), folder)


@pytest.fixture
def plain(settings: Callable[[str], SandboxSettings], folder: Path) -> Starter:
    (folder.parent / "scratch").mkdir()
    return Starter(open_sandbox(settings("subprocess")), folder)


@pytest.fixture
def workspace(tmp_path: Path) -> Mount:
    """A writable folder, seen as /job."""
    path = tmp_path / "workspace"
    path.mkdir()
    (path / "given.txt").write_text("given")
    return Mount(path, "/job", writable=True)


def processes_with(text: str) -> list[int]:
    """Host processes that have `text` in their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if text.encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


@pytest.fixture
def host_processes() -> Callable[[str], list[int]]:
    return processes_with
