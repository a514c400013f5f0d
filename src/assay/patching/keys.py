"""What counts as the same line, from the strictest reading to the loosest."""

import re
from collections.abc import Callable, Iterable
from functools import cached_property
from itertools import accumulate

from assay.patching.text import FileLines, split_file
from assay.patching.types import Tier

# Characters that a word processor puts in the place of others, by kind.
_KINDS: tuple[dict[str, str], ...] = (
    {**dict.fromkeys("“”„‟«»″", '"'), **dict.fromkeys("‘’‚‛′", "'")},
    dict.fromkeys("‐‑‒–—−", "-"),
    dict.fromkeys("\u00a0\u2002\u2003\u2007\u2009\u202f\u3000", " "),
    dict.fromkeys("\u200b\u200c\u200d\u2060\ufeff", ""),
    {"…": "..."},
)
_TYPOGRAPHIC = str.maketrans({char: to for kind in _KINDS for char, to in kind.items()})
_GAP = re.compile(r"\s+")
_LOOSE_GAP = re.compile(r"(?<!\w) | (?!\w)")


def plain(text: str) -> str:
    """Typographic quotes, dashes and invisible characters as ASCII writes them."""
    return text if text.isascii() else text.translate(_TYPOGRAPHIC)


def plain_as(text: str, pairs: Iterable[tuple[str, str]]) -> str:
    """The text, plain in those kinds of characters in which the first of a pair differs from the
    second and the second is plain."""
    if text.isascii():
        return text
    for kind in _KINDS:
        table = str.maketrans(kind)
        if any(
            told.translate(table) != told and real.translate(table) == real for told, real in pairs
        ):
            text = text.translate(table)
    return text


def squash(text: str) -> str:
    """Without whitespace, but for one space between two words."""
    return _LOOSE_GAP.sub("", _GAP.sub(" ", plain(text)))


def indent_of(text: str) -> str:
    """The blanks a line starts with; all of a blank line."""
    return text[: len(text) - len(text.lstrip(" \t"))]


def running(values: Iterable[float]) -> list[float]:
    """The sums of all beginnings, the empty one first."""
    return list(accumulate(values, initial=0.0))


CONTIGUOUS: tuple[tuple[Tier, Callable[[str], str]], ...] = (
    ("exact", str),
    ("trailing_whitespace", str.rstrip),
    ("indentation", str.strip),
    ("whitespace", squash),
)


class FileText:
    """A file's lines, and where each of them stands, under every reading; computed when asked."""

    def __init__(self, lines: list[str], *, final_newline: bool = True) -> None:
        self.lines = lines
        self.final_newline = final_newline
        self._keys: dict[Tier, list[str]] = {"exact": lines}
        self._places: dict[Tier, dict[str, list[int]]] = {}

    @classmethod
    def of(cls, text: str) -> "FileText":
        parts: FileLines = split_file(text)
        return cls(parts.lines, final_newline=parts.final_newline)

    def keys(self, tier: Tier) -> list[str]:
        """Each line's key."""
        if tier not in self._keys:
            key = dict(CONTIGUOUS)[tier]
            self._keys[tier] = [key(line) for line in self.lines]
        return self._keys[tier]

    def places(self, tier: Tier) -> dict[str, list[int]]:
        """The indices of the lines that have a key, ascending."""
        if tier not in self._places:
            found: dict[str, list[int]] = {}
            for i, key in enumerate(self.keys(tier)):
                found.setdefault(key, []).append(i)
            self._places[tier] = found
        return self._places[tier]

    @cached_property
    def filled(self) -> list[float]:
        """How many lines stand before each line, and in all; blank ones count next to nothing."""
        return running(1.0 if line.strip() else 0.05 for line in self.lines)

    @cached_property
    def unit(self) -> int:
        """The step of the file's indentation in columns: the widest that nearly all lines keep."""
        widths = [len(indent_of(line)) for line in self.lines if line.strip()]
        widths = [width for width in widths if width]
        fitting = (
            step
            for step in (8, 4, 3, 2)
            if sum(width % step == 0 for width in widths) >= 0.85 * len(widths)
        )
        return next(fitting, 4) if widths else 4
