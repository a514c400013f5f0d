"""`assay patch check`: what a person is told about an answer."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.support.environment import write_environment

ANSWER = """\
A larger step.

```diff
--- a/train.py
+++ b/train.py
@@ -2,3 +2,3 @@
\x20
-STEP = 1
+STEP = 2
 OFFSET = 0
```
"""
NEW = "--- /dev/null\n+++ b/more.py\n@@ -0,0 +1,2 @@\n+x = 1\n+y = 2\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The environment `count`, the only one there is."""
    path = tmp_path / "environments" / "count"
    write_environment(path)
    monkeypatch.setenv("ASSAY_ENVIRONMENTS", str(path.parent))
    return path


@pytest.fixture
def answer(tmp_path: Path) -> Path:
    path = tmp_path / "answer.md"
    path.write_text(ANSWER)
    return path


def test_an_answer_that_applies(cli: Cli, folder: Path, answer: Path) -> None:
    said = cli("patch", "check", str(answer), "--env", "count")
    assert said.code == 0
    assert "applies: 1 file, 1 hunk, read as unified diff" in said.out
    assert "train.py: edited, +1 -1" in said.out
    assert "hunk 1, line 2: exactly as written, +1 -1" in said.out
    assert "STEP = 2" not in said.out


def test_the_codebase_on_disk_is_left_alone(cli: Cli, folder: Path, answer: Path) -> None:
    before = (folder / "codebase" / "train.py").read_bytes()
    cli("patch", "check", str(answer), "--env", str(folder), "--explain")
    assert (folder / "codebase" / "train.py").read_bytes() == before


def test_explain_shows_the_diff_and_what_was_tolerated(
    cli: Cli, folder: Path, tmp_path: Path
) -> None:
    loose = tmp_path / "loose.md"
    loose.write_text(ANSWER.replace("-STEP = 1\n", "-STEP = 1   \n"))
    said = cli("patch", "check", str(loose), "--env", "count", "--explain")
    assert said.code == 0
    assert "apart from blanks at line ends" in said.out
    assert "tolerated: " in said.out
    assert "-STEP = 1\n+STEP = 2\n" in said.out
    assert "--- a/train.py" in said.out
    exact = tmp_path / "exact.md"
    exact.write_text(ANSWER)
    assert "tolerated" not in cli("patch", "check", str(exact), "--env", "count", "--explain").out


def test_several_files(cli: Cli, folder: Path, tmp_path: Path) -> None:
    both = tmp_path / "both.diff"
    both.write_text(NEW + ANSWER.partition("```diff\n")[2].removesuffix("```\n"))
    said = cli("patch", "check", str(both), "--env", "count")
    assert "applies: 2 files, 2 hunks" in said.out
    assert "more.py: created, +2 -0" in said.out
    assert "the whole file" in said.out


def test_json_is_one_object(cli: Cli, folder: Path, answer: Path) -> None:
    said = cli("patch", "check", str(answer), "--env", str(folder), "--explain", "--json")
    data = said.json["data"]
    assert data["environment"].startswith("count@")
    assert (data["applied"], data["code"], data["log"]) == (True, None, None)
    assert data["formats"] == ["unified_diff"]
    [file] = data["files"]
    assert (file["path"], file["change"], file["renamed_from"]) == ("train.py", "edited", None)
    [hunk] = file["hunks"]
    assert (hunk["line"], hunk["tier"], hunk["removed"], hunk["added"]) == (2, "exact", 1, 1)
    assert "+STEP = 2" in data["diff"]
    assert (
        cli("patch", "check", str(answer), "--env", "count", "--json").json["data"]["diff"] is None
    )


