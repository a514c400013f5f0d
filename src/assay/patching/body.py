"""Where a hunk's lines end, and what each of them is."""

import re
from collections.abc import Set
from difflib import SequenceMatcher
from typing import NamedTuple

from assay.patching.markers import (
    ENVELOPE,
    ENVELOPE_END,
    EXTENDED,
    GIT,
    Numbers,
    header_name,
    is_ellipsis,
    is_no_newline,
    without_note,
)
from assay.patching.types import Line, Mark

_MARKS: dict[str, Mark] = {" ": " ", "-": "-", "+": "+"}
_OLD_NAME = re.compile(r"^---[ \t]*[^-\s]")
_NEW_NAME = re.compile(r"^\+\+\+[ \t]*[^+\s]")
_VERSION = re.compile(r"^\d+\.\d[\w.]*\s*$")
_LOOK_AHEAD = 12
_LONGEST_LIST = 40
_MAX_MATCHED = 40_000


class Body(NamedTuple):
    """A hunk's lines, and the index of the first line behind it."""

    lines: tuple[Line, ...]
    ends_bare: bool | None
    end: int


def is_fence(line: str) -> bool:
    return line.startswith(("```", "~~~"))


class Bodies:
    """Reads hunks out of the lines of an answer."""

    def __init__(self, lines: list[str]) -> None:
        self.lines = lines

    def is_pair(self, at: int) -> bool:
        """Whether a `---` line and a `+++` line follow each other."""
        pair = self.lines[at : at + 2]
        if len(pair) < 2 or not (_OLD_NAME.match(pair[0]) and _NEW_NAME.match(pair[1])):
            return False
        spaced = pair[0][3] in " \t" and pair[1][3] in " \t"
        return spaced or self.lines[at + 2 : at + 3] == [] or self.lines[at + 2].startswith("@@")

    def is_single(self, at: int) -> bool:
        """Whether one of the two lines stands alone before an `@@` line."""
        return (
            at + 1 < len(self.lines)
            and self.lines[at].startswith(("--- ", "+++ "))
            and self.lines[at + 1].startswith("@@")
        )

    def _is_header(self, at: int) -> bool:
        """Whether a pair names files, and is not a removed `-- x` before an added `++ y`."""
        follows = self.lines[at + 2 : at + 3]
        return (bool(follows) and follows[0].startswith("@@")) or self._names_files(at)

    def _names_files(self, at: int) -> bool:
        names = (without_note(header_name(line)) for line in self.lines[at : at + 2])
        return all(" " not in name and ("." in name or "/" in name) for name in names)

    def _is_signature(self, at: int) -> bool:
        """Whether `-- ` starts the version that `git format-patch` ends with."""
        rest = [line for line in self.lines[at + 1 : at + 4] if line.strip()]
        return bool(rest) and _VERSION.match(rest[0]) is not None

    def is_boundary(self, at: int) -> bool:
        """Whether no hunk goes on at this line."""
        if at >= len(self.lines):
            return True
        line = self.lines[at]
        if line[:1] in ("-", "+"):
            if line.rstrip() == "--" and self._is_signature(at):
                return True
            if line[1:].lstrip(" +").startswith("--- ") and self.is_single(at + 1):
                return True  # the first half of a header, torn
            return self.is_single(at) or (self.is_pair(at) and self._is_header(at))
        return (
            line.startswith(("@@", "<<<<<<< ", "Index: ", "====================", *ENVELOPE_END))
            or is_fence(line)
            or any(pattern.match(line) for pattern in (GIT, ENVELOPE, EXTENDED))
        )

    def read(self, at: int, numbers: Numbers | None, known: Set[str], *, fenced: bool) -> Body:
        """The hunk whose first line is `at`; `known` are the lines of its file.

        The numbers of its `@@` line are believed if they fit, else the lines themselves tell.
        """
        counted = self._counted(at, numbers, known, fenced) if numbers is not None else None
        raw, end = counted or self._by_content(at, known, fenced=fenced)
        return _body(raw, end, known)

    def _counted(
        self, at: int, numbers: Numbers, known: Set[str], fenced: bool
    ) -> tuple[list[str], int] | None:
        old, new = numbers.old, numbers.new
        body: list[str] = []
        while at < len(self.lines) and (old > 0 or new > 0 or self.lines[at].startswith("\\")):
            line = self.lines[at]
            if line[:1] not in _MARKS and not line.startswith("\\"):
                return None
            if line.startswith("---") and self.is_pair(at) and self._names_files(at):
                return None
            old -= line[:1] in (" ", "-")
            new -= line[:1] in (" ", "+")
            body.append(line)
            at += 1
        if old or new or not body or not self._may_end(at, known, fenced):
            return None
        return body, at

    def _may_end(self, at: int, known: Set[str], fenced: bool) -> bool:
        """Whether what follows does not look like more of the same hunk."""
        opened = at
        while at < len(self.lines) and not self.lines[at].strip():
            at += 1
        if self.is_boundary(at):
            return True
        line = self.lines[at]
        if at > opened and not fenced and line[:1] == "-" and line[1:].rstrip() not in known:
            return True  # a list, or a rule across the page
        return self.lines[at][:1] not in _MARKS and self._is_prose(at, known, fenced=fenced)

    def _by_content(self, at: int, known: Set[str], *, fenced: bool) -> tuple[list[str], int]:
        body: list[str] = []
        while not self.is_boundary(at):
            line = self.lines[at]
            if self._is_prose(at, known, fenced=fenced):
                break
            body.append(line)
            at += 1
        while body and not body[-1].strip("\r"):
            body.pop()
        return body, at

    def _is_prose(self, at: int, known: Set[str], *, fenced: bool) -> bool:
        """Whether the hunk ended before this line, which is text between hunks."""
        line = self.lines[at]
        if not line.strip() or line[:1] in ("+", " ", "\\") or line.rstrip() in known:
            return False
        if line[:1] == "-":
            return not fenced and self._is_list(at, known)
        if is_ellipsis(line):
            return False
        for next_at in range(at + 1, at + _LOOK_AHEAD):
            if self.is_boundary(next_at):
                return True
            if self.lines[next_at][:1] == "+" or self._is_removal(next_at, known):
                return False
        return True

    def _is_removal(self, at: int, known: Set[str]) -> bool:
        line = self.lines[at]
        return line[:1] == "-" and line[1:].strip() != "" and line[1:].rstrip() in known

    def _is_list(self, at: int, known: Set[str]) -> bool:
        """Whether a list in prose starts here: after a blank line, `- ` to the end."""
        if at and self.lines[at - 1].strip():
            return False
        for here in range(at, at + _LONGEST_LIST):
            if self.is_boundary(here):
                break
            line = self.lines[here]
            if line.strip() and (line[:2] != "- " or line[1:].rstrip() in known):
                return False
        return True


