"""What a corruption is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random

from benchmarks.patching.changes import Wish
from benchmarks.patching.model import Document, Hunk, Row

Corruption = Callable[[Random, Document], Document | None]


@dataclass(frozen=True)
class Mode:
    """`wish` is what the true edit has to be like for the mode to be possible."""

    name: str
    family: str
    apply: Corruption
    wish: Wish = field(default_factory=Wish)


def places(document: Document) -> list[tuple[int, int]]:
    """(section, hunk) of every hunk of files that are edited or renamed."""
    return [
        (index, number)
        for index, section in enumerate(document.sections)
        if section.action in ("edit", "rename")
        for number in range(len(section.hunks))
    ]


def with_rows(hunk: Hunk, rows: list[Row]) -> Hunk:
    """Other rows under a header that counts them."""
    return replace(hunk, rows=tuple(rows)).recounted()


def on_some_hunks(
    change: Callable[[Random, Hunk], Hunk | None], *, every: bool = False
) -> Corruption:
    """A change of one hunk that it is possible for, or of every one."""

    def apply(random: Random, document: Document) -> Document | None:
        spots = places(document)
        random.shuffle(spots)
        changed = False
        for index, number in spots:
            hunk = change(random, document.sections[index].hunks[number])
            if hunk is None:
                continue
            document = document.with_hunk(index, number, hunk)
            changed = True
            if not every:
                break
        return document if changed else None

    return apply
