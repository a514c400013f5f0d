"""Whether two codebases are the same code, and what is not worth a measurement."""

from __future__ import annotations

from dataclasses import replace

import pytest

from assay.environments.catalog import Catalog
from assay.storage import implementations
from assay.storage.database import Database
from assay.storage.objects import LocalStore
from services.implementer.canonical import MAX_CHARACTERS, canonical
from services.implementer.judging import Files, judge
from tests.storage.lifecycle import World

BASE = {
    "train.py": '"""Train."""\nimport math\n\n\ndef step(x):\n    """One step."""\n'
    "    return x - 0.1 * math.sin(x)\n",
    "data.txt": "one\n",
}


def with_file(text: str, name: str = "train.py") -> Files:
    return {**BASE, name: text}


def is_same(files: Files, baseline: Files = BASE) -> bool:
    found = canonical(files, baseline)
    return found is not None and found == canonical(baseline, baseline)


@pytest.mark.parametrize(
    "text",
    [
        BASE["train.py"] + "# a comment\n",
        BASE["train.py"].replace('"""One step."""', '"""Another docstring."""'),
        BASE["train.py"].replace('    """One step."""\n', ""),
        BASE["train.py"].replace("0.1 * math.sin(x)", "(0.10 * math.sin(x))  # slow"),
        BASE["train.py"].replace("\n", "\r\n"),
        BASE["train.py"].replace("    ", "  "),
    ],
)
def test_comments_docstrings_and_formatting_are_no_code(text: str) -> None:
    assert is_same(with_file(text))


@pytest.mark.parametrize(
    "files",
    [
        with_file(BASE["train.py"].replace("0.1", "0.2")),
        with_file(BASE["train.py"].replace("step(x)", "step(y)").replace("x -", "y -")),
        with_file("one\n\n", "data.txt"),
        with_file("# comment\n", "more.py"),
        with_file(BASE["train.py"] + "'a string that is no docstring'\n"),
        {"train.py": BASE["train.py"]},
        {"other.py": BASE["train.py"], "data.txt": "one\n"},
        with_file("# coding: latin-1\n" + BASE["train.py"]),
        with_file(BASE["train.py"] + "#" * MAX_CHARACTERS),
        with_file(BASE["train.py"] + "(" * 5_000),
        with_file(BASE["train.py"] + "x = " + "-" * 60_000 + "1\n"),
        with_file("x = 1" + "0" * 10_000 + "\n"),
        with_file("\0"),
        with_file("def ("),
    ],
)
def test_anything_else_is_another_codebase(files: Files) -> None:
    assert not is_same(files)


@pytest.mark.parametrize(
    "line",
    ["print(__doc__)", "import inspect", "from ast import parse", "import tokenize",
     "import linecache", "f.__code__.co_firstlineno", "sys._getframe().f_lineno",
     "torch.jit.script(f)", "open(__file__)", "open('train.py')", "Path().glob('*')",
     "open(sys.argv[0])", "traceback.format_exc()", "f.__code__.co_consts", "A.__dict__",
     "importlib.util.find_spec(x).origin", "shutil.make_archive('.')", "run('cat *py')",
     "sys.settrace(f)", "Path('.').walk()", "Path('.').glob('*.p?')", "glob(name + '.bin')",
     "Path('.').glob('**/*')", "sys.argv[:1]", "glob('*.' 'py')", "rglob('t*.*')",
     "glob('x.bin', root)", "glob('*.pyc')"]
)  # fmt: skip
def test_code_that_may_read_its_source_counts_byte_by_byte(line: str) -> None:
    text = BASE["train.py"] + f"{line}\n"
    assert canonical(with_file(text), BASE) is None
    before = with_file(text)
    assert not is_same({**before, "train.py": text + "# a comment\n"}, before)


def test_a_file_of_the_environment_may_find_its_folder() -> None:
    base = {**BASE, "predict.py": "import os\nhere = os.path.dirname(__file__)\n"}
    assert is_same({**base, "train.py": BASE["train.py"] + "# x\n"}, base)
    assert not is_same({**base, "predict.py": base["predict.py"] + "# x\n"}, base)


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("toy", ["search.py", "landscape.py"]),
        ("nanogpt", ["train.py", "model.py", "optim.py", "config.py", "data.py", "ranks.py"]),
        ("grpo", ["train.py", "loss.py", "rewards.py", "advantages.py", "optim.py", "rollout.py"]),
    ],
)
def test_a_comment_in_what_ideas_edit_is_no_code(name: str, files: list[str]) -> None:
    codebase = Catalog().get(name).codebase
    assert canonical(codebase, codebase) is not None
    for file in files:
        changed = {**codebase, file: codebase[file] + "\n# one more comment\n"}
        assert is_same(changed, codebase), file


DIFF = "```diff\n--- a/train.py\n+++ b/train.py\n@@ -5,2 +5,3 @@\n def step(x):\n+    # {}\n"
DIFF += '     """One step."""\n```'


def test_an_edit_of_comments_is_refused_with_a_message() -> None:
    found = judge(DIFF.format("think first"), BASE, (), compiles=True)
    assert found.rejected is not None
    assert found.rejected.code == "unchanged"
    assert "comments, docstrings or formatting alone" in found.rejected.message
    assert found.diff is not None


def test_edits_that_differ_in_comments_have_the_same_code() -> None:
    edit = DIFF.replace("+    # {}", "+    x = x + 1  # {}")
    first, second = (judge(edit.format(said), BASE, (), compiles=True) for said in "ab")
    assert first.files != second.files
    assert first.canonical == second.canonical
    assert first.rejected is None


def test_equal_code_is_found_among_an_owners_own(
    db: Database, store: LocalStore, catalog: Catalog
) -> None:
    """Another owner's would bring that one's comments along."""
    world = World.create(db, store, catalog)
    (row,) = world.experiments(world.submit("an idea"))
    with db.write() as session:
        work = implementations.begin(db, session, row.id)
    assert work is not None
    found = work.same_code("a hash")
    assert found == replace(work, idea="another").same_code("a hash")
    assert found != replace(work, owner="another").same_code("a hash")
    assert found != replace(work, environment_id="another").same_code("a hash")
    assert work.same_code(None) is None
