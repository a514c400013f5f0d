"""Take the wrapping off an answer: line endings, line-number gutters, a common indentation."""

import re
from collections.abc import Iterator
from itertools import pairwise

_GUTTER = re.compile(r"\s{0,6}(\d{1,6})(?: ?[|:] ?|\t| |$)")
_HEADER = re.compile(r"(?:--- |\+\+\+ |@@ ?|diff --git |\*\*\* (?:Begin|Update|Add|Delete) )")
_BEFORE_HEADER = re.compile(
    r"^([ \t>]+)(?:--- \S|\+\+\+ \S|diff --git |\*\*\* Begin Patch|<{5,9} SEARCH)"
)
# Headers that no line of a hunk looks like.
_SURE = ("@@", "diff --git ", "*** ", "<<<<<<<")
# Markers as a word processor sets them.
_MARKS = {"\u2212": "-", "\u2013": "-", "\uff0b": "+", "\u00a0": " ", "\ufeff": ""}


def unwrapped(answer: str) -> list[str]:
    """The lines of an answer as its author meant them."""
    if answer.lstrip().startswith("<think>"):
        answer = answer.rpartition("</think>")[2]
    lines = _without_returns(answer.split("\n"))
    lines = _without_gutter(lines)
    return _without_indent(lines)


def with_plain_markers(lines: list[str]) -> list[str]:
    """The lines of a diff with markers as a keyboard has them."""
    return [_MARKS.get(line[:1], line[:1]) + line[1:] for line in lines]


def _without_returns(lines: list[str]) -> list[str]:
    """Strip carriage returns that the headers have too: they belong to the wrapping.

    Where only the lines of hunks have them, they belong to the files.
    """
    headers = [line for line in lines if line.startswith(_SURE)]
    headers = headers or [line for line in lines if line]
    if headers and all(line.endswith("\r") for line in headers):
        return [line.removesuffix("\r") for line in lines]
    return lines


def has_returns(lines: list[str]) -> bool:
    """Whether some header ends with a carriage return although not all of them do."""
    return any(line.endswith("\r") and line.startswith(_SURE) for line in lines)


def _without_gutter(lines: list[str]) -> list[str]:
    """Strip line numbers, if nearly all lines between the first header and the last have one."""
    numbered = [_GUTTER.match(line) for line in lines]
    headed = [
        i
        for i, hit in enumerate(numbered)
        if hit and _HEADER.match(lines[i][hit.end() :].lstrip())
    ]
    if not headed:
        return lines
    body = [hit for hit, line in zip(numbered, lines, strict=True) if line.strip()][headed[0] :]
    numbers = [int(hit[1]) for hit in body if hit]
    rising = sum(other == one + 1 for one, other in pairwise(numbers))
    if len(numbers) < 0.6 * len(body) or rising < 0.6 * (len(numbers) - 1):
        return lines
    width = _column(lines, numbered, headed)
    bare = [_cut(line, hit, width) for line, hit in zip(lines, numbered, strict=True)]
    return list(_even(bare))


def _even(lines: list[str]) -> Iterator[str]:
    """Undo a second column behind the gutter, of headers and of hunks that have it throughout."""
    lines = [line.lstrip() if _HEADER.match(line.lstrip()) else line for line in lines]
    starts = [i for i, line in enumerate(lines) if _HEADER.match(line.lstrip(" +"))]
    yield from lines[: starts[0]] if starts else lines
    for start, end in pairwise([*starts, len(lines)]):
        hunk = [line for line in lines[start + 1 : end] if line.strip()]
        wide = all(line[0] == " " for line in hunk) and any(line[1:2] in "+-" for line in hunk)
        yield lines[start]
        yield from (line[1:] if wide else line for line in lines[start + 1 : end])


def _column(
    lines: list[str], numbered: list[re.Match[str] | None], headed: list[int]
) -> int | None:
    """The column at which headers with a short number start, where that is padded to a width."""
    hits = [(i, hit) for i in headed if (hit := numbered[i]) is not None]
    shortest = min(len(hit[1]) for _, hit in hits)
    columns = set()
    padded = False
    for i, hit in hits:
        if len(hit[1]) == shortest:
            rest = lines[i][hit.end() :]
            columns.add(len(lines[i]) - len(rest.lstrip()))
            padded = padded or rest != rest.lstrip()
    return columns.pop() if len(columns) == 1 and padded else None


def _cut(line: str, hit: re.Match[str] | None, width: int | None) -> str:
    if hit is None:
        return line
    if width is not None and not line[hit.end() : width].strip():
        return line[max(width, hit.end()) :]
    return line[hit.end() :]


def _without_indent(lines: list[str]) -> list[str]:
    """Take off an indentation that every header has, as in a list item or a quotation."""
    if any(_HEADER.match(line) or line.startswith("<<<<<<< ") for line in lines):
        return lines
    hits = [hit for line in lines if (hit := _BEFORE_HEADER.match(line))]
    if not hits:
        return lines
    prefix = min((hit[1] for hit in hits), key=len)
    blank = prefix.rstrip()
    return [
        line.removeprefix(prefix) if line.startswith(prefix) else line.removeprefix(blank)
        for line in lines
    ]
