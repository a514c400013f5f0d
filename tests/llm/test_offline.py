"""The stand-ins that need no model."""

import asyncio
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.domain.hashing import derive_seed
from assay.llm import (
    IdeationRequest,
    ImplementRequest,
    Knob,
    LiteralImplementer,
    ModelError,
    OfflineIdeator,
    Recipe,
    RecipeEdit,
    Trajectory,
    read_answer,
)
from assay.llm.offline.compose import combine, knob_splices, recipe_splices
from assay.llm.offline.settings import Settings
from assay.patching import PatchRefused, apply_answer

TRAIN = """import math

class Config:
    learning_rate: float = 0.003
    warmup = 10
    betas = (0.9, 0.95)

def rate(step):
    base = Config.learning_rate
    if step < Config.warmup:
        return base * step
    return base
"""
FILES = {"train.py": TRAIN, "model.py": "width = 8\nact = 'gelu'\n"}
KNOBS = (
    Knob(
        "learning_rate", "train.py", "    learning_rate: float = 0.003", ("0.001", "0.006", "0.01")
    ),
    Knob("warmup", "train.py", "    warmup = 10", ("0", "20")),
    Knob("betas", "train.py", "    betas = (0.9, 0.95)", ("(0.9, 0.99)",), "momenta"),
    Knob("act", "model.py", "act = 'gelu'", ("'relu'",)),
)
SQUARE = Recipe(
    "square",
    "Square the warm-up",
    "edit",
    (
        RecipeEdit(
            "train.py",
            "    warmup = 10\n    betas = (0.9, 0.95)\n\ndef rate(step):",
            "    warmup = 10\n    betas = (0.9, 0.95)\n    power = 2\n\ndef rate(step):",
        ),
        RecipeEdit("train.py", "base * step\n", "base * step ** Config.power\n"),
    ),
)
FLAT = Recipe(
    "flat",
    "No warm-up",
    "edit",
    (RecipeEdit("train.py", "        return base * step", "        return base"),),
)
MISFIT = Recipe(
    "lost", "Edit what is not there", "misfit", (RecipeEdit("train.py", "nope = 1", "nope = 2"),)
)
CRASH = Recipe(
    "boom", "Divide by zero", "crash", (RecipeEdit("model.py", "width = 8", "width = 8 // 0"),)
)
RECIPES = (SQUARE, FLAT, MISFIT, CRASH)


def ideation(operator="seed", count=8, seed=1, **options):
    base = IdeationRequest(
        operator, count, "Small GPT", "", "val_loss", FILES, seed, knobs=KNOBS, recipes=RECIPES
    )
    return replace(base, **options)


def propose(request, **shares):
    return asyncio.run(OfflineIdeator(**shares).propose(request))


def implement(idea_text, files=FILES):
    request = ImplementRequest("Small GPT", files, (), idea_text)
    return asyncio.run(LiteralImplementer().implement(request)).text


def settings(idea):
    return Settings.read(idea.text)


def past(idea, i=0, reward=1.0, state="succeeded"):
    return Trajectory(f"exp_{i}", 0, i, idea.text, reward, state, metric=1 / reward)


def idea_with(knobs=None, recipes=()):
    line = Settings.of(knobs or {}, set(recipes)).format()
    return Trajectory(
        "exp_x", 0, 0, f"[Experiment] E\n{line}\n[Code Changes] c\n[End]", 2.0, "succeeded"
    )


@pytest.mark.parametrize("operator", ["seed", "explore", "exploit"])
def test_ideas_pass_through_the_whole_path(operator):
    ideas = propose(
        ideation(operator, 30, parents=(idea_with({"warmup": "20"}),)),
        misfit_share=0,
        crash_share=0,
    )
    assert len({settings(idea) for idea in ideas}) == 30
    for idea in ideas:
        assert len(read_answer(idea.text).ideas) == 1
        after = apply_answer(FILES, implement(idea.text)).files
        for name, value in settings(idea).knobs:
            knob = next(k for k in KNOBS if k.name == name)
            assert knob.line_with(value) in after[knob.file]
            assert f"to {value}." in idea.text
        for name in settings(idea).recipes:
            marker = {"square": "power = 2", "flat": "        return base\n"}[name]
            assert marker in after["train.py"]


def test_failures_are_exercised_in_the_asked_share():
    ideas = propose(ideation(count=40), misfit_share=0.25, crash_share=0.25)
    lost = [idea for idea in ideas if "lost" in settings(idea).recipes]
    boom = [idea for idea in ideas if "boom" in settings(idea).recipes]
    assert 5 <= len(lost) <= 15
    assert 5 <= len(boom) <= 15
    # Alone and with each of seven knob values: what fails varies as long as it can.
    assert len({settings(idea) for idea in lost}) == min(8, len(lost))
    for idea in lost:
        with pytest.raises(PatchRefused) as refused:
            apply_answer(FILES, implement(idea.text))
        assert refused.value.code == "no_match"
        assert "nope = 1" in refused.value.log
    for idea in boom:
        assert "8 // 0" in apply_answer(FILES, implement(idea.text)).files["model.py"]


