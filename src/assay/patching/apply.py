"""Apply an answer to a tree: all of it or nothing."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from assay.patching import gates, log, paths
from assay.patching.effort import Effort, Exhausted
from assay.patching.habits import as_files_write, newline_style
from assay.patching.keys import FileText, plain, squash
from assay.patching.locate import Locator, Outcome, Placed
from assay.patching.parse import parse_answer
from assay.patching.resolve import resolved
from assay.patching.text import join_file
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
from assay.patching.wrapper import has_returns, unwrapped

MAX_ANSWER_BYTES = 1 << 20
MAX_ANSWER_LINES = 40_000
MAX_FILES = 100
MAX_HUNKS = 1_000
_PARSED = 4  # characters that are parsed in one step of effort


def apply_answer(
    files: dict[str, str],
    answer: str,
    *,
    protected: Sequence[str] = (),
    symlinks: Mapping[str, str] | None = None,
) -> PatchResult:
    """Carry out the edits of `answer` on `files`, a whole tree of `{path: text}`.

    Reads unified diffs, V4A patches and SEARCH/REPLACE blocks. A hunk is placed by its content:
    where its old lines stand line for line, as written or apart from whitespace, else where their
    best alignment with the file puts them. It is applied only if no other place gives another
    result. `protected` are globs (or folders) no edit may touch; `symlinks` maps links of the tree
    to their targets. `files` itself is not changed.

    Raises PatchRefused, and nothing else, with a log a model can act on. A hunk whose result
    stands at its place already is refused as `already_applied`, not skipped: an answer that
    repeats part of the codebase was written against another state of it.
    """
    _check_size(answer)
    lines = unwrapped(answer)
    if len(lines) > MAX_ANSWER_LINES:
        raise _too_large(f"{MAX_ANSWER_LINES} lines")
    apply = partial(_apply, lines, protected, symlinks or {})
    result = apply(files)
    if _adds_again(apply, result.files):
        raise PatchRefused(RefusalCode.AMBIGUOUS, log.again())
    return result


def _apply(
    lines: list[str],
    protected: Sequence[str],
    symlinks: Mapping[str, str],
    files: dict[str, str],
) -> PatchResult:
    """Carry out an unwrapped answer, whether or not it could be carried out once more."""
    parsed = parse_answer(lines, files)
    if len(parsed.sections) > MAX_HUNKS or sum(len(s.hunks) for s in parsed.sections) > MAX_HUNKS:
        raise _too_large(f"{MAX_HUNKS} hunks")
    names = {(raw.old, raw.new) for raw in parsed.sections}
    if len(names) > MAX_FILES:
        raise _too_large(f"edits of {MAX_FILES} files")
    sections = resolved(parsed.sections, files, protected, symlinks)
    sections = as_files_write(files, sections, noisy=has_returns(lines))
    gates.check_placeholders(sections)
    after = dict(files)
    effort = Effort()
    records = tuple(_apply_section(section, files, after, effort) for section in sections)
    _check_beside(records, after)
    if after == files:
        raise _no_change(sections)
    return PatchResult(after, PatchReport(records, parsed.formats))


def _check_size(answer: str) -> None:
    if len(answer) > MAX_ANSWER_BYTES or len(answer.encode("utf-8", "replace")) > MAX_ANSWER_BYTES:
        raise _too_large(f"{MAX_ANSWER_BYTES} bytes")
    if "\0" in answer:
        raise PatchRefused(RefusalCode.MALFORMED, "The answer holds a NUL character.")
    if not answer.isascii() and any("\ud800" <= char <= "\udfff" for char in answer):
        raise PatchRefused(RefusalCode.MALFORMED, "The answer holds half of a surrogate pair.")


def _too_large(limit: str) -> PatchRefused:
    return PatchRefused(
        RefusalCode.TOO_LARGE,
        f"The answer holds more than {limit}. Send only what changes.",
    )


def _adds_again(apply: Callable[[dict[str, str]], PatchResult], once: Mapping[str, str]) -> bool:
    """Whether the same answer could be applied to its own result, and would add to it.

    Then the codebase itself may be such a result, and nothing tells that it is not. The answer is
    read anew for it: which file a name means, which unmarked lines belong to a hunk, and how
    lines end is understood by the files, and those have changed.
    """
    try:
        twice = apply(dict(once)).files
    except PatchRefused:
        return False
    return any(
        Counter(text.split("\n")) - Counter(once.get(path, "").split("\n"))
        for path, text in twice.items()
        if text != once.get(path)
    )


def _no_change(sections: Sequence[Section]) -> PatchRefused:
    if any(hunk.changes for section in sections for hunk in section.hunks):
        return PatchRefused(RefusalCode.ALREADY_APPLIED, log.all_stands())
    return PatchRefused(
        RefusalCode.NO_CHANGE,
        "The edits leave every file as it was. Send the change the idea asks for.",
    )


def _check_beside(records: Sequence[FileRecord], after: Mapping[str, str]) -> None:
    """Two new files of one answer must not be in each other's way."""
    for record in records:
        if record.change in ("created", "renamed"):
            paths.check_beside(record.path, (name for name in after if name != record.path))


