"""Files of ideas, and what is said about bad ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from assay.cli.ideas import read_ideas
from assay.domain.errors import InvalidInput


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_jsonl(tmp_path: Path) -> None:
    path = write(
        tmp_path, "a.jsonl", '{"text": "one", "client_key": "k"}\n\n{"text": "two\\u2028"}\n'
    )
    ideas = read_ideas(path)
    assert [(i.text, i.client_key) for i in ideas] == [("one", "k"), ("two\u2028", None)]


def test_a_line_separator_inside_a_text_does_not_split_a_line(tmp_path: Path) -> None:
    path = write(tmp_path, "a.jsonl", '{"text": "one \u2028 more"}\n')
    assert len(read_ideas(path)) == 1


def test_json_list_of_strings_and_objects(tmp_path: Path) -> None:
    path = write(tmp_path, "a.json", '["one", {"text": "two", "operator": "explore"}]')
    assert [(i.text, i.operator) for i in read_ideas(path)] == [
        ("one", "seed"),
        ("two", "explore"),
    ]


@pytest.mark.parametrize("name", ["a.txt", "a.md"])
def test_blocks(tmp_path: Path, name: str) -> None:
    text = "# Ideas\n\n## 1. [Experiment] one\n[Code Changes] x\n[End]\n\n[experiment] two [end]\n"
    ideas = read_ideas(write(tmp_path, name, text))
    assert [i.text for i in ideas] == [
        "## 1. [Experiment] one\n[Code Changes] x\n[End]",
        "[experiment] two [end]",
    ]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.jsonl", '{"text": "one"}\nnot json\n', "a.jsonl:2: not JSON"),
        ("a.jsonl", '{"text": "one"}\n{"txt": "two"}\n', "a.jsonl:2: text: Field required"),
        ("a.jsonl", '"one"\n', "a.jsonl:1: an idea is an object"),
        ("a.jsonl", '{"text": "  "}\n', "a.jsonl:1: text: .*must not be empty"),
        ("a.jsonl", '{"text": "a\\u0000"}\n', "a.jsonl:1: text: .*NUL"),
        ("a.jsonl", '{"text":"a","client_key":"k"}\n{"text":"b","client_key":"k"}\n',
         "a.jsonl:2: client_key 'k' is also at .*a.jsonl:1"),
        ("a.jsonl", "\n\n", "holds no ideas"),
        ("a.json", '{"text": "one"}', "a.json:1: must be a JSON list"),
        ("a.json", '["one",\n\n oops]', "a.json:3: not JSON"),
        ("a.json", '["one", 7]', "a.json: element 1: an idea is an object"),
        ("a.txt", "just prose", r"a.txt:1: no \[Experiment\]"),
        ("a.txt", "\n[Experiment] a [End]\n[Experiment] b\n", r"a.txt:3: .*no \[End\]"),
        ("a.csv", "x", "ideas come as .jsonl"),
    ],
)  # fmt: skip
def test_a_bad_file_is_named_with_its_line(
    tmp_path: Path, name: str, text: str, said: str
) -> None:
    with pytest.raises(InvalidInput, match=said):
        read_ideas(write(tmp_path, name, text))


def test_what_is_not_text_or_not_there(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidInput, match="not UTF-8"):
        read_ideas(path)
    with pytest.raises(InvalidInput, match="No such file"):
        read_ideas(tmp_path / "b.txt")