def test_the_same_request_has_the_same_ideas():
    request = ideation("explore", 12, trajectories=(idea_with({"warmup": "20"}),))
    shuffled = replace(
        request,
        knobs=KNOBS[::-1],
        recipes=RECIPES[::-1],
        files=dict(reversed(FILES.items())),
    )
    assert propose(request) == propose(request) == propose(shuffled)
    assert propose(request) != propose(replace(request, seed=2))
    assert derive_seed(1, 2, "seed") == 7303818684641372748


def test_what_was_tried_is_not_proposed_again():
    first = propose(ideation(count=15), misfit_share=0, crash_share=0)
    tried = tuple(past(idea, i) for i, idea in enumerate(first))
    more = propose(ideation("explore", 15, 1, trajectories=tried), misfit_share=0, crash_share=0)
    assert not {settings(i) for i in first} & {settings(i) for i in more}


def test_ideas_repeat_only_when_nothing_is_left():
    ideas = propose(ideation(count=5, knobs=KNOBS[1:2], recipes=()))
    assert len({settings(idea) for idea in ideas[:2]}) == 2
    assert len(ideas) == 5


def test_exploit_moves_to_a_neighbour():
    positive = idea_with({"learning_rate": "0.006"})
    ideas = propose(ideation("exploit", 5, parents=(positive,), recipes=()))
    seen = {settings(idea) for idea in ideas}
    assert Settings.of({"learning_rate": "0.01"}, set()) in seen
    assert Settings.of({"learning_rate": "0.006", "warmup": "0"}, set()) in seen
    assert Settings.of({"learning_rate": "0.001"}, set()) not in seen
    assert len(seen) == 5
    assert {idea.parents for idea in ideas} == {("exp_x",)}
    assert {idea.operator for idea in ideas} == {"exploit"}


def test_exploit_combines_two():
    one = replace(idea_with({"warmup": "20"}), id="exp_1", reward=3.0)
    two = replace(idea_with({}, ["square"]), id="exp_2")
    ideas = propose(ideation("exploit", 12, parents=(one, two)))
    joined = [i for i in ideas if settings(i) == Settings.of({"warmup": "20"}, {"square"})]
    assert {frozenset(idea.parents) for idea in joined} == {frozenset({"exp_1", "exp_2"})}


def test_exploit_of_ideas_it_cannot_read_draws_new_ones():
    foreign = replace(idea_with(), idea_text="[Experiment] Use more data [Code Changes] x [End]")
    ideas = propose(ideation("exploit", 3, parents=(foreign,)))
    assert [idea.parents for idea in ideas] == [(), (), ()]


def test_mistakes_of_an_environment_are_named():
    with pytest.raises(ModelError, match="declares no knobs"):
        propose(ideation(knobs=(), recipes=(MISFIT,)))
    with pytest.raises(ValueError, match=r"'k'.*0 times"):
        propose(ideation(knobs=(Knob("k", "train.py", "gone = 1", ("2",)),)))
    wrong = replace(FLAT, edits=(RecipeEdit("train.py", "base", "b"),))
    with pytest.raises(ValueError, match=r"'flat'.*3 times"):
        propose(ideation(recipes=(wrong,)))
    with pytest.raises(ValueError, match="one line"):
        Knob("k", "f", "a = 1\nb = 2", ("3",))
    with pytest.raises(ValueError, match="alternatives"):
        Knob("k", "f", "a = 1", ("1",))


@pytest.mark.parametrize(
    ("line", "baseline"),
    [("a: float = 0.1", "0.1"), ("b = (1, 2)", "(1, 2)"), ("rate=3", "3"), ("  - size 4", "4")],
)
def test_the_baseline_value_of_a_line(line, baseline):
    knob = Knob("k", "f", line, ("new",))
    assert knob.baseline == baseline
    assert knob.line_with("new") == line.removesuffix(baseline) + "new"


def test_settings_are_read_back():
    full = Settings.of({"betas": "(0.9, 0.99)", "rate": "1e-3"}, {"b", "a"})
    assert full.format() == "Settings: betas=(0.9, 0.99), rate=1e-3, recipe=a, recipe=b"
    assert Settings.read(f"[Experiment] x\n{full.format()}\n[Code Changes]") == full
    assert Settings.read("no settings here") is None
    assert Settings.read("Settings: whatever") is None


@given(st.randoms(use_true_random=False))
def test_the_order_of_edits_does_not_matter(rng: random.Random):
    pool = [knob_splices(FILES, k, rng.choice(k.values)) for k in KNOBS]
    pool += [recipe_splices(FILES, r) for r in (SQUARE, FLAT, CRASH)]
    chosen = rng.sample(pool, 3)
    splices = [splice for group in chosen for splice in group]
    shuffled = rng.sample(splices, len(splices))
    assert combine(FILES, splices) == combine(FILES, shuffled)


