"""The function or class that an `@@` line names: it tells equal places apart."""

import re
from collections.abc import Sequence

from assay.patching.keys import indent_of

_OPENS = re.compile(r"^\s*(?:async\s+)?(?:def|class)\s+(\w+)")


def inside_scope(lines: Sequence[str], scope: str, starts: Sequence[int]) -> list[int]:
    """Which of some places, given by their first lines, lie inside a named `def` or `class`.

    `scope` may name one inside another, a line for each. Their indices; none unless there is just
    one definition of each name there.
    """
    first, last = -1, len(lines)
    for name in scope.split("\n"):
        opened = _definition(lines, name, first + 1, last)
        if opened is None:
            return []
        first, last = opened, min(last, _end(lines, opened))
    return [n for n, start in enumerate(starts) if first < start < last]


def _definition(lines: Sequence[str], scope: str, first: int, last: int) -> int | None:
    """The line of the one definition that is written so, or else has the name."""
    hit = _OPENS.match(scope)
    if hit is None:
        return None
    same = [i for i in range(first, last) if lines[i].strip() == scope.strip()]
    named = [i for i in range(first, last) if (m := _OPENS.match(lines[i])) and m[1] == hit[1]]
    found = same if len(same) == 1 else named
    return found[0] if len(found) == 1 else None


def _end(lines: Sequence[str], opened: int) -> int:
    """One behind the last line of the block that starts at a definition."""
    depth = len(indent_of(lines[opened]))
    for i in range(opened + 1, len(lines)):
        text = lines[i]
        if text.strip() and len(indent_of(text)) <= depth and not text.lstrip().startswith(")"):
            return i
    return len(lines)
