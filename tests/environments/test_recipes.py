"""Knobs, recipes and committed edits of the bundled environments fit their codebases."""

from __future__ import annotations

import ast
import functools
import itertools
from pathlib import Path

import pytest

from assay.patching import apply_answer, unified_diff
from tests.environments.conftest import Bundled, load

NAMES = ["grpo", "nanogpt", "toy"]
TRAINED = ["grpo", "nanogpt"]


@pytest.fixture(params=NAMES, scope="module")
def bundled(request: pytest.FixtureRequest) -> Bundled:
    return load(str(request.param))


def compiles(files: dict[str, str]) -> None:
    for path, text in files.items():
        if path.endswith(".py"):
            parse(text)


@functools.cache
def parse(text: str) -> None:
    ast.parse(text)


def touched(bundled: Bundled, name: str) -> set[tuple[str, int]]:
    """The baseline lines that a recipe or knob replaces."""
    lines = set()
    for file, search, _ in bundled.edits(name):
        first = bundled.files[file][: bundled.files[file].index(search)].count("\n")
        lines |= {(file, first + i) for i in range(search.count("\n"))}
    return lines


def test_there_is_enough_to_try() -> None:
    for trained in map(load, TRAINED):
        assert len(trained.environment.manifest.knobs) >= 12
        assert len(trained.names("edit")) >= 12
        assert len(trained.names("misfit")) >= 2
        assert len(trained.names("crash")) >= 2
    toy = load("toy")
    assert len(toy.environment.manifest.knobs) >= 4
    assert len(toy.names("edit")) >= 4
    assert toy.names("misfit")
    assert toy.names("crash")


def test_every_knob_is_one_line_with_other_values(bundled: Bundled) -> None:
    for knob in bundled.environment.manifest.knobs:
        lines = bundled.files[knob.file].splitlines()
        assert lines.count(knob.line) == 1, knob.name
        value = knob.line[knob.line.rindex("= ") + 2 :]
        assert value not in knob.values
        assert len(set(knob.values)) == len(knob.values)
        assert knob.title
        for other in knob.values:
            compiles(bundled.apply(f"{knob.name}={other}"))


def test_names_are_unique(bundled: Bundled) -> None:
    manifest = bundled.environment.manifest
    names = [k.name for k in manifest.knobs] + [r.name for r in manifest.recipes]
    assert len(set(names)) == len(names)


def test_recipes_that_apply_stand_exactly_once_and_compile(bundled: Bundled) -> None:
    for kind in ("edit", "crash", "control"):
        for name in bundled.names(kind):
            files = bundled.apply(name)
            assert files != bundled.files
            compiles(files)


def test_misfits_fit_nowhere(bundled: Bundled) -> None:
    for name in bundled.names("misfit"):
        for file, search, replace in bundled.edits(name):
            assert file in bundled.files
            assert search not in bundled.files[file]
            assert search != replace
            with pytest.raises(LookupError):
                bundled.apply(name)


def test_recipes_leave_protected_files_alone(bundled: Bundled) -> None:
    protected = bundled.environment.manifest.codebase.protected
    assert protected
    for recipe in bundled.environment.manifest.recipes:
        assert not {e.file for e in recipe.edits} & set(protected)


def test_two_that_touch_different_lines_compose(bundled: Bundled) -> None:
    names = [*bundled.names("edit"), *bundled.names("crash")]
    names += [f"{k.name}={k.values[0]}" for k in bundled.environment.manifest.knobs]
    composed = 0
    for one, two in itertools.permutations(names, 2):
        if touched(bundled, one) & touched(bundled, two):
            continue
        compiles(bundled.apply(one, two))
        composed += 1
    assert composed > len(names) * (len(names) - 1) * 0.8


def test_recipes_survive_the_way_through_a_diff(bundled: Bundled) -> None:
    protected = bundled.environment.manifest.codebase.protected
    for name in bundled.names("edit"):
        wanted = bundled.apply(name)
        answer = unified_diff(bundled.files, wanted)
        assert apply_answer(bundled.files, answer, protected=protected).files == wanted


def committed(name: str) -> list[Path]:
    return sorted((Path(__file__).parent / name).glob("*/*.diff"))


@pytest.mark.parametrize("name", TRAINED)
def test_good_bad_and_published_edits_are_committed(name: str) -> None:
    kinds = [(p.parent.name, p.stem.split("_")[0]) for p in committed(name)]
    assert kinds.count(("edits", "good")) >= 8
    assert kinds.count(("edits", "bad")) >= 8
    assert sum(folder == "paper" for folder, _ in kinds) >= 8


@pytest.mark.parametrize(
    ("name", "path"),
    [(name, path) for name in TRAINED for path in committed(name)],
    ids=lambda value: value if isinstance(value, str) else value.stem,
)
def test_committed_edits_apply_at_the_lines_they_name(name: str, path: Path) -> None:
    diff, environment = path.read_text(), load(name)
    files, protected = environment.files, environment.environment.manifest.codebase.protected
    after = apply_answer(files, diff, protected=protected).files
    compiles(after)
    # The same diff comes out again only if every line number in it is right.
    assert unified_diff(files, after) == diff
