"""The generator's own proof that a damaged answer still determines one right result.

It knows the true place of every line and asks what a careful reader, with nothing but the base
files and the answer, could take for another reading. Headers count for nothing: neither their
numbers nor the names of definitions in them. A case that leaves a doubt is dropped.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from functools import lru_cache
from itertools import pairwise

from benchmarks.patching.lines import Text, indent_of, squash
from benchmarks.patching.model import Document, Hunk, Layout, Row, Section, Tree

# A damaged piece needs this much more agreement at its true place than anywhere else.
MARGIN = 2.0
MARGIN_SHARE = 0.25
# Within this many lines the neighbours that pin an insertion of a damaged piece stand once.
NEIGHBOURHOOD = 15
# A jump over more lines than this splits a piece in two, each of which is proven alone.
LARGEST_HOLE = 2
NULL = "/dev/null"


class Broken(Exception):
    """The generator lost track of what its own answer means: a fault of the corpus."""


@lru_cache(maxsize=512)
def _index(text: Text) -> dict[str, tuple[int, ...]]:
    """Where each line stands, white space aside."""
    found: dict[str, list[int]] = defaultdict(list)
    for number, line in enumerate(text.lines):
        found[squash(line)].append(number)
    return {line: tuple(numbers) for line, numbers in found.items()}


def weight(squashed: str) -> float:
    """What a line says about a place: a bracket or `else:` says little, a blank line nothing."""
    if not squashed:
        return 0.0
    return 0.5 if len(re.sub(r"\W", "", squashed)) < 5 else 1.0


def survives(row: Row) -> bool:
    return row.at is not None and row.note == "" and squash(row.text) == squash(row.true)


def replay(section: Section) -> tuple[str, ...]:
    """The target as the true places say."""
    gone: set[int] = set()
    come: dict[int, list[str]] = defaultdict(list)
    for rows in dict.fromkeys(hunk.rows for hunk in section.hunks):
        for row in rows:
            if row.mark == "-" and row.at is not None:
                gone.add(row.at)
            elif row.mark == "+" and row.at is not None:
                come[row.at].append(row.true)
    lines: list[str] = []
    for number, line in enumerate(section.base.lines):
        lines += come[number]
        if number not in gone:
            lines.append(line)
    return tuple(lines + come[len(section.base.lines)])


def pieces(hunk: Hunk) -> list[list[Row]]:
    """A hunk split where it jumps: at dots, or where hunks were fused; only what changes."""
    found: list[list[Row]] = [[]]
    last: int | None = None
    for row in hunk.rows:
        jump = row.old and row.at is not None and last is not None
        if row.note == "elided" or (
            jump and not 0 < (row.at or 0) - (last or 0) <= LARGEST_HOLE + 1
        ):
            found.append([])
            last = None
        if row.note == "elided":
            continue
        found[-1].append(row)
        if row.old and row.at is not None:
            last = row.at
    return [piece for piece in found if any(row.mark != " " for row in piece)]


def _expected(piece: list[Row]) -> list[tuple[int, Row]]:
    """Old rows with the base line where they are, or would be."""
    at = next((row.at for row in piece if row.at is not None), 0) or 0
    first = next(
        (n for n, row in enumerate(row for row in piece if row.old) if row.at is not None), 0
    )
    at -= first
    found = []
    for row in piece:
        if not row.old:
            continue
        at = row.at if row.at is not None else at
        found.append((at, row))
        at += 1
    return found


def _holes(piece: list[Row]) -> int:
    ats = [row.at for row in piece if row.old and row.at is not None]
    return sum(b - a - 1 for a, b in pairwise(ats))


def _damaged(piece: list[Row]) -> bool:
    return _holes(piece) > 0 or any(row.old and not survives(row) for row in piece)


def _elsewhere(piece: list[Row], base: Text, slack: int) -> float:
    """The most agreement at any other offset, each line up to `slack` lines off."""
    votes: Counter[int] = Counter()
    for at, row in _expected(piece):
        text = squash(row.text)
        if not text or row.note == "after":
            continue
        offsets = {
            place - at + drift
            for place in _index(base).get(text, ())
            if place != row.at
            for drift in range(-slack, slack + 1)
        }
        for offset in offsets:
            if offset or slack:
                votes[offset] += int(2 * weight(text))
    return max(votes.values(), default=0) / 2


def _place(piece: list[Row], base: Text) -> str:
    """Whether the piece fits nowhere else, or nearly."""
    damaged = _damaged(piece)
    texts = [(row, weight(squash(row.text))) for _, row in _expected(piece)]
    here = sum(each for row, each in texts if survives(row))
    total = sum(each for row, each in texts if row.note != "after")
    slack = _holes(piece) + sum(not survives(row) for row, _ in texts) + 1 if damaged else 0
    other = _elsewhere(piece, base, slack)
    if here == 0:
        return "nothing of the old text survives"
    if not damaged:
        return "" if here - other >= 0.5 else "fits elsewhere as well"
    if here < 0.6 * total or here < 2:
        return "too little of the old text survives"
    return (
        ""
        if here - other >= max(MARGIN, MARGIN_SHARE * total)
        else "fits elsewhere nearly as well"
    )


def _near(base: Text, at: int, text: str) -> int:
    """How often a line stands around a place."""
    return sum(abs(place - at) <= NEIGHBOURHOOD for place in _index(base).get(text, ()))


def _strong(row: Row | None, at: int, base: Text, damaged: bool) -> bool:
    """Whether a neighbour pins an insertion: unharmed, not blank, not repeated close by."""
    if row is None or not survives(row) or row.at != at:
        return False
    text = squash(row.text)
    return bool(text) and (not damaged or _near(base, at, text) == 1)


def _pins(piece: list[Row], base: Text) -> str:
    """Whether every change is held in its place by what is next to it."""
    damaged = _damaged(piece)
    number = 0
    while number < len(piece):
        if piece[number].mark == " ":
            number += 1
            continue
        stop = number
        while stop < len(piece) and piece[stop].mark != " ":
            stop += 1
        reason = _pinned(piece, number, stop, base, damaged)
        if reason:
            return reason
        number = stop
    return ""


def _pinned(piece: list[Row], start: int, stop: int, base: Text, damaged: bool) -> str:
    group = piece[start:stop]
    removed = [row for row in group if row.mark == "-"]
    first, last = (removed[0].at, removed[-1].at) if removed else (group[0].at, group[0].at)
    limits = range(first or 0, (last or 0) + 1 + bool(removed))
    if any(row.at not in limits for row in group if row.mark == "+"):
        return "new lines of two places stand together"
    if not all(survives(row) for row in removed):
        return "a removed line does not survive"
    before = piece[start - 1] if start else None
    after = piece[stop] if stop < len(piece) else None
    if removed:
        ats = [row.at or 0 for row in removed]
        if ats != list(range(ats[0], ats[0] + len(ats))):
            return "removed lines are not together"
        strong = any(_strong(row, row.at or 0, base, damaged) for row in removed)
        beside = _strong(before, ats[0] - 1, base, damaged) or _strong(
            after, ats[-1] + 1, base, damaged
        )
        return "" if strong or beside or not damaged else "a removal can slide"
    at = group[0].at or 0
    if damaged:
        # A hole, or a line that is not what stands there, beside an insertion leaves open on
        # which side of it the new lines come.
        if before is not None and (not survives(before) or before.at != at - 1):
            return "something is missing before an insertion"
        if after is not None and (not survives(after) or after.at != at):
            return "something is missing after an insertion"
        if not _strong(before, at - 1, base, True) and not _strong(after, at, base, True):
            return "an insertion can slide"
    return _already(group, base, at)


def _already(group: list[Row], base: Text, at: int) -> str:
    """New lines that stand beside their place before the edit look as if it had been done."""
    new = [squash(row.true) for row in group if squash(row.true)]
    before = [text for text in map(squash, base.lines[max(0, at - 60) : at]) if text]
    after = [text for text in map(squash, base.lines[at : at + 60]) if text]
    if not new or before[-len(new) :] == new or after[: len(new)] == new:
        return "new lines stand there already"
    return ""


def _shift(hunk: Hunk) -> str:
    """Whether the indentation of added lines follows from the lines that stand in the file."""
    added = [row for row in hunk.rows if row.mark == "+" and row.true.strip()]
    old = [row for row in hunk.rows if row.old and survives(row) and row.text.strip()]
    pairs = [(indent_of(row.text), indent_of(row.true)) for row in old if not row.bare]
    wanted = [(indent_of(row.text), indent_of(row.true)) for row in added]
    if all(printed == true for printed, true in wanted):
        same = sum(printed == true for printed, true in pairs)
        bare_only = not pairs or same == len(pairs)
        if not added or bare_only or same >= max(2, 0.7 * len(pairs)):
            return ""
        return "the indentation of context disagrees"
    if any(len(row.text) < len(row.true) - len(indent_of(row.true)) for row in added):
        raise Broken("an added line lost more than its indentation")
    return _one_rule(pairs, wanted)


def _one_rule(pairs: list[tuple[str, str]], wanted: list[tuple[str, str]]) -> str:
    """One shift, or one width of a tab, that all old lines show and all new lines follow."""
    shifts = {len(true) - len(printed) for printed, true in pairs}
    plain = not any("\t" in text for pair in pairs + wanted for text in pair)
    if plain and len(shifts) == 1 and len(pairs) >= 2:
        return (
            ""
            if all(len(t) - len(p) in shifts for p, t in wanted)
            else "new lines shift otherwise"
        )
    for width in (4, 8):
        for rule in (
            lambda text, width=width: text.replace("\t", " " * width),
            lambda text, width=width: "\t" * (len(text) // width) + " " * (len(text) % width),
        ):
            deep = any(true for _, true in pairs)
            if deep and all(rule(p) == t for p, t in pairs + wanted):
                return ""
    return "the indentation of new lines is open"


def _only_indent(hunk: Hunk) -> bool:
    old = [squash(row.text) for row in hunk.rows if row.mark != "+"]
    return old == [squash(row.text) for row in hunk.rows if row.mark != "-"]


def _respaced(hunk: Hunk) -> bool:
    return any(row.text.rstrip() != row.true.rstrip() for row in hunk.rows if row.at is not None)


def _hunk(hunk: Hunk, section: Section) -> str:
    if _only_indent(hunk) and (_respaced(hunk) or any(row.bare for row in hunk.rows)):
        return "only white space changes, and it is damaged"
    for piece in pieces(hunk):
        reason = _place(piece, section.base) or _pins(piece, section.base)
        if reason:
            return reason
    return _shift(hunk)


def resolve(printed: str, tree: Tree) -> set[str]:
    """Every file that a printed name could mean."""
    name = re.split(r"\t| \(|  #", printed)[0].strip().strip("\"'`")
    parts = [part for part in name.split("/") if part not in ("", ".")]
    ends = {"/".join(parts[start:]) for start in range(len(parts))}
    exact = ends & set(tree)
    # A bare base name also means the file of that name in a folder, unless it stands at the top.
    base = parts[-1] if parts else ""
    return exact or {path for path in tree if path.rpartition("/")[2] == base}


def _path(section: Section, document: Document, style: str) -> str:
    printed = [section.label] if style != "unified" else [
        name for name in section.names if name not in (None, NULL)
    ] or list(section.git or ())  # fmt: skip
    if section.action == "rename":
        return ""
    if section.action != "create":
        found = [resolve(name or "", document.base) for name in printed]
        return "" if found and all(each == {section.path} for each in found) else "path is open"
    plain = {section.path, f"a/{section.path}", f"b/{section.path}", f"./{section.path}"}
    cleaned = [re.split(r"\t| \(|  #", name or "")[0].strip("\"'`") for name in printed]
    if all(name in plain for name in cleaned):
        return ""
    return (
        "" if _prefix_shared(section, document, cleaned, style) else "path of a new file is open"
    )


def _prefix_shared(section: Section, document: Document, names: list[str], style: str) -> bool:
    """Whether files that exist show the same invented folders as the new one."""
    prefixes = {name.removesuffix(section.path) for name in names}
    for other in document.sections:
        if other.action == "edit":
            shown = (
                [other.label] if style != "unified" else [other.names[1] or other.names[0] or ""]
            )
            if {name.removesuffix(other.path) for name in shown} == prefixes:
                return all(name.endswith(section.path) for name in names)
    return False


def _line_ends(section: Section, document: Document) -> str:
    """A new file has the line ends that the answer shows, if it is printed as git prints it."""
    returns = section.target.newline == "\r\n"
    if section.action == "create" and returns and document.layout != Layout():
        return "the line ends of a new file are open"
    return ""


def _end(section: Section, style: str) -> str:
    """Whether the new end is known: other notations cannot say that a line end is missing."""
    if style == "unified" or (section.base.ends and section.target.ends):
        return ""
    touched = any(row.open_end and row.mark != " " for hunk in section.hunks for row in hunk.rows)
    return "the end of the file is open" if touched else ""


def _section(section: Section, document: Document) -> str:
    style = document.layout.style
    if section.hunks and replay(section) != section.target.lines:
        raise Broken(f"{section.path}: the true places do not lead to the target")
    reason = _path(section, document, style) or _end(section, style)
    reason = reason or _line_ends(section, document)
    if reason or section.action in ("create", "delete"):
        return reason
    for hunk in section.hunks:
        reason = _hunk(hunk, section)
        if reason:
            return reason
    return ""


def _repeated_otherwise(document: Document) -> bool:
    """Whether the same rows come twice under different headers: a second place may be meant."""
    headers: dict[tuple[str, tuple[Row, ...]], set[str | None]] = defaultdict(set)
    for section in document.sections:
        for hunk in section.hunks:
            headers[section.path, hunk.rows].add(hunk.header)
    return any(len(each) > 1 for each in headers.values())


_COUNTS = re.compile(r"@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@")


def _looks_cut_off(document: Document) -> bool:
    """Whether the answer ends in a change, its header promises more, and nothing closes it."""
    layout, last = document.layout, document.sections[-1]
    closed = layout.fence or layout.after or layout.end_marker or layout.style != "unified"
    if closed or not last.printed or last.printed[-1].rows[-1].mark == " ":
        return False
    hunk = last.printed[-1]
    found = _COUNTS.match(hunk.header or "")
    if not found:
        return False
    return int(found[1] or 1) > hunk.count("+") or int(found[2] or 1) > hunk.count("-")


def _blurred(section: Section) -> bool:
    """Whether new lines stand at a border between two places that nothing shows.

    They could belong to either side.
    """
    borders: list[tuple[Row, Row]] = []
    for one, two in pairwise(section.printed):
        if two.header is None:
            borders.append((one.rows[-1], two.rows[0]))
    for hunk in section.printed:
        last: Row | None = None
        for before, row in pairwise(hunk.rows):
            last = before if before.old and before.at is not None else last
            jumped = row.old and row.at is not None and last is not None and row.note == ""
            if jumped and (row.at or 0) - (last.at or 0) != 1:  # type: ignore[union-attr]
                borders.append((before, row))
    return any("+" in (one.mark, two.mark) for one, two in borders)


def doubt(document: Document) -> str:
    """Why the right result is not determined by the answer; empty if it is."""
    if _looks_cut_off(document):
        return "the answer may have been cut off"
    if _repeated_otherwise(document):
        return "a hunk is repeated under another header"
    for section in document.sections:
        if document.layout.style == "unified" and _blurred(section):
            return "new lines stand at a border that nothing shows"
        reason = _section(section, document)
        if reason:
            return reason
    return ""
