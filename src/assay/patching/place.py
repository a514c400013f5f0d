"""Find the one place where a hunk's old text stands, and turn the hunk into edits of lines."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from assay.patching.types import Hunk, Line, Tier


@dataclass(frozen=True)
class Edit:
    """Replace lines `[start, end)` of the file by `lines`; `start == end` inserts."""

    start: int
    end: int
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Place:
    """One place of a hunk: the span `[start, end)` it matched, and the edits it means there."""

    start: int
    end: int
    tier: Tier
    edits: tuple[Edit, ...]


def find_places(lines: list[str], hunk: Hunk, *, exact_only: bool = False) -> list[Place]:
    """All places at the strictest tier that has any; a tie never falls through to a looser one."""
    tiers = (_exact,) if exact_only else (_exact, _trailing, _blank)
    for tier in tiers:
        places = list(tier(lines, hunk))
        if places:
            return places
    return []


def apply_edits(lines: list[str], edits: Iterable[Edit]) -> list[str]:
    """The lines after edits that do not overlap."""
    result: list[str] = []
    at = 0
    for edit in sorted(edits, key=lambda e: (e.start, e.end)):
        result += lines[at : edit.start]
        result += edit.lines
        at = edit.end
    return result + lines[at:]


def clash(one: Edit, other: Edit) -> bool:
    """Whether the outcome of two edits depends on their order, or their lines overlap."""
    if one.start == one.end or other.start == other.end:
        return max(one.start, other.start) <= min(one.end, other.end)
    return max(one.start, other.start) < min(one.end, other.end)


def _exact(lines: list[str], hunk: Hunk) -> Iterator[Place]:
    for start in _starts(lines, hunk.old):
        yield _aligned(hunk, start, "exact")


def _trailing(lines: list[str], hunk: Hunk) -> Iterator[Place]:
    old = [text.rstrip() for text in hunk.old]
    for start in _starts([text.rstrip() for text in lines], old):
        fitted = _with_endings(hunk, lines[start : start + len(old)])
        yield _aligned(fitted, start, "trailing_whitespace")


def _starts(lines: list[str], old: list[str]) -> Iterator[int]:
    size = len(old)
    if not size:
        # Lines without any context have one place in an empty file, and any place in another.
        yield from range(min(len(lines) + 1, 2))
        return
    for i in range(len(lines) - size + 1):
        if lines[i] == old[0] and lines[i : i + size] == old:
            yield i


def _with_endings(hunk: Hunk, standing: list[str]) -> Hunk:
    """Give added lines the carriage returns that the lines around them have."""
    if not standing:
        return hunk
    file_cr = all(text.endswith("\r") for text in standing)
    hunk_cr = all(text.endswith("\r") for text in hunk.old)
    if file_cr == hunk_cr:
        return hunk
    end = "\r" if file_cr else ""
    return Hunk(
        tuple(
            Line("+", line.text.removesuffix("\r") + end) if line.mark == "+" else line
            for line in hunk.lines
        ),
        hunk.ends_bare,
    )


def _aligned(hunk: Hunk, start: int, tier: Tier) -> Place:
    """Edits of a hunk whose old lines stand one for one from `start` on."""
    edits: list[Edit] = []
    at = first = start
    added: list[str] = []
    open_run = False
    for line in (*hunk.lines, Line(" ", "")):  # the last one only closes the run
        if line.mark == " ":
            if open_run:
                edits.append(Edit(first, at, tuple(added)))
            at += 1
            open_run, first, added = False, at, []
            continue
        open_run = True
        if line.mark == "-":
            at += 1
        else:
            added.append(line.text)
    return Place(start, start + len(hunk.old), tier, tuple(edits))


def _blank(lines: list[str], hunk: Hunk) -> Iterator[Place]:
    """Places where only blank lines differ, for hunks with two other lines to hold on to."""
    wanted = [text.rstrip() for text in hunk.old if text.strip()]
    if len(wanted) < 2:
        return
    filled = [i for i, text in enumerate(lines) if text.strip()]
    for k in _starts([lines[i].rstrip() for i in filled], wanted):
        span = filled[k : k + len(wanted)]
        start, end = span[0], span[-1] + 1
        fitted = _with_endings(hunk, [lines[i] for i in span])
        new = _woven(lines, fitted, span)
        yield Place(start, end, "blank_lines", (Edit(start, end, tuple(new)),))


def _woven(lines: list[str], hunk: Hunk, span: list[int]) -> list[str]:
    """The new text of a span: the file's own blank lines stay, except between removed lines."""
    new: list[str] = []
    matched = 0  # how many non-blank old lines were passed
    at = span[0]  # the next line of the file not yet decided on
    removing = False
    for line in hunk.lines:
        if line.mark == "+":
            new.append(line.text)
            continue
        if not line.text.strip():
            upto = span[matched] if 0 < matched < len(span) else at
            if line.mark == " ":
                new += lines[at:upto]
            at = upto
            continue
        target = span[matched]
        if not (removing and line.mark == "-"):
            new += lines[at:target]
        if line.mark == " ":
            new.append(lines[target])
        removing = line.mark == "-"
        at, matched = target + 1, matched + 1
    return new
