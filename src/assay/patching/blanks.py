"""Blank lines: answers write them without a marker, leave them out, and put in others."""

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from dataclasses import replace

from assay.patching.effort import Effort
from assay.patching.keys import FileText
from assay.patching.types import Hunk, Line

_MARKED = " "  # the text of a blank line that had a marker, where that is not believed


def with_blanks(hunk: Hunk) -> Iterator[Hunk]:
    """The hunk with its unmarked blank lines as context, then with those among additions added."""
    if any(line.mark == "~" for line in hunk.lines):
        return
    context, new = Line(" ", ""), Line("+", "")
    yield _of(hunk, [context if line.mark == "?" else line for line in hunk.lines])
    among = _among_new(hunk.lines)
    if among:
        lines = [new if k in among else line for k, line in enumerate(hunk.lines)]
        yield _of(hunk, [context if line.mark == "?" else line for line in lines])


def without_edges(hunk: Hunk) -> Hunk | None:
    """The hunk without blank context at its edges; None if there is none, or if only such context
    says where its new lines go."""
    lines = hunk.lines
    solid = [k for k, line in enumerate(lines) if line.mark != " " or line.text.strip()]
    if not solid or (solid[0] == 0 and solid[-1] == len(lines) - 1):
        return None
    kept = lines[solid[0] : solid[-1] + 1]
    if (solid[0] and kept[0].mark == "+") or (solid[-1] < len(lines) - 1 and kept[-1].mark == "+"):
        return None
    return _of(hunk, kept)


def _of(hunk: Hunk, lines: Sequence[Line]) -> Hunk:
    return replace(hunk, lines=tuple(lines))


def _among_new(lines: Sequence[Line]) -> set[int]:
    """The unmarked blank lines with new lines on both sides."""
    found: set[int] = set()
    run: list[int] = []
    before = ""
    for k, line in enumerate(lines):
        if line.mark == "?":
            run.append(k)
            continue
        if before == line.mark == "+":
            found.update(run)
        before, run = line.mark, []
    return found


def loosened(lines: Sequence[Line]) -> Iterator[Line]:
    """The lines, blank ones between others as if they had no marker."""
    solid = [k for k, line in enumerate(lines) if line.text.strip()]
    for k, line in enumerate(lines):
        inside = bool(solid) and solid[0] < k < solid[-1]
        blank = inside and line.mark == " " and not line.text.strip()
        yield Line("?", _MARKED) if blank else line


def place_blanks(file: FileText, hunk: Hunk, at: list[int | None], effort: Effort) -> None:
    """Let blank lines stand for the file's, in order, as far as it has any there.

    Raises Exhausted where looking for them takes too much work.
    """
    blank = [k for k, line in enumerate(hunk.lines) if _is_open_blank(line, at[k])]
    known = [k for k, j in enumerate(at) if j is not None]
    # Those between new lines come last: with too few in the file, they are the new ones.
    among = _among_new(hunk.lines)
    for k in sorted(blank, key=lambda k: (k in among, k)):
        n = bisect_left(known, k)
        low = at[known[n - 1]] if n else None
        high = at[known[n]] if n < len(known) else None
        if low is not None:
            # Behind the last line that stands there, only the very next one may be meant.
            stop = min(low + 2, len(file.lines)) if high is None else high
            at[k] = next((j for j in range(low + 1, stop) if not file.lines[j].strip()), None)
            effort.spend(1 + ((at[k] or stop) - low) // 4)
            if at[k] is not None:
                insort(known, k)
    high = at[known[0]]
    for k in reversed(blank):
        if at[k] is None and k < known[0] and high:
            at[k] = high - 1 if not file.lines[high - 1].strip() else None
            high = at[k] if at[k] is not None else high


def _is_open_blank(line: Line, at: int | None) -> bool:
    return at is None and line.mark in "?-" and not line.text.strip()


def settle_blanks(hunk: Hunk, at: Sequence[int | None]) -> tuple[Hunk, tuple[int | None, ...]]:
    """Read unmarked blank lines: context where they stand, new next to new lines, else dropped."""
    lines: list[Line] = []
    where: list[int | None] = []
    solid = [k for k, line in enumerate(hunk.lines) if line.mark != "?"]
    for k, line in enumerate(hunk.lines):
        mark = line.mark
        if mark == "?":
            n = bisect_left(solid, k)
            inside = 0 < n < len(solid)
            beside = {hunk.lines[m].mark for m in solid[max(0, n - 1) : n + 1]}
            # One that had a marker is no new line, unless it stands between new lines.
            new = beside == {"+"} or ("+" in beside and line.text != _MARKED)
            if at[k] is None and not (inside and new):
                continue
            mark = " " if at[k] is not None else "+"
        lines.append(Line(mark, "" if line.mark == "?" else line.text))
        where.append(at[k])
    return replace(hunk, lines=tuple(lines)), tuple(where)
