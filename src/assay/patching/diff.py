"""Unified diffs that can be placed by content alone."""

import difflib
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from assay.patching.effort import Effort, Exhausted
from assay.patching.text import split_file

#: Pairs of equal lines that are compared for one difference; so many took 0.7 CPU seconds.
MAX_PAIRS = 5_000_000
_NO_NEWLINE = "\\ No newline at end of file"


class _Side(NamedTuple):
    lines: list[str]
    # Tokens differ where a last line lacks its newline, so that such a change shows up as one.
    tokens: list[tuple[str, bool]]


class Change(NamedTuple):
    """Lines `[old_start, old_end)` of one side became `[new_start, new_end)` of the other."""

    old_start: int
    old_end: int
    new_start: int
    new_end: int


class Region(NamedTuple):
    """Changes shown together, with the context around them: `[start, end)` of the old lines."""

    start: int
    end: int
    changes: tuple[Change, ...]


def unified_diff(before: Mapping[str, str], after: Mapping[str, str], *, context: int = 3) -> str:
    """The difference of two trees as `git diff` writes it; empty when they are equal.

    A hunk shows more than `context` lines where fewer would stand in several places of the old
    file, so that the result can be placed by its content, without its line numbers. A file that
    takes too long to compare is shown as one change (see `changes`).
    """
    effort = Effort(MAX_PAIRS)
    parts: list[str] = []
    for path in sorted(before.keys() | after.keys()):
        old, new = before.get(path), after.get(path)
        if old != new:
            parts.extend(_file_diff(path, old, new, context, effort))
    return "".join(part + "\n" for part in parts)


def _file_diff(
    path: str, old: str | None, new: str | None, context: int, effort: Effort
) -> Iterable[str]:
    yield f"diff --git a/{path} b/{path}"
    if old is None:
        yield "new file mode 100644"
    if new is None:
        yield "deleted file mode 100644"
    left, right = _side(old or ""), _side(new or "")
    if not left.tokens and not right.tokens:
        return
    # git ends a name with a tab where it holds a space, so that the name's end is known.
    tab = "\t" if " " in path else ""
    yield "--- /dev/null" if old is None else f"--- a/{path}{tab}"
    yield "+++ /dev/null" if new is None else f"+++ b/{path}{tab}"
    for region in regions(left.lines, changes(left.tokens, right.tokens, effort), context):
        yield from _hunk(left, right, region)


def _side(text: str) -> _Side:
    lines, final_newline = split_file(text)
    tokens = [(line, True) for line in lines]
    if tokens and not final_newline:
        tokens[-1] = (tokens[-1][0], False)
    return _Side(lines, tokens)


def changes(
    old: Sequence[Hashable], new: Sequence[Hashable], effort: Effort | None = None
) -> list[Change]:
    """Return the changed spans between two sequences, in order, never touching.

    Where `effort` (default: `MAX_PAIRS`) is not enough, everything between the common beginning
    and the common end is one change. A comparison that is too large from the start spends nothing,
    so that one large file leaves the other files of a diff their share.
    """
    effort = Effort(MAX_PAIRS) if effort is None else effort
    start, end = _common_ends(old, new)
    for skipped, cut in ((0, 0), (start, end)):
        before, after = old[skipped : len(old) - cut], new[skipped : len(new) - cut]
        pairs = _pairs(before, after)
        if pairs[-1] > effort.left:
            continue
        try:
            spans = [
                span
                for tag, *span in _Matcher(before, after, pairs, effort).get_opcodes()
                if tag != "equal"
            ]
        except Exhausted:
            break
        return [Change(*(skipped + place for place in span)) for span in spans]
    if start + end == len(old) == len(new):
        return []
    return [Change(start, len(old) - end, start, len(new) - end)]


