"""Trainings as a worker runs them: in its sandbox, with a warm-up, a clock and a gate.

It takes nothing but `assay.sandbox`, so that a bare machine can do it; where even that cannot be
imported, or no backend isolates, an ordinary process takes its place and the report says so.
Unlike a worker's, the gate opens when the caller says: while one trains, the next one compiles.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.gpu import machine

ROOT = Path(__file__).resolve().parents[2]
NANOGPT = ROOT / "environments" / "nanogpt"
VENDORED = ROOT / "src" / "assay" / "environments" / "vendored"
_GRACE_SECONDS = 10.0


@dataclass(frozen=True)
class Choice:
    """The sandbox backend of this machine; `settings` are None where there is none to import."""

    settings: Any
    said: str


def choose(scratch: Path) -> Choice:
    """The backend that a worker would take here, in the words of the report."""
    sys.path.insert(0, str(ROOT / "src"))
    try:
        from assay.sandbox import choose_sandbox
    except ModuleNotFoundError as error:
        return Choice(None, f"absent: assay.sandbox needs the package {error.name}")
    settings, why = choose_sandbox("auto", scratch)
    said = f"absent: {why}" if settings.name == "subprocess" else settings.name
    return Choice(settings, said)


@dataclass
class Run:
    """One training. `flags` are for the codebase's entry point, `config` is what the profile says.

    Between `start` and `finish`, `asked` tells that it has compiled, and `open_gate` gives it its
    data and starts its clock.
    """

    name: str
    folder: Path
    choice: Choice
    codebase: Mapping[str, str]
    data: Path
    profile: str
    seconds: float
    warm_up: float
    config: Mapping[str, Any]
    seed: int = 0
    flags: Sequence[str] = ()
    gpu: bool = True
    threads: int = 4
    warm_up_seconds: float | None = None
    reason: str = ""
    code: int | None = None
    _ended: threading.Event = field(default_factory=threading.Event)

    def start(self) -> None:
        """Lay everything out and start the program, which compiles and then asks."""
        for name in ("gate", "ask", "out", "tmp", "codebase"):
            (self.folder / name).mkdir(parents=True)
        for name, text in self.codebase.items():
            path = self.folder / "codebase" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        shutil.copytree(self.data, self.folder / "waiting", copy_function=link)
        table = {**self.config, "budget": {"seconds": self.seconds}}
        (self.folder / "config.json").write_text(json.dumps(table))
        self._began = time.time()
        self._handle: Any = None
        self._started = threading.Event()
        # A bubblewrap dies with its thread, so this one waits for it, too.
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def asked(self, seconds: float) -> bool:
        """Wait until it asks for its data; False if it ended without, or the time is over."""
        deadline = time.monotonic() + seconds
        while not (self.folder / "ask" / "data").exists():
            if self._ended.wait(0.02) or time.monotonic() > deadline:
                return False
        return True

    def open_gate(self) -> None:
        """Give it its data; its clock starts."""
        opened = time.monotonic()
        # When it asked, not when it was its turn.
        asked = (self.folder / "ask" / "data").lstat().st_mtime
        self.warm_up_seconds = max(0.0, asked - self._began)
        (self.folder / "waiting").rename(self.folder / "gate" / "data")
        self._started.wait()
        if self._handle is not None:
            self._handle.start_clock(opened)

    def finish(self) -> None:
        """Wait for its end."""
        self._ended.wait()
        self._thread.join()

    def stop(self) -> None:
        """End it now."""
        if self._handle is not None:
            self._handle.kill()

    def points(self) -> list[dict[str, Any]]:
        """The lines of its curve."""
        path = self.folder / "out" / "metrics.jsonl"
        return (
            [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        )

    def why(self) -> str:
        """The end of its log, for a report of a failure."""
        log = (self.folder / "log").read_text(errors="replace")
        return f"{self.name}: {self.reason} {self.code}\n{log[-2000:]}"

    def _run(self) -> None:
        try:
            with (self.folder / "log").open("wb") as log:
                if self.choice.settings is None:
                    self._handle = _Process(self, log.fileno())
                else:
                    self._handle = self._sandboxed(log.fileno())
                self._started.set()
                end = self._handle.wait()
            self.reason, self.code = end.reason, end.code
        except Exception as error:
            self.reason = f"not started: {error}"
        finally:
            self._started.set()
            self._ended.set()

    def _sandboxed(self, log: int) -> Any:
        from assay.sandbox import Limits, Mount, SandboxSpec, open_sandbox

        sandbox = open_sandbox(self.choice.settings)
        mounts = {
            "gate": Mount(self.folder / "gate", "/assay/gate"),
            "config": Mount(self.folder / "config.json", "/assay/config.json"),
            **{
                name: Mount(self.folder / name, f"/assay/{name}", writable=True)
                for name in ("codebase", "ask", "out", "tmp")
            },
        }
        seen = {name: sandbox.path(mount) for name, mount in mounts.items()}
        limits = Limits(
            self.seconds,
            64 << 30,
            processes=1024,
            open_files=4096,
            file_bytes=16 << 30,
            warm_up_seconds=self.warm_up,
        )
        return sandbox.start(
            SandboxSpec(
                self.name,
                (sandbox.python, "launch.py", *self.flags),
                self.variables(seen) | ({} if sandbox.isolated else _libraries()),
                tuple(mounts.values()),
                seen["codebase"],
                limits,
                stdout=log,
                stderr=log,
                gpus=machine.uuids() if self.gpu else (),
            )
        )

    def variables(self, seen: Mapping[str, str]) -> dict[str, str]:
        """What a worker sets; `seen` are the folders as the code sees them."""
        return {
            "ASSAY_DATA": f"{seen['gate']}/data",
            "ASSAY_ASK": f"{seen['ask']}/data",
            "ASSAY_OUT": seen["out"],
            "ASSAY_CONFIG": seen["config"],
            "ASSAY_SEED": str(self.seed),
            "ASSAY_PROFILE": self.profile,
            "ASSAY_HARDWARE_CLASS": "gpu" if self.gpu else "cpu",
            "ASSAY_GPUS": "1" if self.gpu else "0",
            "ASSAY_SECONDS": f"{self.seconds:g}",
            "ASSAY_THREADS": str(self.threads),
            "OMP_NUM_THREADS": str(self.threads),
            "PYTHONUNBUFFERED": "1",
            "HOME": seen["tmp"],
            "TMPDIR": seen["tmp"],
        }


@dataclass(frozen=True)
class _End:
    reason: str
    code: int


class _Process:
    """An ordinary process where no sandbox can be imported; held to the same clock."""

    def __init__(self, run: Run, log: int) -> None:
        seen = {name: str(run.folder / name) for name in ("gate", "ask", "out", "tmp")}
        seen["config"] = str(run.folder / "config.json")
        self._deadline = time.monotonic() + run.warm_up
        self._seconds = run.seconds
        self._process = subprocess.Popen(
            [sys.executable, "launch.py", *run.flags],
            cwd=run.folder / "codebase",
            env={"PATH": os.environ["PATH"], **_libraries(), **run.variables(seen)},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )

    def start_clock(self, at: float) -> None:
        self._deadline = at + self._seconds

    def wait(self) -> _End:
        reason = "exited"
        while self._process.poll() is None:
            if time.monotonic() > self._deadline:
                reason = "wall"
                self._process.terminate()
                try:
                    self._process.wait(_GRACE_SECONDS)
                except subprocess.TimeoutExpired:
                    self.kill()
            time.sleep(0.02)
        return _End(reason, self._process.returncode)

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)


def _libraries() -> dict[str, str]:
    """Where this machine keeps CUDA, if it says so in its environment."""
    return {
        name: os.environ[name] for name in ("LD_LIBRARY_PATH", "CUDA_HOME") if name in os.environ
    }


def link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy2(source, target)


def codebase_of(environment: Path) -> dict[str, str]:
    """The text files of an environment's codebase, with those that Assay brings."""
    folders = (environment / "codebase", VENDORED / "codebase")
    return {
        path.relative_to(folder).as_posix(): path.read_text()
        for folder in folders
        for path in sorted(folder.rglob("*.py"))
    }


@contextmanager
def running(*runs: Run) -> Iterator[None]:
    """Start them; whatever happens, nothing of them runs afterwards."""
    try:
        for run in runs:
            run.start()
        yield
    finally:
        for run in runs:
            run.stop()


def score(run: Run, held_out: Path, *, windows: int) -> float:
    """The mean loss of what a run left, on windows of the first shard in a folder."""
    shard = sorted(held_out.glob("*.bin"))[0]
    program = Path(__file__).with_name("score.py")
    arguments = [str(run.folder / "out" / "model.pt"), str(shard), str(windows)]
    done = subprocess.run(
        [sys.executable, str(program), *arguments, "cuda" if run.gpu else "cpu"],
        cwd=run.folder / "codebase",
        env=os.environ | {"ASSAY_GPUS": "1" if run.gpu else "0", "ASSAY_HARDWARE_CLASS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{run.name} could not be scored: {done.stderr[-2000:]}")
    return round(float(done.stdout), 4)
