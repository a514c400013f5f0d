"""Knobs and recipes: the edits an environment declares for the offline ideator."""

import re
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Knob:
    """A line with alternatives. `line` stands once in `file` and ends with the baseline value.

    The baseline value is what follows the last ` = ` of the line, else its last word. Raises
    ValueError for a line of several lines or without value, or for no values.
    """

    name: str
    file: str
    line: str
    values: tuple[str, ...]
    title: str = ""

    def __post_init__(self) -> None:
        if "\n" in self.line or not self.line.strip() or not self.baseline:
            raise ValueError(f"knob {self.name!r}: `line` must be one line that ends with a value")
        if not self.values or self.baseline in self.values or "" in self.values:
            raise ValueError(f"knob {self.name!r}: `values` must be alternatives to the baseline")

    @property
    def baseline(self) -> str:
        """The value the baseline codebase has."""
        _, assigned, value = self.line.rpartition(" = ")
        if not assigned:
            value = re.split(r"[\s=]", self.line.rstrip())[-1]
        return value.strip()

    def line_with(self, value: str) -> str:
        """The line with another value in place of the baseline's."""
        return self.line.rstrip()[: -len(self.baseline)] + value

    @property
    def label(self) -> str:
        return self.title or self.name.replace("_", " ")


@dataclass(frozen=True)
class RecipeEdit:
    """Replace `search`, which stands once in `file`, by `replace`."""

    file: str
    search: str
    replace: str


@dataclass(frozen=True)
class Recipe:
    """An edit of several lines.

    `edit` works; `misfit` has context that stands nowhere, so that patching refuses it; `crash`
    applies and compiles and fails when it is executed. The last two exercise failures. `control`
    works and should change nothing but luck: it is measured beside the baseline and not proposed.
    """

    name: str
    title: str
    kind: Literal["edit", "misfit", "crash", "control"]
    edits: tuple[RecipeEdit, ...]