def _pairs(old: Sequence[Hashable], new: Sequence[Hashable]) -> list[int]:
    """Return what a search compares up to each old line: it, with all new lines equal to it."""
    equal = Counter(new)
    return list(accumulate((1 + equal[item] for item in old), initial=0))


class _Matcher(difflib.SequenceMatcher[Hashable]):
    """Counts its work: many equal lines on both sides make difflib's cubic."""

    def __init__(
        self,
        old: Sequence[Hashable],
        new: Sequence[Hashable],
        pairs: Sequence[int],
        effort: Effort,
    ) -> None:
        super().__init__(None, old, new, autojunk=False)
        self._pairs, self._effort = pairs, effort

    def find_longest_match(
        self, alo: int = 0, ahi: int | None = None, blo: int = 0, bhi: int | None = None
    ) -> difflib.Match:
        end = len(self._pairs) - 1 if ahi is None else ahi
        self._effort.spend(self._pairs[end] - self._pairs[alo])
        return super().find_longest_match(alo, ahi, blo, bhi)


def _common_ends(old: Sequence[Hashable], new: Sequence[Hashable]) -> tuple[int, int]:
    """Return the lengths of the common beginning and of the common end; they do not overlap."""
    shorter = min(len(old), len(new))
    start = next((i for i in range(shorter) if old[i] != new[i]), shorter)
    most = shorter - start
    end = next((i for i in range(most) if old[-1 - i] != new[-1 - i]), most)
    return start, end


def regions(old: list[str], spans: list[Change], context: int) -> list[Region]:
    """Group changes with context, widened until each region's old text stands once in `old`."""
    found = [
        Region(max(0, c.old_start - context), min(len(old), c.old_end + context), (c,))
        for c in spans
    ]
    # Unique apart from trailing whitespace too, so that the result does not look like the base.
    bare = [text.rstrip() for text in old]
    while True:
        found = _join(found)
        repeated = [
            i for i, region in enumerate(found) if not _is_unique(bare, region.start, region.end)
        ]
        if not repeated:
            return found
        for i in repeated:
            region = found[i]
            step = max(1, (region.end - region.start) // 2)
            found[i] = Region(
                max(0, region.start - step), min(len(old), region.end + step), region.changes
            )


def _join(found: list[Region]) -> list[Region]:
    joined: list[Region] = []
    for region in found:
        if joined and region.start <= joined[-1].end:
            last = joined.pop()
            region = Region(
                min(last.start, region.start),
                max(last.end, region.end),
                last.changes + region.changes,
            )
        joined.append(region)
    return joined


def _is_unique(lines: list[str], start: int, end: int) -> bool:
    if start == 0 and end == len(lines):
        return True
    wanted = lines[start:end]
    if not wanted:
        return False
    size = len(wanted)
    places = (
        i
        for i in range(len(lines) - size + 1)
        if lines[i] == wanted[0] and lines[i : i + size] == wanted
    )
    next(places)
    return next(places, None) is None


def _hunk(left: _Side, right: _Side, region: Region) -> Iterable[str]:
    first, last = region.changes[0], region.changes[-1]
    new_start = first.new_start - (first.old_start - region.start)
    new_end = last.new_end + (region.end - last.old_end)
    yield f"@@ -{_range(region.start, region.end)} +{_range(new_start, new_end)} @@"
    at = region.start
    for change in region.changes:
        yield from _marked(" ", left.tokens[at : change.old_start])
        yield from _marked("-", left.tokens[change.old_start : change.old_end])
        yield from _marked("+", right.tokens[change.new_start : change.new_end])
        at = change.old_end
    yield from _marked(" ", left.tokens[at : region.end])


def _range(start: int, end: int) -> str:
    size = end - start
    first = start + 1 if size else start
    return str(first) if size == 1 else f"{first},{size}"


def _marked(mark: str, tokens: list[tuple[str, bool]]) -> Iterable[str]:
    for text, newline in tokens:
        yield mark + text
        if not newline:
            yield _NO_NEWLINE
