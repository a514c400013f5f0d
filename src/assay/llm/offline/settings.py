"""The line of an idea that says which knobs and recipes it sets, written and read back."""

import re
from dataclasses import dataclass
from typing import Self

_LINE = re.compile(r"^Settings:(.+)$", re.MULTILINE)
_NEXT = re.compile(r",\s+(?=[A-Za-z_][\w\-]*=)")
_ITEM = re.compile(r"([A-Za-z_][\w\-]*)=(.+)")
_RECIPE = "recipe"


@dataclass(frozen=True)
class Settings:
    """Knob values away from the baseline, and recipes; both sorted, so that equal means equal."""

    knobs: tuple[tuple[str, str], ...] = ()
    recipes: tuple[str, ...] = ()

    @classmethod
    def of(cls, knobs: dict[str, str], recipes: set[str]) -> Self:
        return cls(tuple(sorted(knobs.items())), tuple(sorted(recipes)))

    @property
    def size(self) -> int:
        return len(self.knobs) + len(self.recipes)

    def format(self) -> str:
        """`Settings: learning_rate=0.006, recipe=muon`."""
        items = [f"{name}={value}" for name, value in self.knobs]
        items += [f"{_RECIPE}={name}" for name in self.recipes]
        return "Settings: " + ", ".join(items)

    @classmethod
    def read(cls, idea_text: str) -> Self | None:
        """The settings an idea states, or None if it states none that can be read."""
        line = _LINE.search(idea_text)
        if line is None:
            return None
        knobs: dict[str, str] = {}
        recipes: set[str] = set()
        for item in _NEXT.split(line[1].strip(" \t")):
            found = _ITEM.fullmatch(item.strip())
            if found is None:
                return None
            if found[1] == _RECIPE:
                recipes.add(found[2])
            else:
                knobs[found[1]] = found[2]
        return cls.of(knobs, recipes)
