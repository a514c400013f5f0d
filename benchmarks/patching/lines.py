"""Texts as lines, and the difference between two of them.

Written again, so that the proof shares no code with what it judges.
"""

from __future__ import annotations

import bisect
import re
from dataclasses import dataclass
from difflib import SequenceMatcher

_TYPOGRAPHIC = str.maketrans(
    {"“": '"', "”": '"', "‘": "'", "’": "'", "–": "-", "—": "-", "…": "...", "\u00a0": " "}
)
_SPACE = re.compile(r"\s+")


def squash(text: str) -> str:
    """A line without white space and typography: all that is compared by the proof."""
    return _SPACE.sub("", text.translate(_TYPOGRAPHIC))


def indent_of(text: str) -> str:
    return text[: len(text) - len(text.lstrip())]


@dataclass(frozen=True)
class Text:
    """A file: lines without ends, the line end, and whether the last line has one."""

    lines: tuple[str, ...]
    newline: str = "\n"
    ends: bool = True

    @classmethod
    def of(cls, text: str) -> Text:
        newline = "\r\n" if "\r\n" in text else "\n"
        ends = text.endswith(newline)
        body = text[: -len(newline)] if ends else text
        return cls(tuple(body.split(newline)) if text else (), newline, ends or not text)

    def __str__(self) -> str:
        if not self.lines:
            return ""
        return self.newline.join(self.lines) + (self.newline if self.ends else "")

    def unterminated(self, index: int) -> bool:
        return not self.ends and index == len(self.lines) - 1


@dataclass(frozen=True)
class Change:
    """Lines [i1, i2) of the base become lines [j1, j2) of the target."""

    i1: int
    i2: int
    j1: int
    j2: int


def _anchors(a: list[str], b: list[str]) -> list[tuple[int, int]]:
    """Lines that stand once on either side, in the longest common order (patience)."""
    places: dict[str, list[list[int]]] = {}
    for side, lines in enumerate((a, b)):
        for index, line in enumerate(lines):
            places.setdefault(line, [[], []])[side].append(index)
    pairs = sorted((x[0], y[0]) for x, y in places.values() if len(x) == len(y) == 1)
    tails: list[int] = []
    chain: list[tuple[int, int]] = []
    parent: list[int] = []
    heads: list[int] = []
    for number, (_, j) in enumerate(pairs):
        rank = bisect.bisect_left(tails, j)
        tails[rank:] = [j, *tails[rank + 1 :]]
        heads[rank:] = [number, *heads[rank + 1 :]]
        parent.append(heads[rank - 1] if rank else -1)
    at = heads[-1] if heads else -1
    while at >= 0:
        chain.append(pairs[at])
        at = parent[at]
    return chain[::-1]


def _between(a: list[str], b: list[str], i0: int, j0: int) -> list[Change]:
    """Changes of two pieces that start at (i0, j0)."""
    start = 0
    while start < min(len(a), len(b)) and a[start] == b[start]:
        start += 1
    stop = 0
    while stop < min(len(a), len(b)) - start and a[-1 - stop] == b[-1 - stop]:
        stop += 1
    a, b = a[start : len(a) - stop], b[start : len(b) - stop]
    i0, j0 = i0 + start, j0 + start
    if not a and not b:
        return []
    if not a or not b:
        return [Change(i0, i0 + len(a), j0, j0 + len(b))]
    found: list[Change] = []
    anchors = _anchors(a, b)
    if not anchors:
        for tag, i1, i2, j1, j2 in SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
            if tag != "equal":
                found.append(Change(i0 + i1, i0 + i2, j0 + j1, j0 + j2))
        return found
    i, j = 0, 0
    for x, y in [*anchors, (len(a), len(b))]:
        found += _between(a[i:x], b[j:y], i0 + i, j0 + j)
        i, j = x + 1, y + 1
    return found


def changes(base: Text, target: Text) -> list[Change]:
    """What turns `base` into `target`; a last line without a line end equals none that has one."""

    def keys(text: Text) -> list[str]:
        found = list(text.lines)
        if found and not text.ends:
            found[-1] += "\0"
        return found

    merged: list[Change] = []
    for change in _between(keys(base), keys(target), 0, 0):
        if merged and merged[-1].i2 == change.i1 and merged[-1].j2 == change.j1:
            last = merged.pop()
            change = Change(last.i1, change.i2, last.j1, change.j2)
        merged.append(change)
    return merged
