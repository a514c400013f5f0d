"""Start a program that answers questions, such as a codebase's predict, in a fresh sandbox."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from assay.evaluation.channel import Channel
from assay.evaluation.clock import Clock
from assay.evaluation.codes import InvalidAnswer, Rejection
from assay.evaluation.predictor import Predictor
from assay.evaluation.usage import CpuSeconds
from assay.evaluation.words import LastWords, last_words
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

_DEATH_SECONDS = 2.0
_GRADE_SERVER = Path(__file__).with_name("grade_server.py")
_START_SECONDS = 60.0
"""For a grader to import what it needs."""
_SLACK_SECONDS = 10.0
"""A grader ends its pairs itself; on a busy host it may be late."""


@dataclass(frozen=True)
class PredictorSettings:
    """What a predictor is started with. `deadline` is a time of `clock`.

    `artifact_dir` is all it sees of what training left: one checkpoint's folder, or everything. In
    place of the file `hidden` at its top, an isolated predictor finds an empty one.
    `gpus` are the UUIDs of the GPUs it has.
    """

    argv: tuple[str, ...]
    codebase_dir: Path
    artifact_dir: Path
    config: Mapping[str, Any]
    env: Mapping[str, str]
    sandbox: SandboxSettings
    limits: Limits
    clock: Clock
    deadline: float
    answer_seconds: float
    start_seconds: float
    gpus: tuple[str, ...] = ()
    hidden: str = ""


@dataclass
class _Running:
    """A started program, waited for in the thread that started it (see `Sandbox.start`)."""

    sandbox: Sandbox
    spec: SandboxSpec
    started: threading.Event = field(default_factory=threading.Event)
    handle: Handle | None = None
    exit: Exit | None = None
    error: BaseException | None = None
    ready_at: float | None = None
    """CPU seconds when it said that it was ready."""

    def used_cpu_seconds(self) -> float:
        """CPU seconds of the program until now."""
        return 0.0 if self.handle is None else self.handle.gauges().get("cpu_seconds", 0.0)

    def starved_seconds(self) -> float:
        """Seconds for which the host has kept the program waiting for a processor until now."""
        if self.exit is not None:
            return self.exit.starved_seconds
        return 0.0 if self.handle is None else self.handle.starved_seconds()

    def serve(self) -> None:
        try:
            self.handle = self.sandbox.start(self.spec)
            self.started.set()
            self.exit = self.handle.wait()
        except Exception as error:  # handed to the thread that asks
            self.error = error
        finally:
            self.started.set()


@dataclass(frozen=True)
class Streams:
    """The descriptors a program is started with; they stay the caller's to close."""

    stdin: int
    stdout: int
    stderr: int


BuildSpec = Callable[[Sandbox, Path, Streams], SandboxSpec]
"""Makes the program's spec; the folder is empty, readable inside, and goes with the program."""


@contextlib.contextmanager
def open_program(
    settings: SandboxSettings,
    build: BuildSpec,
    cpu: CpuSeconds,
    *,
    says_ready: bool,
    clock: Clock,
    deadline: float,
    answer_seconds: float,
    start_seconds: float | None = None,
) -> Iterator[Predictor]:
    """A program in a sandbox of its own; it is killed when the block ends.

    A program that `says_ready` is waited for. The CPU time it used is appended to `cpu`. What it
    prints is dropped, except for what it wrote to stderr before it was shown anything held out: an
    import error or a checkpoint that does not fit. That is for operators, in the `detail` of the
    `InvalidAnswer`.

    Raises:
        SandboxError: the sandbox could not be started.
        InvalidAnswer: the program did not get ready.
    """
    with contextlib.ExitStack() as stack:
        folder = Path(
            stack.enter_context(
                tempfile.TemporaryDirectory(dir=settings.scratch, prefix="program-")
            )
        )
        folder.chmod(0o755)  # the sandbox may use another user
        words = stack.enter_context(last_words())
        channel, running, thread = _start(settings, build, folder, words.descriptor, clock)
        words.close_writer()
        stack.callback(channel.close)
        stack.callback(_stop, running, thread, cpu)
        stack.enter_context(clock.watching(running.starved_seconds))
        predictor = Predictor(
            channel,
            clock=clock,
            deadline=deadline,
            answer_seconds=answer_seconds,
            start_seconds=start_seconds,
            autopsy=lambda: _autopsy(running, thread, words),
            before_reveal=words.freeze,
        )
        if says_ready:
            predictor.wait_ready(running.used_cpu_seconds)
            running.ready_at = predictor.started_cpu_seconds
            cpu.starting.append(running.ready_at or 0.0)
        yield predictor


def open_predictor(
    settings: PredictorSettings, cpu: CpuSeconds
) -> contextlib.AbstractContextManager[Predictor]:
    """The predict entry point in a sandbox of its own; see `open_program`."""
    return open_program(
        settings.sandbox,
        lambda sandbox, folder, streams: _spec(settings, sandbox, folder, streams),
        cpu,
        says_ready=True,
        clock=settings.clock,
        deadline=settings.deadline,
        answer_seconds=settings.answer_seconds,
        start_seconds=settings.start_seconds,
    )


@dataclass(frozen=True)
class GraderSettings:
    """What a grader is started with. `files` are trusted, the first defines `grade`; nothing else
    of the environment is there. `pair_seconds` and `pair_bytes` bound each pair."""

    files: tuple[Path, ...]
    sandbox: SandboxSettings
    limits: Limits
    clock: Clock
    deadline: float
    pair_seconds: float
    pair_bytes: int


