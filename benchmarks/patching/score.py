"""What Assay makes of a case, and how long it takes."""

from __future__ import annotations

import ast
import builtins
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from assay.patching import PatchRefused, apply_answer
from benchmarks.patching.model import Case, Tree

Verdict = Literal["correct", "wrong", "refused"]


@dataclass(frozen=True)
class Outcome:
    """`verdict` is `correct` where a refusal is right and came; `files` is what was made."""

    verdict: Verdict
    code: str = ""
    log: str = ""
    files: Tree | None = None


def judged(case: Case, files: Tree | None, code: str = "", log: str = "") -> Outcome:
    """A result against what is right; `files` is None after a refusal."""
    if files is None:
        return Outcome("correct" if case.target is None else "refused", code, log)
    right = case.target is not None and files == case.target
    return Outcome("correct" if right else "wrong", code, log, files)


def _apply(case: Case) -> Tree:
    return apply_answer(
        dict(case.base), case.answer, protected=case.protected, symlinks=case.symlinks
    ).files


def with_assay(case: Case) -> Outcome:
    """An exception that is not declared is as wrong as a wrong tree."""
    try:
        files = _apply(case)
    except PatchRefused as refused:
        return judged(case, None, str(refused.code), refused.log)
    except Exception as error:
        return Outcome("wrong", type(error).__name__, str(error)[:500], {})
    return judged(case, files)


@contextmanager
def _without_syntax_check() -> Iterator[None]:
    """`ast.parse`, and `compile` where it makes trees, answer at once."""
    original: Callable[..., Any] = builtins.compile

    def quick(*arguments: Any, **options: Any) -> Any:
        flags = arguments[3] if len(arguments) > 3 else options.get("flags", 0)
        if flags & ast.PyCF_ONLY_AST:
            return ast.Module([], [])
        return original(*arguments, **options)

    builtins.compile = quick
    try:
        yield
    finally:
        builtins.compile = original


def _seconds(case: Case) -> float:
    start = time.perf_counter()
    with_assay(case)
    return time.perf_counter() - start


def seconds(case: Case) -> tuple[float, float]:
    """With and without the syntax check; the better of two, where one took long."""
    whole = _seconds(case)
    with _without_syntax_check():
        bare = _seconds(case)
        if bare > 0.05:
            bare = min(bare, _seconds(case))
    return whole, bare
