"""Turn a fitted hunk into edits of the file's lines."""

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from assay.patching.keys import FileText, squash
from assay.patching.place import Fit
from assay.patching.types import Line


class Doubt(Exception):
    """The fit leaves open what the result is; `why` says it to a model."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


@dataclass(frozen=True)
class Edit:
    """Replace lines `[start, end)` of the file by `lines`; `start == end` inserts."""

    start: int
    end: int
    lines: tuple[str, ...]


def apply_edits(lines: Sequence[str], edits: Iterable[Edit]) -> list[str]:
    """The lines after edits that do not overlap."""
    result: list[str] = []
    at = 0
    for edit in sorted(edits, key=lambda e: (e.start, e.end)):
        result += lines[at : edit.start]
        result += edit.lines
        at = edit.end
    result += lines[at:]
    return result


def clash(one: Edit, other: Edit) -> bool:
    """Whether the outcome of two edits depends on their order, or their lines overlap."""
    for put, kept in ((one, other), (other, one)):
        # Lines put before or behind others that change one for one have one order.
        if put.start == put.end and len(kept.lines) == kept.end - kept.start > 0:
            return kept.start < put.start < kept.end
    if one.start == one.end or other.start == other.end:
        return max(one.start, other.start) <= min(one.end, other.end)
    return max(one.start, other.start) < min(one.end, other.end)


def weave(file: FileText, fit: Fit, added: Sequence[str]) -> tuple[Edit, ...]:
    """The edits a fitted hunk means; `added` are its new lines as the file writes them, in order.

    Raises Doubt where the place of a new line is open: where the lines that stand before and after
    it in the answer do not stand next to each other in the file, or where removed lines do not.
    """
    if not any(at is not None for at in fit.at) and not fit.hunk.old:
        return (Edit(0, 0, tuple(added)),)  # all lines of an empty file
    removed: set[int] = set()
    inserted: dict[int, list[str]] = {}
    texts = iter(added)
    lines = fit.hunk.lines
    standing = [k for k, at in enumerate(fit.at) if at is not None]
    # Context that stands nowhere is accepted at the edges of a hunk only.
    inside = range(standing[0], standing[-1]) if standing else range(0)
    sides = list(zip(_neighbours(file, fit, 1), _neighbours(file, fit, -1), strict=True))
    for k, line in enumerate(lines):
        at = fit.at[k]
        if line.mark == "-":
            if at is None:
                raise Doubt(f"the removed line {line.text.strip()!r} does not stand there")
            _check_run(lines, fit.at, k, at)
            if not _is_held(file, at, sides[k]):
                raise Doubt("the lines next to the removed ones do not stand next to them")
            removed.add(at)
        elif line.mark == "+":
            inserted.setdefault(_slot(file, *sides[k]), []).append(next(texts))
        elif at is None and line.mark == " " and line.text.strip() and k in inside:
            raise Doubt(f"the line {line.text.strip()!r} does not stand there")
    return tuple(_joined(removed, inserted))


def _is_held(file: FileText, here: int, sides: Sequence["_Neighbour"]) -> bool:
    """Whether a removed line stands next to what is next to it in the hunk, on one side at least.

    Blank lines between do not count, and nothing needs to hold a hunk that only removes.
    """
    known = [side for side in sides if side.at is not None]
    return not known or any(
        side.way == "ellipsis"
        or not "".join(file.lines[min(here, side.at) + 1 : max(here, side.at)]).strip()
        for side in known
        if side.at is not None
    )


def _check_run(lines: Sequence[Line], at: Sequence[int | None], k: int, here: int) -> None:
    """Lines removed one after the other must stand so: what lies between may be meant too."""
    if k and lines[k - 1].mark == "-" and at[k - 1] is not None and at[k - 1] != here - 1:
        raise Doubt("between the removed lines the file has others")


def _slot(file: FileText, before: "_Neighbour", after: "_Neighbour") -> int:
    """Return the index in the file before which a new line between these neighbours goes."""
    if before.at is not None and after.at is not None:
        low, high = before.at + 1, after.at
        if low == high:
            return high
        for side, here in ((before, low), (after, high)):
            other = after if side is before else before
            # An ellipsis on the other side says where the lines belong that are left out.
            if side.way == "clean" and (side.mark == "-" or other.way == "ellipsis"):
                return here
        raise Doubt("where new lines go, the file has lines that the answer leaves out")
    for side, other, here in (
        (before, after, (before.at or 0) + 1),
        (after, before, after.at or 0),
    ):
        if side.at is None or side.way != "clean":
            continue
        # Lines on the other side that the file has, but not there, were moved or left out between.
        if side.mark == "-" or here == len(file.lines) or not other.passed_known:
            return here
    raise Doubt("the lines next to the new ones do not stand in the file")


class _Neighbour(NamedTuple):
    """The nearest line of a hunk that stands in the file, and what is on the way to it.

    `passed_known`: whether the file has, anywhere, one of the lines that are passed on the way.
    """

    at: int | None
    mark: str
    way: Literal["clean", "ellipsis", "unknown"]
    passed_known: bool


def _neighbours(file: FileText, fit: Fit, step: Literal[1, -1]) -> list[_Neighbour]:
    """Return each line's neighbour before it (`step` 1), or behind it (-1), in one pass."""
    found: list[_Neighbour] = []
    at: int | None = None
    mark = ""
    way: Literal["clean", "ellipsis", "unknown"] = "clean"
    # Of the lines passed since `at`: the last is left out of `known` as long as it is the nearest,
    # because an ellipsis right beside a line is not looked for in the file.
    known = last_known = last_is_ellipsis = False
    for line, here in list(zip(fit.hunk.lines, fit.at, strict=True))[::step]:
        found.append(_Neighbour(at, mark, way, known or (last_known and not last_is_ellipsis)))
        if here is not None:
            at, mark, way = here, line.mark, "clean"
            known = last_known = last_is_ellipsis = False
        elif line.mark != "+":
            last_is_ellipsis = line.mark == "~"
            way = "ellipsis" if way == "clean" and last_is_ellipsis else "unknown"
            known = known or last_known
            last_known = squash(line.text) in file.places("whitespace")
    return found[::step]


def _joined(removed: set[int], inserted: dict[int, list[str]]) -> Iterable[Edit]:
    """Edits in order, touching ones joined."""
    points = sorted({*removed, *inserted})
    start = end = -1
    new: list[str] = []
    for point in points:
        if start < 0 or point > end:
            if start >= 0:
                yield Edit(start, end, tuple(new))
            start = end = point
            new = []
        new += inserted.get(point, ())
        if point in removed:
            end = point + 1
    if start >= 0:
        yield Edit(start, end, tuple(new))


class Taken:
    """Edits decided on, none of which touches another."""

    def __init__(self) -> None:
        self.edits: list[Edit] = []

    def add(self, edits: Iterable[Edit]) -> None:
        for edit in edits:
            if edit not in self._near(edit):
                insort(self.edits, edit, key=_key)

    def conflicts(self, edits: Iterable[Edit]) -> bool:
        """Whether any of the edits touches one that is here, and is not the same."""
        return any(
            other != edit and clash(edit, other) for edit in edits for other in self._near(edit)
        )

    def _near(self, edit: Edit) -> list[Edit]:
        first = bisect_left(self.edits, edit.start, key=lambda e: e.end)
        near = []
        for other in self.edits[first:]:
            if other.start > edit.end:
                break
            near.append(other)
        return near


def _key(edit: Edit) -> tuple[int, int]:
    return edit.start, edit.end
