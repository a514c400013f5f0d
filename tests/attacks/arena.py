"""Starts attack scripts in a sandbox, and says what they achieved."""

import json
import os
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import pytest

from assay.sandbox import Exit, Handle, Limits, Mount, Sandbox, SandboxSpec

MIB = 1 << 20
_TOOLS = Path(__file__).with_name("tools.py").read_text()
_LIMITS = {each.name for each in fields(Limits)}
_SHORT = {"wall": "wall_seconds", "memory": "memory_bytes"}


@dataclass(frozen=True)
class Ended:
    """How a script ended and what it said."""

    exit: Exit
    out: str
    err: str
    seconds: float
    succeeded: list[str] = field(default_factory=list)
    controls: list[str] = field(default_factory=list)
    broken: dict[str, str] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def reason(self) -> str:
        return self.exit.reason

    @property
    def reported(self) -> bool:
        """Whether the script came to its end."""
        return bool(self.controls) or bool(self.facts)


class Running:
    """A script in a sandbox with its output in files."""

    def __init__(self, handle: Handle, out: Path, err: Path) -> None:
        self.handle, self.out, self.err = handle, out, err
        self._since = time.monotonic()

    def printed(self, text: str, seconds: float = 60.0) -> None:
        """Wait until the script has printed `text`."""
        deadline = time.monotonic() + seconds
        while text not in self.out.read_text():
            if time.monotonic() > deadline:
                pytest.fail(f"not printed: {text!r}; stderr: {self.err.read_text()}")
            time.sleep(0.005)

    def wait(self, cancel: threading.Event | None = None) -> Ended:
        ended = self.handle.wait(cancel)
        out = self.out.read_text(errors="replace")
        found: dict[str, Any] = {}
        if out.endswith("}\n"):
            last = out.splitlines()[-1]
            found = json.loads(last) if last.startswith('{"succeeded"') else {}
        err = self.err.read_text(errors="replace")[-4000:]
        return Ended(ended, out, err, time.monotonic() - self._since, **found)


class Arena:
    """One sandbox, and the scripts that try to leave it."""

    def __init__(self, sandbox: Sandbox, folder: Path) -> None:
        self.sandbox, self.folder = sandbox, folder
        self._count = 0

    @property
    def name(self) -> str:
        return self.sandbox.name

    def start(
        self,
        script: str,
        *,
        given: Mapping[str, Any] | None = None,
        mounts: tuple[Mount, ...] = (),
        env: Mapping[str, str] | None = None,
        cwd: str = "/",
        out: int | None = None,
        sees_held_out: bool = False,
        **limits: Any,
    ) -> Running:
        """Start a script; `out` replaces the files that its output goes to otherwise."""
        self._count += 1
        wanted: dict[str, Any] = {"wall_seconds": 20.0, "memory_bytes": 512 * MIB, "processes": 64}
        wanted |= {_SHORT.get(name, name): value for name, value in limits.items()}
        assert set(wanted) <= _LIMITS
        source = f"{_TOOLS}\n{script}\nreport()\n"
        paths = [self.folder / f"{self._count}.{name}" for name in ("out", "err")]
        with (
            paths[0].open("wb") as stdout,
            paths[1].open("wb") as stderr,
            _pipe_with(json.dumps(dict(given or {}))) as stdin,
        ):
            spec = SandboxSpec(
                name=f"attack-{self._count}",
                argv=(self.sandbox.python, "-I", "-S", "-c", source),
                env=env or {},
                mounts=mounts,
                cwd=cwd,
                limits=Limits(**wanted),
                stdin=stdin,
                stdout=stdout.fileno() if out is None else out,
                stderr=stderr.fileno() if out is None else out,
                sees_held_out=sees_held_out,
            )
            handle = self.sandbox.start(spec)
        return Running(handle, *paths)

    def run(self, script: str, **options: Any) -> Ended:
        """Start a script and wait for its end, whatever that is."""
        return self.start(script, **options).wait()

    def attack(self, script: str, **options: Any) -> Ended:
        """Run a script that must come to its end, and whose controls must all have worked."""
        ended = self.run(script, **options)
        assert (ended.reason, ended.exit.code) == ("exited", 0), ended
        assert ended.controls, f"an attack without an honest twin: {ended}"
        assert ended.broken == {}, ended
        return ended

    def repels(self, script: str, **options: Any) -> Ended:
        """Run a script of which no attack may succeed and every control must."""
        ended = self.attack(script, **options)
        assert ended.succeeded == [], ended.succeeded
        return ended


@contextmanager
def _pipe_with(text: str) -> Iterator[int]:
    """A pipe that `text` can be read from: unlike an argument, no attack comes across it."""
    reader, writer = os.pipe()
    try:
        with open(writer, "w") as file:
            file.write(text)
        yield reader
    finally:
        os.close(reader)


@contextmanager
def new_folder(prefix: str, parent: str) -> Iterator[Path]:
    """A folder in `parent` that everybody may read."""
    with tempfile.TemporaryDirectory(prefix=prefix, dir=parent) as name:
        os.chmod(name, 0o755)
        yield Path(name)


def host_processes(text: str) -> list[int]:
    """Processes of the host, other than this one, that have `text` in their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if text.encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def eventually_gone(text: str, seconds: float) -> bool:
    """Whether no process of the host has `text` in its command line, within `seconds`."""
    deadline = time.monotonic() + seconds
    while host_processes(text):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True
