"""The benchmark of patching is honest, and a slice of it is passed."""

import os
import subprocess
from collections import Counter

import pytest

from benchmarks.patching.corpus import Slot, fill, pairs, slots
from benchmarks.patching.corrupt import MODES
from benchmarks.patching.model import Document, section
from benchmarks.patching.proof import doubt
from benchmarks.patching.refuse import ESCAPES, REFUSALS
from benchmarks.patching.render import render
from benchmarks.patching.score import with_assay
from benchmarks.patching.tools import Place
from tests.support.needs import require_git

SEED = 11
# What damage to an answer may cost at most: the shares that are still applied right.
SINGLE, PAIRS = 0.99, 0.95
TWINS = """def warm(step):
    rate = 1
    return rate


def cool(step):
    rate = 1
    return rate
"""


def made(group, names, count):
    return filled([Slot(group, (names[n % len(names)],), n) for n in range(count)])


def filled(plan):
    """The cases of a plan; a few places may stay empty, where chance found no case."""
    cases = [found.case for found in (fill(slot, SEED) for slot in plan) if found.case]
    assert len(cases) >= 0.9 * len(plan)
    return cases


def verdicts(cases):
    """Counts, and a line for every case that did not go well."""
    found = [(case, with_assay(case)) for case in cases]
    bad = [(c.mode, o.verdict, o.code) for c, o in found if o.verdict != "correct"]
    return Counter(outcome.verdict for _, outcome in found), bad


@pytest.mark.slow
def test_clean_and_single_modes_are_applied_right():
    cases = made("clean", ["clean"], 15) + made("single", list(MODES), len(MODES))
    counts, bad = verdicts(cases)
    assert counts["wrong"] == 0, bad
    assert counts["correct"] >= SINGLE * counts.total(), bad


@pytest.mark.slow
def test_pairs_of_modes_are_applied_right():
    cases = filled([slot for slot in slots(400, SEED) if slot.group == "pair"][:60])
    counts, bad = verdicts(cases)
    assert counts["wrong"] == 0, bad
    assert counts["correct"] >= PAIRS * counts.total(), bad


@pytest.mark.parametrize(("group", "makers"), [("must_refuse", REFUSALS), ("escape", ESCAPES)])
def test_what_must_be_refused_is_refused(group, makers):
    cases = made(group, list(makers), len(makers))
    assert len(cases) >= 0.95 * len(makers)
    counts, bad = verdicts(cases)
    assert counts["correct"] == counts.total(), bad


def test_a_case_follows_from_its_number_alone():
    plan = slots(400, SEED)
    some = plan[::13]
    first = [fill(slot, SEED).case for slot in some]
    again = [fill(slot, SEED).case for slot in reversed(some)][::-1]
    assert first == again
    assert [fill(slot, SEED + 1).case for slot in some] != first


def test_the_plan_has_every_mode_and_enough_cases():
    plan = slots(2_000, 0)
    assert len(plan) >= 1_500
    assert {mode for slot in plan if slot.group == "single" for mode in slot.modes} == set(MODES)
    assert {slot.modes[0] for slot in plan if slot.group == "must_refuse"} == set(REFUSALS)
    assert {slot.modes[0] for slot in plan if slot.group == "escape"} == set(ESCAPES)
    assert len(pairs()) > 500


def test_git_applies_clean_cases_to_the_same_tree(tmp_path):
    """Two programs that share no code read the same target out of an undamaged answer."""
    require_git()
    for number, case in enumerate(made("clean", ["clean"], 20)):
        place = Place(tmp_path / str(number))
        place.reset(case)
        done = subprocess.run(
            ["git", "apply", "--whitespace=nowarn", "-"],
            cwd=place.tree,
            input=case.answer.encode(),
            capture_output=True,
            env={**os.environ, "GIT_CEILING_DIRECTORIES": str(place.tree.parent)},
        )
        assert done.returncode == 0, (case.kinds, done.stderr.decode())
        assert place.files({}) == case.target, case.kinds


def document(base, target, context=3):
    base_tree, target_tree = {"train.py": base}, {"train.py": target}
    edit = section("train.py", "train.py", base, target, git=False, context=context)
    return Document(base_tree, target_tree, (edit,))


def test_the_proof_drops_what_fits_in_two_places():
    target = TWINS.replace("    return rate\n", "    print(rate)\n    return rate\n", 1)
    assert doubt(document(TWINS, target)) == ""
    # Without the line of the definition, nothing tells the two functions apart; the numbers
    # in the header do, and do not count.
    assert "@@ -2,2 +2,3 @@" in render(document(TWINS, target, context=1))
    assert doubt(document(TWINS, target, context=1)) == "fits elsewhere as well"


def test_the_proof_drops_an_insertion_without_neighbours():
    text = "a = 1\nbb = 2\nccc = 3\ndddd = 4\n"
    edit = document(text, text.replace("ccc", "new = 0\nccc"), context=0)
    assert doubt(edit) == "nothing of the old text survives"
