"""The diffs that the paper prints: docs/design/0002-patching-appendix.md has the table."""

import ast
import re
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import pytest

from assay.patching import PatchRefused, apply_answer

APPENDIX = Path(__file__).parent / "appendix"
TABLE = Path(__file__).parents[2] / "docs" / "design" / "0002-patching-appendix.md"
BASE = {path.name.removesuffix(".txt"): path.read_text() for path in APPENDIX.glob("base/*.txt")}


class Printed(NamedTuple):
    """One hunk as printed, behind the header lines of its file."""

    name: str
    file: str
    header: str
    head: str
    body: str


def printed(example: int) -> list[Printed]:
    file, hunks = [], []
    for line in (APPENDIX / "printed" / f"example-{example}.txt").read_text().splitlines(True):
        if "repo_variants_full_pipeline" in line:
            file = [*file, line] if len(file) == 1 else [line]
        elif re.match(r"\d+ .*@@ -\d", line):
            hunks.append((file, [line]))
        else:
            hunks[-1][1].append(line)
    return [
        Printed(
            f"{example}.{number}",
            file[0].strip().rpartition("/")[2],
            re.sub(r"^\d+\s+", "", lines[0]).strip(),
            "".join(file),
            "".join(lines),
        )
        for number, (file, lines) in enumerate(hunks, 1)
    ]


HUNKS = {hunk.name: hunk for example in range(1, 5) for hunk in printed(example)}
FIXTURES = [name for name in HUNKS if (APPENDIX / "edits" / f"{name}.txt").exists()]


def edited(*names: str) -> dict[str, str]:
    """The base after the edits that these hunks mean."""
    files = dict(BASE)
    for name in names:
        text = (APPENDIX / "edits" / f"{name}.txt").read_text()
        for change in text.split("@ replace\n")[1:]:
            old, new = change.removesuffix("\n").split("\n@ by\n")
            assert files[HUNKS[name].file].count(old) == 1, (name, old)
            files[HUNKS[name].file] = files[HUNKS[name].file].replace(old, new)
    return files


def alone(name: str) -> str:
    return HUNKS[name].head + HUNKS[name].body


def rows() -> list[list[str]]:
    found = re.findall(r"^\| (\d\.\d+ \|.*) \|$", TABLE.read_text(), re.MULTILINE)
    return [[cell.strip() for cell in row.split(" | ")] for row in found]


def test_the_table_names_every_hunk_once():
    assert [(row[0], row[1], row[2]) for row in rows()] == [
        (hunk.name, f"`{hunk.file}`", f"`{hunk.header}`") for hunk in HUNKS.values()
    ]
    assert len(HUNKS) == 38
    assert all(len(row) == 5 and all(row) for row in rows())


def test_every_hunk_is_a_fixture_or_has_a_reason():
    outcomes = {row[0]: row[3] for row in rows()}
    assert [name for name, outcome in outcomes.items() if outcome == "fixture"] == FIXTURES
    assert all(outcomes[name].startswith("refused: ") for name in HUNKS if name not in FIXTURES)
    assert len(FIXTURES) == len(list(APPENDIX.glob("edits/*"))) == 15


@pytest.mark.parametrize("name", FIXTURES)
def test_base_and_result_are_code(name):
    assert edited(name) != BASE
    for files in (BASE, edited(name)):
        for path, text in files.items():
            if path.endswith(".py"):
                ast.parse(text)


@pytest.mark.parametrize("name", FIXTURES)
def test_a_hunk_is_read_as_the_edit_it_means(name):
    assert apply_answer(dict(BASE), alone(name)).files == edited(name)


@pytest.mark.parametrize("name", [name for name in HUNKS if name not in FIXTURES])
def test_a_hunk_that_does_not_say_its_edit_is_refused(name):
    with pytest.raises(PatchRefused):
        apply_answer(dict(BASE), alone(name))


@pytest.mark.parametrize("name", [name for name in HUNKS if name not in FIXTURES])
def test_what_is_refused_is_not_left_out_before_what_can_be_read(name):
    assert apply_answer(dict(BASE), alone("4.6")).files == edited("4.6")
    with pytest.raises(PatchRefused):
        apply_answer(dict(BASE), alone(name) + alone("4.6"))


@pytest.mark.parametrize("example", range(1, 5))
def test_all_readable_hunks_of_an_example_apply_together(example):
    names = [name for name in FIXTURES if name.startswith(f"{example}.")]
    sections = groupby((HUNKS[name] for name in names), key=lambda hunk: hunk.head)
    answer = "".join(head + "".join(hunk.body for hunk in hunks) for head, hunks in sections)
    assert apply_answer(dict(BASE), answer).files == edited(*names)


@pytest.mark.parametrize("example", range(1, 5))
def test_a_whole_example_is_refused(example):
    answer = (APPENDIX / "printed" / f"example-{example}.txt").read_text()
    with pytest.raises(PatchRefused):
        apply_answer(dict(BASE), answer)
