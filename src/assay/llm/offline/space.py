"""The settings an environment's knobs and recipes allow, and the codebases they mean."""

import ast
import itertools
import random
from collections.abc import Iterable, Iterator

from assay.llm.ideation import IdeationRequest
from assay.llm.offline.compose import Splice, combine, knob_splices, recipe_splices
from assay.llm.offline.knobs import Knob, Recipe
from assay.llm.offline.settings import Settings

Atom = tuple[str, str]  # (knob, value), or ("recipe", name)
RECIPE = "recipe"


class Space:
    """Everything that can be drawn for one request, in an order that depends on names only.

    Raises ValueError where a knob or recipe does not fit the codebase.
    """

    def __init__(self, request: IdeationRequest) -> None:
        self.files = request.files
        self.knobs = {knob.name: knob for knob in sorted(request.knobs, key=lambda k: k.name)}
        recipes = sorted(request.recipes, key=lambda r: r.name)
        self.recipes = {recipe.name: recipe for recipe in recipes}
        self._splices: dict[Atom, list[Splice]] = {}
        for knob in self.knobs.values():
            for value in knob.values:
                self._splices[knob.name, value] = knob_splices(self.files, knob, value)
        for recipe in recipes:
            # The context of a misfit stands nowhere, so it has no place among the splices.
            fits = recipe.kind != "misfit"
            self._splices[RECIPE, recipe.name] = recipe_splices(self.files, recipe) if fits else []

    def atoms(self) -> list[Atom]:
        """All single changes that are expected to work."""
        knobs = [(knob.name, value) for knob in self.knobs.values() for value in knob.values]
        return knobs + [(RECIPE, recipe.name) for recipe in self.of_kind("edit")]

    def of_kind(self, kind: str) -> list[Recipe]:
        return [recipe for recipe in self.recipes.values() if recipe.kind == kind]

    def knows(self, settings: Settings) -> bool:
        """Whether every part of settings read from a text is declared here and should work."""
        atoms = set(self.atoms())
        return settings.size > 0 and all(atom in atoms for atom in atoms_of(settings))

    def declared(self) -> set[Atom]:
        """All single changes, also those that are known to fail."""
        return set(self._splices)

    def smaller(self, settings: Settings) -> Iterator[Settings]:
        """Settings with one change less that are expected to work, if any change is left."""
        atoms = atoms_of(settings)
        for left_out in atoms:
            rest = settings_of(atom for atom in atoms if atom != left_out)
            if rest is not None and self.knows(rest):
                yield rest

    def codebase(self, settings: Settings) -> dict[str, str] | None:
        """The changed tree; None where parts of the settings clash."""
        splices = [splice for atom in atoms_of(settings) for splice in self._splices[atom]]
        return combine(self.files, splices)

    def is_new(self, settings: Settings, tried: set[Settings]) -> bool:
        """Whether the settings change something, were not tried, and do not clash."""
        return settings.size > 0 and settings not in tried and self.codebase(settings) is not None

    def draw(self, rng: random.Random, tried: set[Settings]) -> Settings:
        """New settings of one or two changes; of three once those run out; a repeat at the last.

        There must be at least one atom.
        """
        atoms = self.atoms()
        for _ in range(50):
            size = min(len(atoms), rng.choice((1, 2)))
            settings = settings_of(rng.sample(atoms, size))
            if settings is not None and self.is_new(settings, tried):
                return settings
        left = self._all(atoms, tried)
        return next(left, None) or settings_of([rng.choice(atoms)]) or Settings()

    def _all(self, atoms: list[Atom], tried: set[Settings]) -> Iterator[Settings]:
        for size in (1, 2, 3):
            for chosen in itertools.combinations(atoms, size):
                settings = settings_of(chosen)
                if settings is not None and self.is_new(settings, tried):
                    yield settings

    def neighbours(self, settings: Settings) -> list[Settings]:
        """Settings with one knob moved to the next value up or down (the baseline's is one)."""
        found: list[Settings] = []
        current = dict(settings.knobs)
        for knob in self.knobs.values():
            order = ordered_values(knob)
            at = order.index(current.get(knob.name, knob.baseline))
            for value in order[max(0, at - 1) : at] + order[at + 1 : at + 2]:
                moved = {k: v for k, v in current.items() if k != knob.name}
                if value != knob.baseline:
                    moved[knob.name] = value
                found.append(Settings.of(moved, set(settings.recipes)))
        return found


def atoms_of(settings: Settings) -> list[Atom]:
    return [*settings.knobs, *((RECIPE, name) for name in settings.recipes)]


def settings_of(atoms: Iterable[Atom]) -> Settings | None:
    """Settings of several changes; None where one knob would have two values."""
    knobs: dict[str, str] = {}
    recipes: set[str] = set()
    for name, value in atoms:
        if name == RECIPE:
            recipes.add(value)
        elif knobs.setdefault(name, value) != value:
            return None
    return Settings.of(knobs, recipes)


def ordered_values(knob: Knob) -> list[str]:
    """The baseline's and the other values: by size if all are numbers, else as declared."""
    values = [knob.baseline, *knob.values]
    numbers = {value: _number(value) for value in values}
    if any(number is None for number in numbers.values()):
        return values
    return sorted(values, key=lambda value: numbers[value] or 0.0)


def _number(value: str) -> float | None:
    try:
        number = ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return None
    is_number = isinstance(number, int | float) and not isinstance(number, bool)
    return float(number) if is_number else None