def _body(raw: list[str], end: int, known: Set[str]) -> Body:
    lines: list[Line] = []
    bare: set[str] = set()
    for text in raw:
        if is_no_newline(text) and text.rstrip() not in known:
            if lines:
                bare.add(lines[-1].mark)
            continue
        lines.append(_line(text, known))
    ends_bare: bool | None = None
    if bare == {"+"} or bare == {"-"}:
        # Said of both sides it changes nothing.
        ends_bare = "+" in bare
    return Body(tuple(without_no_ops(_trimmed(lines))), ends_bare, end)


def _line(raw: str, known: Set[str]) -> Line:
    if raw[:1] in ("+", "-"):
        return Line(_MARKS[raw[0]], raw[1:])
    if not raw.strip(" \t\r"):
        # git writes a blank context line as one space; without it the marker may be lost.
        return Line(" ", raw[1:]) if raw[:1] == " " else Line("?", "")
    text = raw[1:] if raw[0] == " " else raw
    if text.rstrip() not in known:
        if raw.rstrip() in known:
            text = raw
        elif is_ellipsis(raw):
            return Line("~", "")
    return Line(" ", text)


def _trimmed(lines: list[Line]) -> list[Line]:
    """Without unmarked blank lines at either end: they belong to the answer, not to the file."""
    start, end = 0, len(lines)
    while start < end and lines[start].mark == "?":
        start += 1
    while end > start and lines[end - 1].mark == "?":
        end -= 1
    return lines[start:end]


def without_no_ops(lines: list[Line]) -> list[Line]:
    """Lines that are removed and added again unchanged become context."""
    result: list[Line] = []
    at = 0
    while at < len(lines):
        end = at
        while end < len(lines) and lines[end].mark in "+-":
            end += 1
        if end == at:
            result.append(lines[at])
            at += 1
            continue
        result += _settled(lines[at:end])
        at = end
    return result


def _settled(run: list[Line]) -> list[Line]:
    old = [line.text for line in run if line.mark == "-"]
    new = [line.text for line in run if line.mark == "+"]
    if not set(old) & set(new):
        return run
    if len(old) * len(new) > _MAX_MATCHED:
        return _edges_settled(old, new)
    result: list[Line] = []
    matcher = SequenceMatcher(None, old, new, autojunk=False)
    for tag, i1, i2, j1, j2 in matcher.get_opcodes():
        if tag == "equal":
            result += [Line(" ", text) for text in old[i1:i2]]
            continue
        result += [Line("-", text) for text in old[i1:i2]]
        result += [Line("+", text) for text in new[j1:j2]]
    return result


def _edges_settled(old: list[str], new: list[str]) -> list[Line]:
    """As `_settled`, but for equal lines at the two ends only: long runs would take too long."""
    head = 0
    while head < min(len(old), len(new)) and old[head] == new[head]:
        head += 1
    tail = 0
    while tail < min(len(old), len(new)) - head and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    return [
        *(Line(" ", text) for text in old[:head]),
        *(Line("-", text) for text in old[head : len(old) - tail]),
        *(Line("+", text) for text in new[head : len(new) - tail]),
        *(Line(" ", text) for text in old[len(old) - tail :]),
    ]
