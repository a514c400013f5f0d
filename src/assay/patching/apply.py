"""Apply an answer to a tree: all of it or nothing."""

import ast
import warnings
from collections.abc import Mapping, Sequence

from assay.patching import log, paths
from assay.patching.parse import parse_answer
from assay.patching.place import Edit, Place, apply_edits, clash, find_places
from assay.patching.text import FileLines, join_file, split_file
from assay.patching.types import (
    FileRecord,
    Hunk,
    HunkRecord,
    PatchRefused,
    PatchReport,
    PatchResult,
    RefusalCode,
    Section,
)

MAX_ANSWER_BYTES = 1 << 20


def apply_answer(
    files: dict[str, str],
    answer: str,
    *,
    protected: Sequence[str] = (),
    symlinks: Mapping[str, str] | None = None,
) -> PatchResult:
    """Carry out the edits of `answer` on `files`, a whole tree of `{path: text}`.

    Reads unified diffs and SEARCH/REPLACE blocks. A hunk is placed where its old text stands
    exactly once: as written, else apart from trailing whitespace and line endings, else apart from
    blank lines. `protected` are globs (or folders) no edit may touch; `symlinks` maps links of the
    tree to their targets. `files` itself is not changed.

    Raises PatchRefused, and nothing else, with a log a model can act on. A hunk whose new text
    stands already (and its old text does not) is refused as `already_applied`, not skipped: an
    answer that repeats part of the codebase was written against another state of it.
    """
    _check_size(answer)
    sections = parse_answer(answer, files)
    for section in sections:
        paths.check(section.path, files, protected, symlinks or {})
    after = dict(files)
    records = [_apply_section(section, files, after) for section in sections]
    for section in sections:
        if section.action == "create":
            others = {name: "" for name in after if name != section.path}
            paths.check(section.path, others, (), {})
    if after == files:
        raise PatchRefused(
            RefusalCode.NO_CHANGE,
            "The edits leave every file as it was. Send the change the idea asks for.",
        )
    for record in records:
        _check_syntax(record.path, files.get(record.path), after.get(record.path))
    return PatchResult(after, PatchReport(tuple(records)))


def _check_size(answer: str) -> None:
    if len(answer.encode("utf-8", "replace")) > MAX_ANSWER_BYTES:
        raise PatchRefused(
            RefusalCode.TOO_LARGE,
            f"The answer is longer than {MAX_ANSWER_BYTES} bytes. Send only what changes.",
        )
    if "\0" in answer:
        raise PatchRefused(RefusalCode.MALFORMED, "The answer holds a NUL character.")


def _apply_section(
    section: Section, files: Mapping[str, str], after: dict[str, str]
) -> FileRecord:
    path = section.path
    if section.action == "create":
        return _create(section, files, after)
    if path not in files:
        raise PatchRefused(RefusalCode.UNKNOWN_FILE, log.unknown_file(path, files))
    before = split_file(files[path])
    lines, records = _place_all(path, before, section.hunks)
    if section.action == "delete":
        if section.hunks and lines:
            raise PatchRefused(
                RefusalCode.NO_MATCH,
                f"`{path}` is to be deleted, but the removed lines are not all of its lines.",
            )
        del after[path]
        return FileRecord(path, "deleted", records)
    final_newline = before.final_newline
    at_end = (h for h, r in zip(section.hunks, records, strict=True) if _reaches_end(h, r, before))
    for hunk in at_end:
        if hunk.ends_bare is not None:
            final_newline = not hunk.ends_bare
    after[path] = join_file(lines, final_newline)
    return FileRecord(path, "edited", records)


def _create(section: Section, files: Mapping[str, str], after: dict[str, str]) -> FileRecord:
    path = section.path
    lines = [text for hunk in section.hunks for text in hunk.new]
    if path in files:
        code = RefusalCode.FILE_EXISTS
        if files[path] == join_file(lines, True):
            code = RefusalCode.ALREADY_APPLIED
        raise PatchRefused(
            code, f"`{path}` exists already. Change it with hunks instead of creating it."
        )
    if any(text.strip() for hunk in section.hunks for text in hunk.old):
        raise PatchRefused(
            RefusalCode.MALFORMED,
            f"`{path}` is a new file: every one of its lines must start with `+`.",
        )
    bare = bool(section.hunks) and section.hunks[-1].ends_bare is True
    after[path] = join_file(lines, not bare)
    records = tuple(
        HunkRecord(i, 1, "whole_file", 0, len(hunk.new)) for i, hunk in enumerate(section.hunks, 1)
    )
    return FileRecord(path, "created", records)


