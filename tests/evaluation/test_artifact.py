"""Files left by hostile code are read without following it anywhere."""

from __future__ import annotations

import hashlib
import json
import math
import os
import socket
from pathlib import Path

import pytest

from assay.domain.failure_codes import FailureCode
from assay.evaluation.artifact import hash_tree, read_bytes, read_json
from assay.evaluation.codes import InvalidAnswer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "secret.json").write_text('{"host": "secret"}')
    made = tmp_path / "artifact"
    made.mkdir()
    return made


def refusal(folder: Path, name: str, max_bytes: int = 1000) -> FailureCode:
    with pytest.raises(InvalidAnswer) as refused:
        read_json(folder, name, max_bytes)
    return refused.value.code


def test_honest_files_are_read(folder: Path) -> None:
    (folder / "deep" / "er").mkdir(parents=True)
    (folder / "deep" / "er" / "a.json").write_text('{"x": [1, 2.5, -3e2]}')
    assert read_json(folder, "deep/er/a.json") == {"x": [1, 2.5, -300.0]}
    (folder / "exact").write_bytes(b"x" * 1000)
    assert read_bytes(folder, "exact", 1000) == b"x" * 1000


def test_links_lead_nowhere(folder: Path) -> None:
    (folder / "link.json").symlink_to(folder.parent / "secret.json")
    (folder / "up").symlink_to(folder.parent)
    (folder / "inside.json").write_text("1")
    (folder / "alias.json").symlink_to("inside.json")
    os.link(folder.parent / "secret.json", folder / "hard.json")
    for name in ("link.json", "up/secret.json", "alias.json", "hard.json"):
        assert refusal(folder, name) is FailureCode.WRONG_TYPE


def test_what_is_not_a_file_does_not_block(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    (folder / "sub").mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        here = Path.cwd()
        os.chdir(folder)  # the path of a socket has to be short
        try:
            listener.bind("socket")
        finally:
            os.chdir(here)
        for name in ("pipe", "sub", "socket"):
            assert refusal(folder, name) is FailureCode.WRONG_TYPE


def test_missing_and_oversized(folder: Path) -> None:
    assert refusal(folder, "nothing.json") is FailureCode.MISSING_ARTIFACT
    assert refusal(folder, "no/thing.json") is FailureCode.MISSING_ARTIFACT
    (folder / "big.json").write_text("[" + "1," * 600 + "1]")
    assert refusal(folder, "big.json") is FailureCode.OVERSIZED
    with (folder / "sparse.json").open("wb") as file:
        file.truncate(1 << 40)
    assert refusal(folder, "sparse.json") is FailureCode.OVERSIZED


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("{", FailureCode.WRONG_TYPE),
        ("", FailureCode.WRONG_TYPE),
        ("[" * 900, FailureCode.WRONG_TYPE),
        ("[NaN]", FailureCode.NOT_FINITE),
        ("-Infinity", FailureCode.NOT_FINITE),
        ("1e999", FailureCode.NOT_FINITE),
    ],
)
def test_json_that_is_none(folder: Path, text: str, code: FailureCode) -> None:
    (folder / "a.json").write_text(text)
    assert refusal(folder, "a.json") is code


def test_deep_nesting_and_huge_integers_are_refused(folder: Path) -> None:
    (folder / "deep.json").write_text("[" * 100_000 + "]" * 100_000)
    (folder / "huge.json").write_text("9" * 10_000)
    (folder / "binary.json").write_bytes(b"\xff\x00\xfe")
    for name in ("deep.json", "binary.json"):
        assert refusal(folder, name, 1 << 20) is FailureCode.WRONG_TYPE
    assert refusal(folder, "huge.json", 1 << 20) is FailureCode.NOT_FINITE


@pytest.mark.parametrize("text", ["1" + "0" * 308, "-1" + "0" * 400, "1e400", "-Infinity"])
def test_a_number_that_is_no_float_is_refused(folder: Path, text: str) -> None:
    (folder / "n.json").write_text(f'{{"loss": {text}}}')
    assert refusal(folder, "n.json", 1000) is FailureCode.NOT_FINITE


def test_a_key_that_stands_twice_is_refused_and_twice_in_two_objects_is_not(folder: Path) -> None:
    (folder / "n.json").write_text('{"a": {"loss": 3, "x": 1, "loss": 0}}')
    assert refusal(folder, "n.json", 1000) is FailureCode.WRONG_TYPE
    (folder / "n.json").write_text('[{"loss": 3}, {"loss": 0, "y": {"loss": 1}}]')
    assert read_json(folder, "n.json")[1]["y"] == {"loss": 1}


def test_no_zero_is_negative(folder: Path) -> None:
    (folder / "n.json").write_text("[-0.0, -0, -0e5, -1e-400]")
    assert [math.copysign(1.0, x) for x in read_json(folder, "n.json")] == [1.0] * 4


def test_a_tree_is_hashed_by_names_and_contents_and_no_link_is_followed(
    folder: Path, tmp_path: Path
) -> None:
    def found() -> str:
        digest = hashlib.sha256()
        hash_tree(digest, folder)
        return digest.hexdigest()

    (folder / "deep").mkdir()
    (folder / "deep" / "a").write_text("1")
    os.mkfifo(folder / "pipe")  # would block
    outside = tmp_path / "outside"
    outside.write_text("1")
    (folder / "link").symlink_to(outside)
    first = found()
    outside.write_text("2")
    assert found() == first
    (folder / "deep" / "a").write_text("2")
    assert found() != first
    (folder / "deep" / "a").write_text("1")
    assert found() == first
    (folder / "deep" / "a").rename(folder / "deep" / "b")
    assert found() != first


def test_of_a_file_that_is_left_out_only_the_name_counts(folder: Path) -> None:
    def found() -> str:
        digest = hashlib.sha256()
        hash_tree(digest, folder, "curve")
        return digest.hexdigest()

    without = found()
    (folder / "curve").write_text("1")
    first = found()
    (folder / "curve").write_text("2")
    assert without != first == found()
    (folder / "deep").mkdir()
    (folder / "deep" / "curve").write_text("1")
    deep = found()
    (folder / "deep" / "curve").write_text("2")
    assert found() != deep


def test_names_of_the_same_file_have_another_hash_than_equal_files(folder: Path) -> None:
    def found() -> str:
        digest = hashlib.sha256()
        hash_tree(digest, folder)
        return digest.hexdigest()

    for name in "abc":
        (folder / name).write_text("1")
    hashes = {found()}
    for link, target in (("b", "a"), ("c", "a")):
        (folder / link).unlink()
        os.link(folder / target, folder / link)
        hashes.add(found())
    (folder / "b").unlink()
    (folder / "b").write_text("1")
    hashes.add(found())
    assert len(hashes) == 4


@pytest.mark.parametrize("name", ["", "/etc/passwd", "../secret.json", "a/../../x", "a\x00b"])
def test_a_name_of_ours_that_leaves_the_folder_is_our_error(folder: Path, name: str) -> None:
    with pytest.raises(ValueError):
        read_bytes(folder, name, 10)


def test_a_json_value_survives(folder: Path) -> None:
    value = {"a": [1, "ü", None, True], "b": {"c": 0.25}}
    (folder / "v.json").write_text(json.dumps(value))
    assert read_json(folder, "v.json") == value