def open_grader(
    settings: GraderSettings, cpu: CpuSeconds
) -> contextlib.AbstractContextManager[Predictor]:
    """A grader (see `grade_server`) in a sandbox of its own; see `open_program`."""
    return open_program(
        settings.sandbox,
        lambda sandbox, folder, streams: _grader_spec(settings, sandbox, folder, streams),
        cpu,
        says_ready=False,
        clock=settings.clock,
        deadline=settings.deadline,
        answer_seconds=settings.pair_seconds + _SLACK_SECONDS,
        start_seconds=_START_SECONDS,
    )


def wall_seconds(clock: Clock, deadline: float) -> float:
    """How long a program may live: a little longer than the time that can be left at most, so that
    the evaluator notices its end first.

    Raises:
        InvalidAnswer: `timeout`: none is left.
    """
    if deadline <= clock.now():
        raise InvalidAnswer(Rejection.TIMEOUT, "no time is left for the evaluation")
    return clock.longest(deadline) + 1.0


def _start(
    settings: SandboxSettings, build: BuildSpec, folder: Path, stderr: int, clock: Clock
) -> tuple[Channel, _Running, threading.Thread]:
    questions_out, questions_in = os.pipe()
    answers_out, answers_in = os.pipe()
    channel = Channel(questions_in, answers_out, clock)
    try:
        sandbox = open_sandbox(settings)
        spec = build(sandbox, folder, Streams(questions_out, answers_in, stderr))
        running = _Running(sandbox, spec)
        thread = threading.Thread(target=running.serve, name="program", daemon=True)
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
    settings: PredictorSettings, sandbox: Sandbox, folder: Path, streams: Streams
) -> SandboxSpec:
    config = folder / "config.json"
    config.write_text(json.dumps(dict(settings.config)))
    config.chmod(0o644)
    code = Mount(settings.codebase_dir, "/work/codebase")
    artifact = Mount(settings.artifact_dir, "/work/out")
    config_mount = Mount(config, "/work/config.json")
    wall = wall_seconds(settings.clock, settings.deadline)
    first, *rest = settings.argv
    return SandboxSpec(
        name="predict",
        argv=(sandbox.python if first == "python" else first, *rest),
        env={
            **settings.env,
            "ASSAY_OUT": sandbox.path(artifact),
            "ASSAY_CONFIG": sandbox.path(config_mount),
            "PYTHONDONTWRITEBYTECODE": "1",  # the codebase is mounted read-only
        },
        mounts=(code, artifact, config_mount, *_hiding(settings, folder)),
        cwd=sandbox.path(code),
        limits=dataclasses.replace(settings.limits, wall_seconds=wall),
        stdin=streams.stdin,
        stdout=streams.stdout,
        stderr=streams.stderr,
        gpus=settings.gpus,
        sees_held_out=True,
    )


def _hiding(settings: PredictorSettings, folder: Path) -> tuple[Mount, ...]:
    """An empty file over the hidden one. Nothing hides it where nothing is isolated anyway."""
    hidden = settings.artifact_dir / settings.hidden
    if not settings.hidden or hidden.is_symlink() or not hidden.is_file():
        return ()
    empty = folder / "empty"
    empty.touch(0o644)
    return (Mount(empty, f"/work/out/{settings.hidden}"),)


def _grader_spec(
    settings: GraderSettings, sandbox: Sandbox, folder: Path, streams: Streams
) -> SandboxSpec:
    for file in (_GRADE_SERVER, *settings.files):
        (folder / file.name).write_bytes(file.read_bytes())
        (folder / file.name).chmod(0o644)
    mount = Mount(folder, "/work/grader")
    inside = sandbox.path(mount)
    limited = (f"{settings.pair_seconds:g}", f"{settings.pair_bytes}")
    return SandboxSpec(
        name="grade",
        argv=(
            *(sandbox.python, "-I", f"{inside}/{_GRADE_SERVER.name}"),
            *(f"{inside}/{settings.files[0].name}", *limited),
        ),
        env={
            **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
            "PYTHONDONTWRITEBYTECODE": "1",
        },
        mounts=(mount,),
        cwd=inside,
        limits=dataclasses.replace(
            settings.limits,
            wall_seconds=wall_seconds(settings.clock, settings.deadline),
            cpu_seconds=None,
        ),
        stdin=streams.stdin,
        stdout=streams.stdout,
        stderr=streams.stderr,
        sees_held_out=True,
    )


def _stop(running: _Running, thread: threading.Thread, cpu: CpuSeconds) -> None:
    if running.handle is not None:
        running.handle.kill()
    thread.join()
    if running.exit is not None:
        cpu.total.append(running.exit.cpu_seconds)
        if running.ready_at is not None:
            cpu.answering.append(max(0.0, running.exit.cpu_seconds - running.ready_at))
    elif running.error is not None:
        raise running.error


def _autopsy(running: _Running, thread: threading.Thread, words: LastWords) -> InvalidAnswer:
    """How the program ended. Its exit code and its words are details: it chose them."""
    thread.join(_DEATH_SECONDS)
    ended = running.exit
    if ended is not None and ended.reason == "memory":
        rejection = Rejection.OUT_OF_MEMORY
    elif ended is not None and ended.reason == "host_memory":
        rejection = Rejection.INTERRUPTED
    elif ended is not None and ended.reason in ("wall", "cpu"):
        rejection = Rejection.OUT_OF_TIME
    else:
        rejection = Rejection.PREDICTOR_DIED if words.frozen else Rejection.DIED_AT_START
    who = "the grader" if running.spec.name == "grade" else "the predictor"
    how = "closed its output" if ended is None else f"ended with code {ended.code}: {ended.reason}"
    return InvalidAnswer(rejection, f"{who} {how}\n{words.text()}".strip())