def _apply_section(
    section: Section, files: Mapping[str, str], after: dict[str, str], effort: Effort
) -> FileRecord:
    if section.action == "create":
        return _create(section, files, after)
    path = section.source or section.path
    if path not in files:
        raise PatchRefused(RefusalCode.UNKNOWN_FILE, log.unknown_file(path, files))
    if section.action == "delete":
        return _delete(section, files, after)
    if section.action == "rename":
        if section.path in files:
            raise PatchRefused(RefusalCode.FILE_EXISTS, log.file_exists(section.path))
        del after[path]
    file = FileText.of(files[path])
    try:
        outcome = Locator(path, file, section.hunks, effort).outcome()
        after[section.path] = _result(section, file, files[path], outcome, effort)
    except Exhausted:
        raise PatchRefused(RefusalCode.TOO_LARGE, log.too_much_work(path)) from None
    records = tuple(_record(section.hunks[p.index - 1], p) for p in outcome.placed)
    if section.action == "rename":
        return FileRecord(section.path, "renamed", records, path)
    return FileRecord(path, "edited", records)


def _result(
    section: Section, file: FileText, before: str, outcome: Outcome, effort: Effort
) -> str:
    """The file's new text.

    Where the indentation of new lines is open, the one reading under which a Python file parses;
    typographic quotes in new code are read as the plain ones if it parses only so.
    """
    final_newline = _final_newline(section, file, outcome)
    loose = any(placed.reading.fit.tier != "exact" for placed in outcome.placed)
    with_returns = newline_style(before) == "\r" and before[-1] not in "\r\n"
    if loose and with_returns:
        for lines in (outcome.lines, *outcome.others):
            _end_with_returns(lines, file.lines[-1], final_newline=final_newline)
    texts = [join_file(lines, final_newline) for lines in (outcome.lines, *outcome.others)]
    texts = list(dict.fromkeys(texts))
    error = gates.syntax_error(section.path, before, texts[0])
    if len(texts) > 1:
        effort.spend(sum(len(before) + len(text) for text in texts) // _PARSED)
        whole = [t for t in texts if gates.syntax_error(section.path, before, t) is None]
        if len(whole) > 1 or not section.path.endswith(".py"):
            raise PatchRefused(RefusalCode.AMBIGUOUS, log.open_indentation(section.path))
        texts = whole or texts
        error = None if whole else error
    if error is not None and before.isascii() and plain(texts[0]) != texts[0]:
        text = plain(texts[0])
        if gates.syntax_error(section.path, before, text) is None:
            return text
    if error is not None:
        text = log.syntax_error(section.path, error, texts[0])
        raise PatchRefused(RefusalCode.SYNTAX_ERROR, text)
    return texts[0]


def _end_with_returns(lines: list[str], last: str, *, final_newline: bool) -> None:
    """What was the last line, without a newline, has a carriage return now if it is not any more;
    the new last line has none if it has no newline."""
    for i, line in enumerate(lines[:-1]):
        if line == last:
            lines[i] = line + "\r"
    if lines and not final_newline:
        lines[-1] = lines[-1].removesuffix("\r")


def _final_newline(section: Section, file: FileText, outcome: Outcome) -> bool:
    """What the hunks that reach the file's end say of its last newline, else what it had."""
    final = file.final_newline
    for placed in outcome.placed:
        hunk = section.hunks[placed.index - 1]
        at_end = placed.late or placed.reading.fit.end >= len(file.lines)
        if hunk.ends_bare is not None and at_end:
            final = not hunk.ends_bare
    return final


def _create(section: Section, files: Mapping[str, str], after: dict[str, str]) -> FileRecord:
    path = section.path
    hunks = section.hunks
    lines = [text for hunk in hunks for text in hunk.new]
    bare = bool(hunks) and hunks[-1].ends_bare is True
    text = join_file(lines, not bare)
    if path in files:
        if _bare(files[path]) == _bare(text):
            raise PatchRefused(RefusalCode.ALREADY_APPLIED, log.created_already(path))
        raise PatchRefused(RefusalCode.FILE_EXISTS, log.file_exists(path))
    if any(text.strip() for hunk in hunks for text in hunk.old):
        raise PatchRefused(
            RefusalCode.MALFORMED,
            f"`{path}` is a new file: every one of its lines must start with `+`.",
        )
    if any(hunk.cut == "yes" for hunk in hunks):
        raise PatchRefused(RefusalCode.TRUNCATED, log.truncated(path, len(hunks)))
    error = gates.syntax_error(path, None, text)
    if error is not None:
        raise PatchRefused(RefusalCode.SYNTAX_ERROR, log.syntax_error(path, error, text))
    after[path] = text
    records = tuple(
        HunkRecord(i, 1, "whole_file", 0, len(hunk.new)) for i, hunk in enumerate(hunks, 1)
    )
    return FileRecord(path, "created", records)


def _bare(text: str) -> str:
    return text.replace("\r", "").rstrip("\n")


def _delete(section: Section, files: Mapping[str, str], after: dict[str, str]) -> FileRecord:
    """Delete a file; the removed lines, where there are any, must be all of its lines."""
    path = section.path
    told = [squash(text) for hunk in section.hunks for text in hunk.old]
    real = [squash(text) for text in files[path].split("\n")]
    stays = any(line.mark == "+" for hunk in section.hunks for line in hunk.lines)
    if section.hunks and (stays or list(filter(None, told)) != list(filter(None, real))):
        raise PatchRefused(
            RefusalCode.NO_MATCH,
            f"`{path}` is to be deleted, but the removed lines are not all of its lines. "
            "Send the header alone (`deleted file mode 100644`), or all of its lines with `-`.",
        )
    del after[path]
    return FileRecord(path, "deleted", ())


def _record(hunk: Hunk, placed: Placed) -> HunkRecord:
    removed = sum(line.mark == "-" for line in hunk.lines)
    added = sum(line.mark == "+" for line in hunk.lines)
    fit = placed.reading.fit
    return HunkRecord(
        placed.index, fit.start + 1, fit.tier, removed, added, placed.late, fit.score
    )
