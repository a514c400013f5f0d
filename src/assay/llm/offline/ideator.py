"""The offline ideator, not a model: draws from an environment's declared knobs and recipes."""

import random

from assay.llm.ideation import CallRecord, IdeationRequest, ProposedIdea, Trajectory
from assay.llm.interface import ModelError
from assay.llm.offline.exact import exact_idea, recipe_blocks
from assay.llm.offline.knobs import Recipe
from assay.llm.offline.settings import Settings
from assay.llm.offline.space import RECIPE, Space, atoms_of, settings_of
from assay.patching import search_replace_blocks

NAME = "offline:knobs"


class OfflineIdeator:
    """Ideas without a model: the same request has the same ideas, on every machine.

    Seed and explore draw knob values, recipes and pairs of them that no given trajectory tried.
    Exploit reads the settings of positive trajectories back from their ideas and moves a knob to a
    neighbouring value, or combines two. `misfit_share` and `crash_share` of the ideas of seed and
    explore use recipes that are known to fail in patching and in execution, where there are any.
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
        return "knobs-1"

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
        readable = _readable(space, request.parents)
        ideas: list[ProposedIdea] = []
        for _ in range(request.count):
            if request.operator == "exploit":
                settings, parents = _vary(space, rng, tried, readable)
            else:
                settings, parents = self._new(space, rng, tried), ()
            tried.add(settings)
            text = _idea_text(space, settings, parents)
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


def _readable(space: Space, parents: tuple[Trajectory, ...]) -> list[tuple[Trajectory, Settings]]:
    """Positives whose settings can be read back, best first."""
    found = []
    for past in sorted(parents, key=lambda t: (-t.reward, t.id)):
        settings = Settings.read(past.idea_text)
        if settings is not None and space.knows(settings):
            found.append((past, settings))
    return found


def _vary(
    space: Space,
    rng: random.Random,
    tried: set[Settings],
    readable: list[tuple[Trajectory, Settings]],
) -> tuple[Settings, tuple[str, ...]]:
    """An untried variant of positives, with its parents; something new if there is none."""
    weights = [1.0 / (rank + 1) for rank in range(len(readable))]
    for _ in range(60 if readable else 0):
        past, settings = rng.choices(readable, weights)[0]
        if len(readable) > 1 and rng.random() < 0.5:
            other, more = rng.choice([pair for pair in readable if pair[0] is not past])
            joined = settings_of([*atoms_of(settings), *atoms_of(more)])
            if joined is not None and space.is_new(joined, tried):
                return joined, (past.id, other.id)
            continue
        near = [s for s in space.neighbours(settings) if space.is_new(s, tried)]
        if near:
            return rng.choice(near), (past.id,)
    return space.draw(rng, tried), ()


def _idea_text(space: Space, settings: Settings, parents: tuple[str, ...]) -> str:
    sentences = []
    if len(parents) == 1:
        sentences.append("Vary an experiment that beat the baseline.")
    elif parents:
        sentences.append("Combine two experiments that beat the baseline.")
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