def test_a_refusal_prints_code_and_log(cli: Cli, folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.md"
    path.write_text(ANSWER.replace("-STEP = 1", "-WIDTH = 1"))
    said = cli("patch", "check", str(path), "--env", "count")
    assert said.code == 1
    assert said.out.startswith("refused: no_match\n")
    assert "WIDTH = 1" in said.out
    data = cli("patch", "check", str(path), "--env", "count", "--json")
    assert data.code == 1
    assert (data.json["data"]["applied"], data.json["data"]["code"]) == (False, "no_match")
    assert "WIDTH = 1" in data.json["data"]["log"]


def test_protected_files_are_those_of_the_environment(
    cli: Cli, folder: Path, tmp_path: Path
) -> None:
    path = tmp_path / "a.md"
    path.write_text(
        "--- a/sealed.py\n+++ b/sealed.py\n@@ -1 +1 @@\n-# no diff may touch this\n+x = 1\n"
    )
    said = cli("patch", "check", str(path), "--env", "count")
    assert (said.code, said.out.splitlines()[0]) == (1, "refused: protected")


def test_standard_input(cli: Cli, folder: Path) -> None:
    assert cli("patch", "check", "-", "--env", "count", stdin=ANSWER).code == 0
    assert cli("patch", "check", "-", "--env", "count", stdin="").code == 1


def test_carriage_returns_reach_the_patcher(cli: Cli, folder: Path, tmp_path: Path) -> None:
    train = folder / "codebase" / "train.py"
    train.write_bytes(train.read_bytes().replace(b"\n", b"\r\n"))
    path = tmp_path / "a.diff"
    body = ANSWER.partition("@@ -2,3 +2,3 @@\n")[2].removesuffix("```\n").replace("\n", "\r\n")
    path.write_bytes(("--- a/train.py\n+++ b/train.py\n@@ -2,3 +2,3 @@\n" + body).encode())
    said = cli("patch", "check", str(path), "--env", "count")
    assert said.code == 0
    assert "exactly as written" in said.out


@pytest.mark.parametrize(
    "text", ["\x1b[2J\x1b]0;owned\x07", "\u202egnp.py", "\x9b31m", "\x08\x08"]
)
def test_nothing_in_an_answer_reaches_the_terminal(
    cli: Cli, folder: Path, tmp_path: Path, text: str
) -> None:
    answers = {
        "refused": ANSWER.replace("-STEP = 1", f"-WIDTH = 1{text}"),
        "named": ANSWER.replace("a/train.py", f"a/tr{text}.py").replace("b/tr", f"b/tr{text}"),
        "applied": ANSWER.replace("+STEP = 2", f"+STEP = 2  # {text}"),
    }
    for name, written in answers.items():
        path = tmp_path / name
        path.write_text(written)
        said = cli("patch", "check", str(path), "--env", "count", "--explain")
        assert not {"\x1b", "\x07", "\x08", "\x9b", "\u202e"} & set(said.out + said.err), name


def test_what_is_wrong_with_the_call_is_said(cli: Cli, folder: Path, tmp_path: Path) -> None:
    absent = cli("patch", "check", str(tmp_path / "none.md"), "--env", "count")
    assert absent.code == 2
    assert "none.md: No such file" in absent.err
    assert "standard input" in absent.err
    binary = tmp_path / "b.md"
    binary.write_bytes(b"ok \xff\xfe")
    wrong = cli("patch", "check", str(binary), "--env", "count")
    assert wrong.code == 2
    assert "not UTF-8 text (byte 4" in wrong.err
    assert cli("patch", "check", str(tmp_path), "--env", "count").code == 2


def test_an_environment_that_is_not_there(cli: Cli, folder: Path, answer: Path) -> None:
    unknown = cli("patch", "check", str(answer), "--env", "nowhere")
    assert unknown.code == 1
    assert "known: count" in unknown.err
    assert "ASSAY_ENVIRONMENTS" in unknown.err
    empty = cli("patch", "check", str(answer), "--env", str(answer.parent))
    assert empty.code == 2
    assert "environment.toml" in empty.err
    assert cli("patch", "check", str(answer)).code == 2


def test_a_codebase_that_is_not_text(cli: Cli, folder: Path, answer: Path) -> None:
    (folder / "codebase" / "weights.bin").write_bytes(b"\xff\x00")
    said = cli("patch", "check", str(answer), "--env", "count")
    assert said.code == 2
    assert "UTF-8 text only" in said.err
    shutil.rmtree(folder / "codebase")
    assert cli("patch", "check", str(answer), "--env", "count").code == 2
