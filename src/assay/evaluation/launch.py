"""Start the predict entry point of a codebase in a fresh sandbox."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from assay.evaluation.channel import Channel
from assay.evaluation.codes import InvalidAnswer, InvalidCode
from assay.evaluation.predictor import Predictor
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

_WORDS_BYTES = 2000
_DEATH_SECONDS = 2.0


@dataclass(frozen=True)
class PredictorSettings:
    """What a predictor is started with. `deadline` is in monotonic seconds."""

    argv: tuple[str, ...]
    codebase_dir: Path
    artifact_dir: Path
    config: Mapping[str, Any]
    env: Mapping[str, str]
    sandbox: SandboxSettings
    limits: Limits
    deadline: float
    answer_seconds: float


@dataclass
class _Running:
    """A started program, waited for in the thread that started it (see `Sandbox.start`)."""

    sandbox: Sandbox
    spec: SandboxSpec
    started: threading.Event = field(default_factory=threading.Event)
    handle: Handle | None = None
    exit: Exit | None = None
    error: BaseException | None = None

    def serve(self) -> None:
        try:
            self.handle = self.sandbox.start(self.spec)
            self.started.set()
            self.exit = self.handle.wait()
        except Exception as error:  # handed to the thread that asks
            self.error = error
        finally:
            self.started.set()


@contextlib.contextmanager
def open_predictor(settings: PredictorSettings, cpu_seconds: list[float]) -> Iterator[Predictor]:
    """A predictor in a sandbox of its own; the program is killed when the block ends.

    The CPU time the program used is appended to `cpu_seconds`. What it prints is dropped, except
    for what it wrote to stderr before it was shown anything held out: that explains an import
    error or a checkpoint that does not fit, and cannot carry what must stay secret.

    Raises:
        SandboxError: the sandbox could not be started.
    """
    with contextlib.ExitStack() as stack:
        folder = Path(
            stack.enter_context(
                tempfile.TemporaryDirectory(dir=settings.sandbox.scratch, prefix="predict-")
            )
        )
        folder.chmod(0o755)  # the sandbox may use another user
        words = stack.enter_context(tempfile.TemporaryFile(dir=settings.sandbox.scratch))
        channel, running, thread = _start(settings, folder, words.fileno())
        stack.callback(channel.close)
        stack.callback(_stop, running, thread, cpu_seconds)
        shown: list[int] = []
        yield Predictor(
            channel,
            deadline=settings.deadline,
            answer_seconds=settings.answer_seconds,
            autopsy=lambda: _autopsy(running, thread, words.fileno(), shown),
            before_reveal=lambda: shown.append(os.fstat(words.fileno()).st_size),
        )


def _start(
    settings: PredictorSettings, folder: Path, stderr: int
) -> tuple[Channel, _Running, threading.Thread]:
    questions_out, questions_in = os.pipe()
    answers_out, answers_in = os.pipe()
    channel = Channel(questions_in, answers_out)
    try:
        sandbox = open_sandbox(settings.sandbox)
        spec = _spec(settings, sandbox, folder, (questions_out, answers_in, stderr))
        running = _Running(sandbox, spec)
        thread = threading.Thread(target=running.serve, name="predictor", daemon=True)
        thread.start()
        running.started.wait()
    except BaseException:
        channel.close()
        raise
    finally:
        os.close(questions_out)
        os.close(answers_in)
    if running.error is not None:
        channel.close()
        raise running.error
    return channel, running, thread


def _spec(
    settings: PredictorSettings, sandbox: Sandbox, folder: Path, streams: tuple[int, int, int]
) -> SandboxSpec:
    config = folder / "config.json"
    config.write_text(json.dumps(dict(settings.config)))
    config.chmod(0o644)
    code = Mount(settings.codebase_dir, "/work/codebase")
    artifact = Mount(settings.artifact_dir, "/work/out")
    config_mount = Mount(config, "/work/config.json")
    left = settings.deadline - time.monotonic()
    if left <= 0:
        raise InvalidAnswer(InvalidCode.TIMEOUT, "no time is left for the evaluation")
    first, *rest = settings.argv
    return SandboxSpec(
        name="predict",
        argv=(sys.executable if first == "python" else first, *rest),
        env={
            **settings.env,
            "ASSAY_OUT": sandbox.path(artifact),
            "ASSAY_CONFIG": sandbox.path(config_mount),
            "PYTHONDONTWRITEBYTECODE": "1",  # the codebase is mounted read-only
        },
        mounts=(code, artifact, config_mount),
        cwd=sandbox.path(code),
        limits=dataclasses.replace(
            settings.limits, wall_seconds=min(left + 1.0, settings.limits.wall_seconds)
        ),
        stdin=streams[0],
        stdout=streams[1],
        stderr=streams[2],
    )


def _stop(running: _Running, thread: threading.Thread, cpu_seconds: list[float]) -> None:
    if running.handle is not None:
        running.handle.kill()
    thread.join()
    if running.exit is not None:
        cpu_seconds.append(running.exit.cpu_seconds)
    elif running.error is not None:
        raise running.error


def _autopsy(running: _Running, thread: threading.Thread, stderr: int, shown: list[int]) -> str:
    """How the program ended, with its own words as far as they may be shown."""
    thread.join(_DEATH_SECONDS)
    ended = running.exit
    if ended is None:
        said = "the predictor closed its output"
    elif ended.reason == "memory":
        said = "the predictor ran out of memory"
    elif ended.reason in ("wall", "cpu"):
        said = "the predictor used up its time"
    else:
        said = f"the predictor ended with code {ended.code}"
    size = shown[0] if shown else os.fstat(stderr).st_size
    start = max(0, size - _WORDS_BYTES)
    words = os.pread(stderr, size - start, start).decode(errors="replace").strip()
    return f"{said}\n{words}" if words else said
