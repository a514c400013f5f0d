"""Unified diffs as tables, with syntax colours made on the server."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from markupsafe import Markup, escape
from pygments import highlight as colour
from pygments.formatters import HtmlFormatter
from pygments.lexer import Lexer
from pygments.lexers import BashLexer, DiffLexer, JsonLexer, PythonLexer, TOMLLexer

from assay.analysis.text import clean

#: Lines that are shown, and characters of a hunk that are coloured: both are a model's choice.
MAX_LINES = 4_000
_MAX_COLOURED = 200_000
_LEXERS: dict[str, type[Lexer]] = {
    "py": PythonLexer,
    "python": PythonLexer,
    "toml": TOMLLexer,
    "json": JsonLexer,
    "sh": BashLexer,
    "diff": DiffLexer,
}
_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")


@dataclass(frozen=True)
class Line:
    """A line of a diff. `kind` is add, del, same or hunk; numbers are None where it is not."""

    kind: str
    old: int | None
    new: int | None
    html: Markup


@dataclass
class FileDiff:
    """What changed in one file."""

    name: str
    lines: list[Line] = field(default_factory=list)

    @property
    def added(self) -> int:
        """Number of added lines."""
        return sum(line.kind == "add" for line in self.lines)

    @property
    def removed(self) -> int:
        """Number of removed lines."""
        return sum(line.kind == "del" for line in self.lines)


def file_diffs(text: str) -> tuple[list[FileDiff], bool]:
    """Return a diff that `unified_diff` made by file, and whether it was cut after `MAX_LINES`.

    Terminal escapes and characters that reorder text are left out of what is shown.
    """
    lines = text.split("\n")
    rest = iter(lines[:MAX_LINES])
    files: list[FileDiff] = []
    for line in rest:
        if line.startswith("diff --git "):
            # `a/NAME b/NAME`: both are the same, so the second begins in the middle.
            names = line.removeprefix("diff --git ")
            files.append(FileDiff(clean(names[len(names) // 2 + 3 :])))
        elif (found := _HUNK.match(line)) and files:
            files[-1].lines.append(Line("hunk", None, None, escape(clean(line))))
            old, new = int(found[1]), int(found[3])
            hunk = _hunk(rest, int(found[2] or 1), int(found[4] or 1))
            files[-1].lines += _coloured(hunk, old, new, files[-1].name)
    return files, len(lines) > MAX_LINES


def _hunk(lines: Iterator[str], old: int, new: int) -> list[str]:
    """Take the lines of a hunk with so many lines of either side. A marker alone counts none."""
    taken = []
    while old > 0 or new > 0:
        line = next(lines, None)
        if line is None:  # cut
            break
        if line.startswith("\\"):
            continue
        taken.append(line)
        old -= line[:1] != "+"
        new -= line[:1] != "-"
    return taken


def _coloured(hunk: Sequence[str], old: int, new: int, name: str) -> Iterator[Line]:
    # Each side is coloured as a whole: a line alone does not tell whether it is in a text.
    before = iter(highlight("\n".join(clean(x[1:]) for x in hunk if x[:1] != "+"), name))
    after = iter(highlight("\n".join(clean(x[1:]) for x in hunk if x[:1] != "-"), name))
    for line in hunk:
        mark = line[:1]
        if mark == "+":
            yield Line("add", None, new, next(after))
        elif mark == "-":
            yield Line("del", old, None, next(before))
        else:
            next(before)
            yield Line("same", old, new, next(after))
        old += mark != "+"
        new += mark != "-"


def highlight(code: str, name: str) -> list[Markup]:
    """Return the lines of a text as HTML, coloured by what the end of its file's name says."""
    plain = code.split("\n")
    lexer = _LEXERS.get(name.rpartition(".")[2].lower())
    if lexer is None or len(code) > _MAX_COLOURED:
        return [escape(line) for line in plain]
    found = lexer(stripnl=False, ensurenl=True)
    lines = colour(code, found, HtmlFormatter(nowrap=True)).split("\n")[: len(plain)]
    # A lexer that ends lines elsewhere would put them beside the wrong numbers.
    return [Markup(line) for line in lines] if len(lines) == len(plain) else [*map(escape, plain)]
