"""Turn the end of a training into a failure that says what happened and what to do."""

from __future__ import annotations

import json
import math
import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from assay.contracts.environment import MetricSpec, Profile
from assay.contracts.worker import FailureReport, ManifestEntry, RescoreReport
from assay.domain.errors import AssayError, Conflict, InvalidInput, NotFound
from assay.domain.failure_codes import RULES, Code, FailureCode, read_code, rules_for
from assay.domain.metrics import Direction, is_better
from assay.domain.states import FailureStage
from assay.evaluation import EvaluationFailure
from assay.sandbox import Exit
from assay.sandbox.starvation import UNCLEAR_SHARE
from services.worker.api import ApiRefused

MESSAGE_CAP = 500
#: Beside `train/`, `search/` and `sealed/`, where no sandbox sees it.
BOUNDS_FILE = "bounds.json"
_HEADER = "Traceback (most recent call last):"
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(Error|Exception|Interrupt|Exit|Iteration|Warning)\b")
_NO_MEMORY = re.compile(r"MemoryError|[Cc]annot allocate memory|can't allocate memory")


class AttemptFailed(AssayError):
    """The attempt is over. If it is `unclear` whether its codebase is to blame, it is made once
    more. A program that a signal to the worker may have ended, too, was `signalled`."""

    def __init__(
        self, failure: FailureReport, *, unclear: bool = False, signalled: bool = False
    ) -> None:
        super().__init__(failure.message, code=failure.code)
        self.failure = failure
        self.unclear = unclear
        self.signalled = signalled


class Cancelled(AssayError):
    """Somebody does not want the result any more, or the attempt is no longer ours."""

    code = FailureCode.CANCELLED


def failure(stage: FailureStage, code: Code, message: str) -> FailureReport:
    """A failure whose message is one bounded, printable text."""
    retryable = rules_for(code, stage).retryable
    text = printable(message)
    return FailureReport(stage=stage, code=str(code), message=text, retryable=retryable)


def infrastructure(code: FailureCode, message: str, *, signalled: bool = False) -> AttemptFailed:
    """A fault of this host: the attempt is tried again elsewhere."""
    return AttemptFailed(failure(FailureStage.START, code, message), signalled=signalled)


def printable(text: str) -> str:
    """Without control characters; what is longer than `MESSAGE_CAP` loses its middle."""
    shown = "".join(
        c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in text
    )
    if len(shown) <= MESSAGE_CAP:
        return shown
    return f"{shown[: MESSAGE_CAP // 3]} … {shown[3 - MESSAGE_CAP * 2 // 3 :]}"


def last_traceback_line(tail: bytes) -> str | None:
    """The line that names the exception, from the end of a log; None when there is none.

    It is the first unindented line after the last traceback's header. A syntax error in the file
    that is started prints no header, so the last line that looks like an exception is next.
    """
    lines = tail.decode(errors="replace").replace("\r", "\n").split("\n")
    headers = [i for i, line in enumerate(lines) if line.strip(" |+") == _HEADER]
    if headers:
        for line in lines[headers[-1] + 1 :]:
            if line.strip() and not line[0].isspace() and _looks_like_name(line):
                return line.rstrip()
    found = (line.rstrip() for line in reversed(lines) if _EXCEPTION.match(line.lstrip(" |")))
    return next(found, None)


def _looks_like_name(line: str) -> bool:
    return re.match(r"[A-Za-z_][\w.]*(:|$)", line.rstrip()) is not None


def training_failure(
    end: Exit, tail: bytes, *, wall: float, patience: float = 0.0, warm_up: float = 0.0
) -> AttemptFailed | None:
    """What went wrong in training; None when it ended well. `wall` is the budget in seconds; up to
    `patience` are added to it while the host is busy, and `warm_up` may pass before it."""
    if end.reason == "exited":
        return _crash(end, tail) if end.code != 0 else None
    if end.reason == "wall":
        return _out_of_time(end, wall, patience)
    if end.reason == "host_memory":
        return infrastructure(
            FailureCode.HOST_OUT_OF_MEMORY,
            "the kernel killed the training for want of memory, below the profile's own limit",
        )
    code, message = {
        "warm_up": (
            FailureCode.WARM_UP_EXCEEDED,
            f"training was ended after {end.warm_up_seconds:.1f} s of warm-up, of {warm_up:g} s: "
            "it did not ask for its data by making the file $ASSAY_ASK",
        ),
        "cpu": (
            FailureCode.CPU_BUDGET_EXCEEDED,
            f"training was ended after {end.cpu_seconds:.1f} s of processor time",
        ),
        "memory": (
            FailureCode.MEMORY_EXCEEDED,
            "training used more memory than the profile allows",
        ),
        "disk": (
            FailureCode.DISK_EXCEEDED,
            "training wrote more, or more files, than the profile's disk_gb allows, or than fit "
            "into its memory_gb (a small output folder is held in memory)",
        ),
        "processes": (
            FailureCode.PROCESSES_EXCEEDED,
            "training was refused another process or thread, and failed",
        ),
        "cancelled": (FailureCode.CANCELLED, "training was cancelled"),
    }[end.reason]
    return AttemptFailed(failure(FailureStage.TRAIN, code, message))


