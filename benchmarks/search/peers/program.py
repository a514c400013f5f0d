"""Points of a world as Python programs, which is what peers change: a line per factor.

    muon = "yes"
    …
    batch_size = "16"
    implementation = 1

The last line lets an idea that failed be tried again, as Assay's own strategies may: another
implementation of the same settings is another text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from benchmarks.search.points import Factors, Point

#: The file of the codebase that peers change.
FILE = "settings.py"
_MARKS = ("# EVOLVE-BLOCK-START", "# EVOLVE-BLOCK-END")


@dataclass(frozen=True)
class Program:
    """Settings, and which implementation of them it is, from 1."""

    point: Point
    implementation: int = 1


class Programs:
    """Writes and reads the programs of a world."""

    def __init__(self, factors: Factors) -> None:
        self._factors = factors
        lines = [
            rf'{re.escape(each.name)} = "({"|".join(map(re.escape, each.levels))})"'
            for each in factors.factors
        ]
        self._pattern = re.compile("\n".join([*lines, r"implementation = ([1-9]\d{0,5})\b"]))

    def lines(self, program: Program) -> list[str]:
        """Return the lines of a program that differ between programs."""
        settings = zip(self._factors.factors, program.point, strict=True)
        found = [f'{factor.name} = "{factor.levels[level]}"' for factor, level in settings]
        return [*found, f"implementation = {program.implementation}"]

    def text(self, program: Program) -> str:
        """Return a program as a file."""
        return "\n".join([_MARKS[0], *self.lines(program), _MARKS[1], ""])

    def edits(self, old: Program, new: Program) -> str:
        """Return the edits that make one program another, as search and replace blocks."""
        changed = zip(self.lines(old), self.lines(new), strict=True)
        return "\n".join(
            f"<<<<<<< SEARCH\n{before}\n=======\n{after}\n>>>>>>> REPLACE"
            for before, after in changed
            if before != after
        )

    def read(self, text: str) -> list[Program]:
        """Return the programs in a text, such as a prompt, in the order in which they occur."""
        return [self._program(match) for match in self._pattern.finditer(text)]

    def _program(self, match: re.Match[str]) -> Program:
        *levels, implementation = match.groups()
        named = zip(self._factors.factors, levels, strict=True)
        point = tuple(factor.levels.index(level) for factor, level in named)
        return Program(point, int(implementation))