def _reaches_end(hunk: Hunk, record: HunkRecord, before: FileLines) -> bool:
    return record.late or record.line - 1 + len(hunk.old) >= len(before.lines)


def _place_all(
    path: str, before: FileLines, hunks: list[Hunk]
) -> tuple[list[str], tuple[HunkRecord, ...]]:
    """Place every hunk on the original lines, then what is left on the result of the others."""
    records: dict[int, HunkRecord] = {}
    edits: list[Edit] = []
    late: list[int] = []
    failures: list[tuple[RefusalCode, str]] = []
    for index, hunk in enumerate(hunks, 1):
        found = _distinct(before.lines, find_places(before.lines, hunk))
        if not found and len(hunks) > 1:
            late.append(index)
            continue
        failure = _failure(path, index, hunk, before.lines, found)
        if failure is not None:
            failures.append(failure)
            continue
        new = [edit for edit in found[0].edits if edit not in edits]
        if any(clash(edit, other) for edit in new for other in edits):
            failures.append((RefusalCode.CONFLICT, log.conflict(path, index)))
        edits += new
        records[index] = _record(index, hunk, found[0])
    lines = apply_edits(before.lines, edits) if not failures else before.lines
    for index in late:
        hunk = hunks[index - 1]
        found = _distinct(lines, find_places(lines, hunk, exact_only=True))
        failure = _failure(path, index, hunk, before.lines, found)
        if failure is not None:
            failures.append(failure)
            continue
        lines = apply_edits(lines, found[0].edits)
        records[index] = _record(index, hunk, found[0], late=True)
    if failures:
        raise PatchRefused(failures[0][0], "\n\n".join(text for _, text in failures))
    return lines, tuple(records[i] for i in sorted(records))


def _record(index: int, hunk: Hunk, place: Place, *, late: bool = False) -> HunkRecord:
    removed = sum(line.mark == "-" for line in hunk.lines)
    added = sum(line.mark == "+" for line in hunk.lines)
    return HunkRecord(index, place.start + 1, place.tier, removed, added, late)


def _distinct(lines: list[str], places: list[Place]) -> list[Place]:
    """Places with different outcomes; equal outcomes count once (one of two equal lines goes)."""
    if len(places) < 2:
        return places
    outcomes: dict[tuple[str, ...], Place] = {}
    for place in places[:50]:
        outcomes.setdefault(tuple(apply_edits(lines, place.edits)), place)
    return list(outcomes.values())


def _failure(
    path: str, index: int, hunk: Hunk, lines: list[str], found: list[Place]
) -> tuple[RefusalCode, str] | None:
    """Why a hunk cannot be placed, or None where it stands in one place."""
    if len(found) > 1:
        return RefusalCode.AMBIGUOUS, log.ambiguous(path, index, hunk, lines, found)
    if not found:
        if hunk.new and find_places(lines, Hunk(_as_context(hunk))):
            return RefusalCode.ALREADY_APPLIED, log.already_applied(path, index)
        return RefusalCode.NO_MATCH, log.no_match(path, index, hunk, lines)
    if _stands_already(hunk, lines, found[0]):
        return RefusalCode.ALREADY_APPLIED, log.already_applied(path, index)
    return None


def _as_context(hunk: Hunk) -> tuple[log.Line, ...]:
    return tuple(log.Line(" ", text) for text in hunk.new)


def _stands_already(hunk: Hunk, lines: list[str], place: Place) -> bool:
    """Whether a hunk that only inserts at its edge would repeat lines that stand there already."""
    marks = "".join(line.mark for line in hunk.lines)
    new = [text.rstrip() for text in hunk.new]
    if "-" in marks or " " not in marks:
        return False
    if marks == " " * len(hunk.old) + "+" * (len(new) - len(hunk.old)) and "+" in marks:
        around = lines[place.start : place.start + len(new)]
    elif marks == "+" * (len(new) - len(hunk.old)) + " " * len(hunk.old) and "+" in marks:
        around = lines[max(0, place.end - len(new)) : place.end]
    else:
        return False
    return [text.rstrip() for text in around] == new


def _check_syntax(path: str, before: str | None, after: str | None) -> None:
    if after is None or not path.endswith(".py"):
        return
    if before is not None and _syntax_error(before) is not None:
        return
    error = _syntax_error(after)
    if error is not None:
        raise PatchRefused(RefusalCode.SYNTAX_ERROR, log.syntax_error(path, error, after))


def _syntax_error(source: str) -> SyntaxError | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(source)
    except SyntaxError as error:
        return error
    except (ValueError, RecursionError, MemoryError) as error:
        return SyntaxError(f"{type(error).__name__}: {error}")
    return None