def _out_of_time(end: Exit, wall: float, patience: float) -> AttemptFailed:
    starved = end.starved_seconds
    if patience and starved >= patience:
        return infrastructure(
            FailureCode.HOST_BUSY,
            f"training was ended after {end.wall_seconds:.0f} s, for {starved:.0f} s of which the "
            "host gave it no processor",
        )
    message = (
        f"training was ended after {end.wall_seconds:.1f} s of {wall:g} s; $ASSAY_SECONDS holds "
        "the budget"
    )
    if patience and starved >= 1:
        message += f" (for {starved:.0f} s the host was busy; they do not count)"
    report = failure(FailureStage.TRAIN, FailureCode.WALL_BUDGET_EXCEEDED, message)
    # It had all of the patience, and nobody who looked says why: it ran on without its worker.
    is_unseen = 0 < patience <= end.wall_seconds - wall
    waited = starved >= UNCLEAR_SHARE * end.wall_seconds
    return AttemptFailed(report, unclear=bool(patience) and (waited or is_unseen))


def _crash(end: Exit, tail: bytes) -> AttemptFailed:
    line = last_traceback_line(tail)
    if line is not None and end.code == 1 and _NO_MEMORY.search(line):
        return AttemptFailed(failure(FailureStage.TRAIN, FailureCode.MEMORY_EXCEEDED, line))
    how = _how_it_ended(end)
    if line is not None:
        message = line
    else:
        last = tail.decode(errors="replace").strip().rpartition("\n")[2]
        message = f"{how}; last line of the log: {last}" if last else f"{how}; nothing was logged"
    report = failure(FailureStage.TRAIN, FailureCode.CRASHED, message)
    return AttemptFailed(report, unclear=end.signalled, signalled=end.signalled)


def _how_it_ended(end: Exit) -> str:
    if end.code >= 0:
        return f"exit code {end.code}"
    name = _signal_name(-end.code)
    if end.code_is_certain:
        return f"killed by {name}"
    status = f"exited with status {128 - end.code} (128 + {name}"
    return f"{status}: killed by signal {-end.code}, or its own exit status)"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


def score_failure(found: EvaluationFailure) -> AttemptFailed:
    """The evaluation's verdict, without its detail."""
    if found.code is FailureCode.EVALUATION_INTERRUPTED:
        return infrastructure(found.code, found.message)
    body = failure(FailureStage.SCORE, found.code, found.message)
    # Whatever ended it: how a predictor dies may be a message about what it was shown.
    died = found.code is FailureCode.PREDICTOR_DIED
    return AttemptFailed(body, unclear=found.unclear, signalled=died)


@dataclass(frozen=True)
class MetricBounds:
    """The best values that are plausible, of the metrics on each split."""

    search: float | None = None
    sealed: float | None = None

    @classmethod
    def of(cls, spec: MetricSpec, profile: Profile, data: Path) -> MetricBounds:
        """The metric's, in its place the profile's, in their place those of the prepared data.

        Raises:
            InvalidInput: `bounds.json` of the prepared data is not what it should be.
        """
        bound = spec.bound if profile.bound is None else profile.bound
        found = read_bounds(data)
        return cls(found.get("search", bound), found.get("sealed", bound))


def read_bounds(data: Path) -> dict[str, float]:
    """What `prepare.py` found out about the splits it made; empty where it wrote nothing.

    Raises:
        InvalidInput: the file holds something else than finite numbers for `search` and `sealed`.
    """
    try:
        found = json.loads((data / BOUNDS_FILE).read_bytes())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise InvalidInput(
            f"{BOUNDS_FILE} of the prepared data: {error}", code=FailureCode.PREPARE_FAILED
        ) from error
    is_whole = isinstance(found, dict) and set(found) <= {"search", "sealed"}
    if not is_whole or not all(_is_number(value) for value in found.values()):
        raise InvalidInput(
            f'{BOUNDS_FILE} of the prepared data must be {{"search": number, "sealed": number}}; '
            "fix prepare.py",
            code=FailureCode.PREPARE_FAILED,
        )
    return {name: float(value) for name, value in found.items()}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and type(value) is not bool and math.isfinite(value)


def implausible(
    direction: Direction, metrics: Mapping[str, float], bounds: Mapping[str, float | None]
) -> FailureReport | None:
    """A failure when a metric is better than its bound, which the environment holds possible.

    The metric is not in the message: of a result that does not count, no digit is told.
    """
    for name, bound in bounds.items():
        if bound is None or name not in metrics:
            continue
        if is_better(direction, metrics[name], bound):
            return failure(
                FailureStage.GUARD,
                FailureCode.IMPLAUSIBLE,
                f"{name} is better than {bound:g}, the bound of what this environment holds "
                "possible. Look for a leak, in the data or in how the code predicts.",
            )
    return None


@dataclass(frozen=True)
class End:
    """How an attempt ended, without what it left in files."""

    state: Literal["succeeded", "failed", "cancelled"]
    failure: FailureReport | None = None
    unclear: bool = False
    metrics: Mapping[str, float] = field(default_factory=dict)
    rescore: RescoreReport | None = None
    artifacts: tuple[ManifestEntry, ...] = ()

    @property
    def is_retried(self) -> bool:
        """Whether the attempt is tried again elsewhere."""
        found = self.failure if self.state == "failed" else None
        return found is not None and rules_for(found.code, found.stage).retried


def fault(code: FailureCode, message: str) -> End:
    """The end of an attempt whose codebase is not to blame."""
    return End("failed", infrastructure(code, message).failure)


def fault_of(error: AssayError) -> End:
    """The end of an attempt by an error that nothing in it expected.

    Of what the API answered the code is the API's own, which says nothing about an attempt.
    """
    code = read_code(error.code)
    if isinstance(code, FailureCode) and RULES[code].retried:
        return fault(code, str(error))
    if isinstance(error, NotFound | Conflict | ApiRefused):
        return fault(FailureCode.API_REFUSED, str(error))
    return fault(FailureCode.WORKER_ERROR, f"{error.code}: {error}")
