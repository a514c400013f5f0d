"""Knobs, recipes and committed edits of the bundled environments fit their codebases."""

from __future__ import annotations

import ast
import itertools
from pathlib import Path

import pytest

from assay.patching import apply_answer, unified_diff
from tests.environments.conftest import Bundled, load

NAMES = ["nanogpt", "toy"]


@pytest.fixture(params=NAMES, scope="module")
def bundled(request: pytest.FixtureRequest) -> Bundled:
    return load(str(request.param))


def compiles(files: dict[str, str]) -> None:
    for path, text in files.items():
        ast.parse(text, path)


def touched(bundled: Bundled, name: str) -> set[tuple[str, int]]:
    """The baseline lines that a recipe or knob replaces."""
    lines = set()
    for file, search, _ in bundled.edits(name):
        first = bundled.files[file][: bundled.files[file].index(search)].count("\n")
        lines |= {(file, first + i) for i in range(search.count("\n"))}
    return lines


def test_there_is_enough_to_try() -> None:
    nanogpt, toy = load("nanogpt"), load("toy")
    assert len(nanogpt.environment.manifest.knobs) >= 8
    assert len(nanogpt.names("edit")) >= 8
    assert len(nanogpt.names("misfit")) >= 2
    assert len(nanogpt.names("crash")) >= 2
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
    for kind in ("edit", "crash"):
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


def committed() -> list[Path]:
    return sorted((Path(__file__).parent / "nanogpt").glob("*.diff"))


def test_good_and_bad_edits_are_committed() -> None:
    kinds = [path.stem.split("_")[0] for path in committed()]
    assert kinds.count("good") >= 3
    assert kinds.count("bad") >= 3


@pytest.mark.parametrize("path", committed(), ids=lambda path: path.stem)
def test_committed_edits_apply_at_the_lines_they_name(nanogpt: Bundled, path: Path) -> None:
    diff = path.read_text()
    after = apply_answer(nanogpt.files, diff, protected=("predict.py",)).files
    compiles(after)
    # The same diff comes out again only if every line number in it is right.
    assert unified_diff(nanogpt.files, after) == diff
