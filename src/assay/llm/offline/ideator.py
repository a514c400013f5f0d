"""The offline ideator, not a model: draws from an environment's declared knobs and recipes."""

import random

from assay.llm.ideation import (
    BUILDING,
    CallRecord,
    IdeationRequest,
    Operator,
    ProposedIdea,
    Trajectory,
)
from assay.llm.interface import ModelError
from assay.llm.offline.exact import exact_idea, recipe_blocks
from assay.llm.offline.knobs import Recipe
from assay.llm.offline.settings import Settings
from assay.llm.offline.space import RECIPE, Space, atoms_of, settings_of
from assay.patching import search_replace_blocks

NAME = "offline:knobs"
#: How an idea of one parent begins.
_VARIED: dict[Operator, str] = {
    "exploit": "Vary an experiment that beat the baseline.",
    "refine": "Vary a promising experiment.",
    "combine": "Vary a promising experiment.",
    "ablate": "Leave a change of a promising experiment out.",
    "rescue": "Save an experiment that failed: leave out what may have broken it.",
}


class OfflineIdeator:
    """Ideas without a model: the same request has the same ideas, on every machine.

    Seed and explore draw knob values, recipes and pairs of them that no given trajectory tried.
    The other operators read the settings of their parents back from the ideas. Refine moves a knob
    to a neighbouring value, combine joins two, exploit does either; ablate leaves one change out.
    So does rescue, of an idea that failed, or it draws other changes if none is left.
    `misfit_share` and `crash_share` of the ideas of seed and explore use recipes that are known to
    fail in patching and in execution, where there are any.
    When everything was tried, ideas repeat.
    """

    def __init__(self, *, misfit_share: float = 0.1, crash_share: float = 0.1) -> None:
        """Raises ValueError unless the shares are from 0 to 1, together too."""
        if min(misfit_share, crash_share) < 0 or misfit_share + crash_share > 1:
            raise ValueError("shares must be from 0 to 1, together too")
        self._misfit_share = misfit_share
        self._crash_share = crash_share

    @property
    def name(self) -> str:
        return NAME

    @property
    def prompt_version(self) -> str:
        return "knobs-2"

    async def propose(
        self, request: IdeationRequest, *, record: CallRecord | None = None
    ) -> list[ProposedIdea]:
        """See `Ideator.propose`. `record` hears nothing: no call is made.

        Raises ModelError if the environment declares nothing to draw from, ValueError if a knob or
        recipe does not fit its codebase.
        """
        space = Space(request)
        if not space.atoms():
            raise ModelError(
                f"{request.environment_title} declares no knobs and no recipes, so the offline "
                "ideator has nothing to draw from. Choose a model."
            )
        rng = random.Random(request.seed)
        seen = (*request.trajectories, *request.parents)
        tried = {Settings.read(past.idea_text) or Settings() for past in seen}
        readable = _readable(space, request.parents, failed=request.operator == "rescue")
        ideas: list[ProposedIdea] = []
        for _ in range(request.count):
            if request.operator in BUILDING:
                found = _vary(space, rng, tried, readable, request.operator)
                settings, parents = found or (space.draw(rng, tried), ())
            else:
                settings, parents = self._new(space, rng, tried), ()
            tried.add(settings)
            text = _idea_text(space, settings, parents, request.operator)
            ideas.append(ProposedIdea(text, request.operator, parents))
        return ideas

    async def aclose(self) -> None:
        """Nothing to close."""

    def _new(self, space: Space, rng: random.Random, tried: set[Settings]) -> Settings:
        roll = rng.random()
        misfits, crashes = space.of_kind("misfit"), space.of_kind("crash")
        if roll < self._misfit_share and misfits:
            return _failing(space, rng, tried, misfits)
        if self._misfit_share <= roll < self._misfit_share + self._crash_share and crashes:
            return _failing(space, rng, tried, crashes)
        return space.draw(rng, tried)


def _failing(
    space: Space, rng: random.Random, tried: set[Settings], recipes: list[Recipe]
) -> Settings:
    """A failing recipe alone, or with a knob where it was tried alone before."""
    recipe = rng.choice(recipes)
    alone = Settings.of({}, {recipe.name})
    if alone not in tried:
        return alone
    knobs = [atom for atom in space.atoms() if atom[0] != RECIPE]
    rng.shuffle(knobs)
    candidates = (Settings.of(dict([atom]), {recipe.name}) for atom in knobs)
    return next((s for s in candidates if space.is_new(s, tried)), alone)


def _readable(
    space: Space, parents: tuple[Trajectory, ...], *, failed: bool
) -> list[tuple[Trajectory, Settings]]:
    """Parents whose settings can be read back, best first.

    Those that `failed` may hold recipes that cannot work; what is left of them without these can.
    """
    found = []
    for past in sorted(parents, key=lambda t: (-t.reward, t.id)):
        settings = Settings.read(past.idea_text)
        if settings is not None and failed:
            atoms = [atom for atom in atoms_of(settings) if atom in space.declared()]
            settings = settings_of(atoms)
        if settings is not None and (failed or space.knows(settings)):
            found.append((past, settings))
    return found


def _vary(
    space: Space,
    rng: random.Random,
    tried: set[Settings],
    readable: list[tuple[Trajectory, Settings]],
    operator: Operator,
) -> tuple[Settings, tuple[str, ...]] | None:
    """An untried variant of the parents, with those it comes from; None if there is none."""
    weights = [1.0 / (rank + 1) for rank in range(len(readable))]
    for _ in range(60 if readable else 0):
        past, settings = rng.choices(readable, weights)[0]
        joins = operator == "combine" or (operator == "exploit" and rng.random() < 0.5)
        if joins and len(readable) > 1:
            other, more = rng.choice([pair for pair in readable if pair[0] is not past])
            joined = settings_of([*atoms_of(settings), *atoms_of(more)])
            if joined is not None and space.is_new(joined, tried):
                return joined, (past.id, other.id)
            continue
        is_smaller = operator in ("ablate", "rescue")
        near = list(space.smaller(settings)) if is_smaller else space.neighbours(settings)
        near = [each for each in near if space.is_new(each, tried)]
        if not near and operator == "rescue":
            near = [space.draw(rng, tried)]
        if near:
            return rng.choice(near), (past.id,)
    return None


def _idea_text(
    space: Space, settings: Settings, parents: tuple[str, ...], operator: Operator
) -> str:
    sentences = []
    if len(parents) == 1:
        sentences.append(_VARIED[operator])
    elif parents:
        beat = " that beat the baseline" if operator == "exploit" else ""
        sentences.append(f"Combine two experiments{beat}.")
    for name, value in settings.knobs:
        knob = space.knobs[name]
        sentences.append(f"Change the {knob.label} from {knob.baseline} to {value}.")
    recipes = [space.recipes[name] for name in settings.recipes]
    sentences += [f"{recipe.title.rstrip('.')}." for recipe in recipes]
    experiment = f"{' '.join(sentences)}\n{settings.format()}"
    blocks = search_replace_blocks(space.files, space.codebase(settings) or space.files)
    for recipe in recipes:
        if recipe.kind == "misfit":
            blocks += recipe_blocks(recipe)
    return exact_idea(experiment, blocks)