def test_edits_of_the_same_lines():
    knob = knob_splices(FILES, KNOBS[1], "20")  # a line inside the search text of the recipe
    after = combine(FILES, [*recipe_splices(FILES, SQUARE), *knob])
    assert "    warmup = 20\n    betas = (0.9, 0.95)\n    power = 2\n" in after["train.py"]
    clash = [*recipe_splices(FILES, SQUARE), *recipe_splices(FILES, FLAT)]
    assert combine(FILES, clash) is None


BLOCK = "In `{}`:\n<<<<<<< SEARCH\n{}\n=======\n{}\n>>>>>>> REPLACE\n"


@pytest.mark.parametrize(
    ("code_changes", "code"),
    [
        ("Please use a better optimiser.", "no_diff"),
        (BLOCK.format("train.py", "gone = 1", "gone = 2"), "no_match"),
        (BLOCK.format("other.py", "gone = 1", "gone = 2"), "unknown_file"),
        (BLOCK.format("train.py", "    return base\n    return base", "x"), "no_match"),
        (BLOCK.format("model.py", "width = 8", "width = 8"), "no_diff"),
        (BLOCK.format("../x.py", "", "width = 8"), "bad_path"),
        ("In `train.py`:\n<<<<<<< SEARCH\nwidth = 8\n", "no_diff"),
    ],
)
def test_literal_implementer_leaves_the_judgement_to_patching(code_changes, code):
    answer = implement(f"[Experiment] x\n[Code Changes] {code_changes}\n[End]")
    with pytest.raises(PatchRefused) as refused:
        apply_answer(FILES, answer)
    assert refused.value.code == code


def test_literal_implementer_carries_out_edits_and_new_files():
    edits = (
        BLOCK.format("model.py", "width = 8", "width = 9")
        + BLOCK.format("model.py", "width = 9\nact = 'gelu'", "width = 9\nact = 'relu'")
        + BLOCK.format("sub/new.py", "", "a = 1\nb = 2")
    )
    answer = implement(f"[Experiment] x\n[Code Changes] {edits}\n[End]")
    assert "```diff" in answer
    after = apply_answer(FILES, answer).files
    assert after == {
        **FILES,
        "model.py": "width = 9\nact = 'relu'\n",
        "sub/new.py": "a = 1\nb = 2\n",
    }


def test_an_ambiguous_edit_is_refused_by_patching():
    files = {"n.py": "a = 1\nb = 1\na = 1\nc = 1\n"}
    answer = implement(
        f"[Experiment] x\n[Code Changes] {BLOCK.format('n.py', 'a = 1', 'a = 2')}\n[End]", files
    )
    with pytest.raises(PatchRefused) as refused:
        apply_answer(files, answer)
    assert refused.value.code == "ambiguous"


def test_refine_moves_to_a_neighbour_and_combine_joins_two():
    one = replace(idea_with({"warmup": "20"}), id="exp_1", reward=3.0)
    two = replace(idea_with({}, ["square"]), id="exp_2")
    refined = propose(ideation("refine", 4, parents=(one,), recipes=()))
    assert {idea.parents for idea in refined} == {("exp_1",)}
    assert {idea.operator for idea in refined} == {"refine"}
    (joined,) = propose(ideation("combine", 1, parents=(one, two)))
    assert settings(joined) == Settings.of({"warmup": "20"}, {"square"})
    assert set(joined.parents) == {"exp_1", "exp_2"}


def test_ablate_leaves_one_change_out():
    both = idea_with({"warmup": "20", "learning_rate": "0.006"})
    ideas = propose(ideation("ablate", 2, parents=(both,)))
    assert {settings(idea) for idea in ideas} == {
        Settings.of({"warmup": "20"}, set()),
        Settings.of({"learning_rate": "0.006"}, set()),
    }
    assert {idea.parents for idea in ideas} == {("exp_x",)}


@pytest.mark.parametrize("failing", ["misfit", "crash"])
def test_rescue_leaves_out_what_failed_and_never_repeats_it(failing):
    recipe = {"misfit": MISFIT, "crash": CRASH}[failing].name
    failed = replace(idea_with({"warmup": "20"}, [recipe]), state="failed", reward=0.0)
    ideas = propose(ideation("rescue", 6, parents=(failed,), trajectories=(failed,)))
    assert settings(ideas[0]) == Settings.of({"warmup": "20"}, set())
    assert all(recipe not in settings(idea).recipes for idea in ideas)
    assert {idea.parents for idea in ideas} == {("exp_x",)}


def test_rescue_draws_other_changes_where_nothing_is_left():
    failed = replace(idea_with({}, [CRASH.name]), state="failed", reward=0.0)
    ideas = propose(ideation("rescue", 3, parents=(failed,), trajectories=(failed,)))
    assert all(CRASH.name not in settings(idea).recipes for idea in ideas)
    assert {idea.parents for idea in ideas} == {("exp_x",)}
