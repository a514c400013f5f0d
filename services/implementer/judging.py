"""What an answer is worth: the patched files, or what to tell the model that wrote it."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from assay.domain.failure_codes import Code, FailureCode
from assay.patching import PatchRefused, apply_answer, check_codebase, unified_diff
from services.implementer.canonical import canonical

if TYPE_CHECKING:  # a judging process does without them
    from assay.llm.executors import ImplementRequest
    from assay.llm.interface import Completion
    from assay.storage.samples import Key, Verdict

Files = dict[str, str]
#: Lines shown before and after the one that failed.
AROUND = 6
#: Of a log, so many characters of its end are shown.
MAX_LOG = 6_000
#: What is wrong with an answer that is none, as the model is told.
MALFORMED = {
    FailureCode.TRUNCATED: "The answer was cut off at the limit of its length, so that nothing of "
    "it was used: a diff that is cut off may look whole. Send a shorter edit: fewer words before "
    "it, and only the lines that change.",
    FailureCode.REFUSED: "The answer declined to write the change. The idea is an experiment on a "
    "small training codebase in a sandbox. Send the edit, or the part of it that you can write.",
    FailureCode.EMPTY_ANSWER: "The answer was empty. Send the plan and the edit.",
}
#: What a model is told of an edit that changes no code.
SAME_CODE = (
    "The edit changes comments, docstrings or formatting alone, so the code does what the "
    "original does and is not measured. Send the change of the code that the idea asks for."
)
_FRAME = re.compile(r'^[^\S\n]*+(?:[|+][^\S\n]*+)*+File "([^"]+)", line (\d{1,9})', re.MULTILINE)
_HEADER = "Traceback (most recent call last):"


@dataclass(frozen=True)
class Patched:
    """A sample whose diff applied and passed preflight; `request` is None if none was needed."""

    request: ImplementRequest | None
    files: Files
    #: See `Judgement.canonical`.
    canonical: str | None = None
    #: What is to be recorded of the sample together with the outcome, if it is not recorded yet.
    verdict: tuple[Key, Verdict] | None = None

    @property
    def sample(self) -> int | None:
        """Which sample it is."""
        return None if self.request is None else self.request.sample


@dataclass(frozen=True)
class Rejected:
    """A sample that came to nothing, and why.

    `is_final`: no other sample can do better.
    """

    code: Code
    message: str
    is_final: bool = False


def malformed(completion: Completion) -> FailureCode | None:
    """The code of what is wrong with an answer before it is read, or None."""
    if completion.stop in (FailureCode.TRUNCATED, FailureCode.REFUSED):
        return FailureCode(completion.stop)
    return None if completion.text.strip() else FailureCode.EMPTY_ANSWER


@dataclass(frozen=True)
class Judgement:
    """The patched files with their diff, why they cannot be used, or both.

    Both are there where the diff fits but the code does not compile, or is the baseline's.
    `canonical` is the same for codebases with the same code; None if their bytes decide.
    """

    files: Files | None
    rejected: Rejected | None
    diff: str | None = None
    canonical: str | None = None


class Judge(Protocol):
    """What a loop asks to judge an answer: `judge`, where it can hold up nothing else.

    `batch` is the batch whose turn the answer takes.
    """

    async def __call__(
        self,
        batch: str,
        answer: str,
        baseline: Files,
        protected: tuple[str, ...],
        *,
        compiles: bool,
    ) -> Judgement: ...


def judge(
    answer: str, baseline: Files, protected: tuple[str, ...], *, compiles: bool
) -> Judgement:
    """Apply an answer to the baseline, and look whether the result compiles if `compiles`.

    A result whose code is the baseline's is refused.

    Raises:
        MemoryError: there is too little for it.
    """
    try:
        files = apply_answer(baseline, answer, protected=protected).files
        check_codebase(files, baseline, protected)
    except PatchRefused as refusal:
        return Judgement(None, Rejected(FailureCode(refusal.code), refusal.log))
    broken = compile_error(files, baseline) if compiles else None
    rejected = Rejected(FailureCode.DOES_NOT_COMPILE, broken) if broken else None
    code = canonical(files, baseline)
    if rejected is None and code is not None and code == canonical(baseline, baseline):
        rejected = Rejected(FailureCode.UNCHANGED, SAME_CODE)
    return Judgement(files, rejected, unified_diff(baseline, files), code)


def compile_error(files: Files, baseline: Files) -> str | None:
    """Why a changed Python file does not compile, or None. Nothing is executed."""
    for name, text in files.items():
        if not name.endswith(".py") or baseline.get(name) == text:
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                compile(text, name, "exec", dont_inherit=True)
        except SyntaxError as error:
            said = f"{name} does not compile: {type(error).__name__}: {error}"
            return said + _shown(name, text, error.lineno)
        except (ValueError, RecursionError) as error:
            return f"{name} does not compile: {type(error).__name__}: {error}"
        except MemoryError:
            return (
                f"{name} does not compile: it takes too much memory. Blocks or expressions are "
                "nested too deeply, or a generated table is too large."
            )
    return None


def _shown(name: str, text: str, number: int | None) -> str:
    """The lines around one of a file, numbered, that one marked."""
    lines = text.split("\n")
    if number is None or not 1 <= number <= len(lines):
        return ""
    first, last = max(1, number - AROUND), min(len(lines), number + AROUND)
    shown = [
        f"{'>' if i == number else ' '}{i:5d}\t{lines[i - 1][:400]}"
        for i in range(first, last + 1)
    ]
    return f"\n\n{name}, as your edit leaves it:\n" + "\n".join(shown)


def has_traceback(log: str) -> bool:
    """Whether a log holds a Python traceback."""
    return _HEADER in log


def crash_feedback(what: str, log: str, files: Mapping[str, str]) -> str:
    """What a model is told of a crash: the last traceback, and the lines it names."""
    start = log.rfind(_HEADER)
    tail = log[start:] if start >= 0 else log
    tail = tail[-MAX_LOG:] if len(tail) > MAX_LOG else tail
    return f"{what}\n\n{tail.strip()}{_lines_named(tail, files)}"


def _lines_named(trace: str, files: Mapping[str, str]) -> str:
    """The code around the last two frames of a traceback that are in the codebase."""
    found: list[tuple[str, int]] = []
    for path, number in _FRAME.findall(trace):
        name = next((n for n in files if path == n or path.endswith(f"/{n}")), None)
        if name is not None and (name, int(number)) not in found:
            found.append((name, int(number)))
    return "".join(_shown(name, files[name], number) for name, number in found[-2:])
