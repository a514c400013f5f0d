"""What holds for every answer, however damaged: one call of the patcher, judged."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import NamedTuple

from assay.patching import PatchRefused, PatchResult, RefusalCode, apply_answer
from assay.patching.types import MAX_LOG_CHARACTERS
from tests.support.patching.python import parses

#: No input may take longer, in seconds of processor time.
MAX_SECONDS = 2.0
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff\\]")


class Verdict(NamedTuple):
    """What became of an answer; `problem` is empty where everything holds."""

    outcome: str
    problem: str
    seconds: float


def judge(
    tree: Mapping[str, str],
    answer: str,
    protected: Sequence[str] = (),
    symlinks: Mapping[str, str] | None = None,
) -> Verdict:
    """Apply the answer, and again to what came out; say which invariant does not hold."""
    given = dict(tree)
    started = time.process_time()
    try:
        result = apply_answer(given, answer, protected=protected, symlinks=symlinks)
    except PatchRefused as refusal:
        seconds = time.process_time() - started
        problem = refusal_problem(refusal) or _input_problem(given, tree)
        return Verdict(str(refusal.code), problem, seconds)
    except Exception as error:  # what must not happen is what is looked for
        seconds = time.process_time() - started
        return Verdict("crash", f"{type(error).__name__}: {error}"[:300], seconds)
    seconds = time.process_time() - started
    tiers = {hunk.tier for record in result.report.files for hunk in record.hunks}
    outcome = f"applied: {', '.join(sorted(tiers)) or 'no hunks'}"
    again = again_problem(result.files, answer, protected, symlinks)
    problem = (
        _input_problem(given, tree)
        or result_problem(tree, result, protected, symlinks or {})
        or (again and f"{again}, {outcome.replace(': ', ' as ')}")
    )
    return Verdict(outcome, problem, seconds)


def _input_problem(given: Mapping[str, str], tree: Mapping[str, str]) -> str:
    return "" if given == tree else "the input was changed"


def refusal_problem(refusal: PatchRefused) -> str:
    """What is wrong with a refusal itself."""
    if not isinstance(refusal.code, RefusalCode):
        return f"undeclared code: {refusal.code!r}"
    if len(refusal.log) > MAX_LOG_CHARACTERS:
        return f"the log is too long: {len(refusal.log)} characters"
    if not refusal.log.strip():
        return "the log is empty"
    return _text_problem("the log", refusal.log)


def result_problem(
    tree: Mapping[str, str],
    result: PatchResult,
    protected: Sequence[str],
    symlinks: Mapping[str, str],
) -> str:
    """What is wrong with a patched tree, whatever the answer was meant to do."""
    after = result.files
    changed = {name for name in tree.keys() | after.keys() if tree.get(name) != after.get(name)}
    if not changed:
        return "applied, and nothing is changed"
    files = result.report.files
    told = {record.path for record in files} | {record.renamed_from for record in files}
    if not changed <= told:
        return f"changed without being reported: {sorted(changed - told)}"
    json.dumps(asdict(result.report))
    for name in sorted(changed):
        problem = _path_problem(name, protected, symlinks)
        was = next((r.renamed_from for r in files if r.path == name and r.renamed_from), name)
        problem = problem or _file_problem(name, tree.get(was), after.get(name))
        if problem:
            return problem
    return ""


def _path_problem(name: str, protected: Sequence[str], symlinks: Mapping[str, str]) -> str:
    folded = name.casefold()
    for pattern in protected:
        folder = pattern.casefold().removesuffix("*")
        if folded == folder or (pattern.endswith("/*") and folded.startswith(folder)):
            return f"protected file changed: {name!r}"
    if any(folded == link or folded.startswith(link + "/") for link in symlinks):
        return f"went through a symbolic link: {name!r}"
    parts = folded.split("/")
    if {"", ".", "..", ".git"} & set(parts) or _CONTROL.search(name) or ":" in parts[0][:2]:
        return f"bad path: {name!r}"
    return ""


def _file_problem(name: str, before: str | None, after: str | None) -> str:
    if after is None:
        return ""
    if name.endswith(".py") and (before is None or parses(before)) and not parses(after):
        return f"does not parse any more: {name!r}"
    return _text_problem(name, after)


def _text_problem(what: str, text: str) -> str:
    """Text is stored, sent and shown: it can be encoded and holds no NUL."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return f"a lone surrogate: in {what}"
    return f"a NUL: in {what}" if "\0" in text else ""


def again_problem(
    once: Mapping[str, str],
    answer: str,
    protected: Sequence[str] = (),
    symlinks: Mapping[str, str] | None = None,
) -> str:
    """What is wrong with applying the answer to its own result: that must be refused.

    No content tells one of several equal lines that was removed from one that is still to go, nor
    an exchange of lines from its inverse: answers that only remove or reorder lines may repeat.
    """
    try:
        twice = apply_answer(dict(once), answer, protected=protected, symlinks=symlinks).files
    except PatchRefused as refusal:
        return refusal_problem(refusal)
    except Exception as error:
        return f"the second time {type(error).__name__}: {error}"[:300]
    return "" if _is_less(once, twice) else "made again"


def _is_less(once: Mapping[str, str], twice: Mapping[str, str]) -> bool:
    """Whether no file of the second tree has a line, a blank one included, more often."""

    def count(tree: Mapping[str, str]) -> Counter[tuple[str, str]]:
        return Counter((name, line) for name, text in tree.items() for line in text.split("\n"))

    return not count(twice) - count(once)
