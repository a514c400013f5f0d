"""Files that Assay adds to an environment: in its hash, its bundle and its codebase; protected."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from assay.domain.errors import InvalidInput
from assay.domain.hashing import tree_hash
from assay.environments import Bundle, unpack_tree
from assay.environments.bundle import write_tree
from assay.environments.catalog import Environment, is_hashed
from assay.environments.prepare import prepare_data
from assay.environments.vendored import vendored_files
from assay.patching import PatchRefused, apply_answer
from assay.patching.guard import check_codebase

ROOT = Path(__file__).resolve().parents[2]
PREDICTOR, HUB = "codebase/assay_predictor.py", "sources/hub.py"
MANIFEST = """
name = "shared"
title = "t"
problem = "p"
vendored = ["codebase/assay_predictor.py", "sources/hub.py"]
[metric]
name = "score"
direction = "minimize"
[codebase]
protected = ["predict.py"]
[entry_points]
train = ["python", "train.py"]
[profiles.tiny]
[profiles.tiny.budget]
seconds = 5
"""
PREPARE = """
import pathlib, sys
from sources import hub
out = pathlib.Path(sys.argv[sys.argv.index("--out") + 1])
for split in ("train", "search", "sealed"):
    (out / split).mkdir()
    (out / split / "hub").write_text(hub.__doc__)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    files = {
        "environment.toml": MANIFEST,
        "prepare.py": PREPARE,
        "codebase/train.py": "",
        "codebase/predict.py": "",
        "evaluator/evaluate.py": "def evaluate(run): ...",
    }
    write_tree({name: text.encode() for name, text in files.items()}, tmp_path / "shared")
    return tmp_path / "shared"


def test_they_are_in_the_hash_the_bundle_and_the_codebase(folder: Path) -> None:
    environment = Environment.load(folder)
    assert environment.files[HUB] == vendored_files()[HUB]
    assert environment.codebase["assay_predictor.py"].encode() == vendored_files()[PREDICTOR]
    hashed = {n: c for n, c in environment.files.items() if is_hashed(n)}
    assert environment.content_hash == tree_hash(hashed)
    bundle = Bundle.of(environment.files)
    assert unpack_tree(bundle.data) == environment.files
    assert not (folder / HUB).exists()


def test_an_unpacked_bundle_is_the_same_environment_whatever_assay_brings_now(
    folder: Path, tmp_path: Path
) -> None:
    environment = Environment.load(folder)
    write_tree(environment.files, tmp_path / "same")
    assert Environment.load(tmp_path / "same", unpacked=True).id == environment.id
    write_tree(environment.files | {PREDICTOR: b"# another version's\n"}, tmp_path / "older")
    older = Environment.load(tmp_path / "older", unpacked=True)
    assert older.codebase["assay_predictor.py"] == "# another version's\n"
    assert older.id != environment.id


def test_those_of_the_codebase_are_protected(folder: Path) -> None:
    environment = Environment.load(folder)
    files, protected = environment.codebase, environment.manifest.codebase.protected
    assert protected == ("predict.py", "assay_predictor.py")
    with pytest.raises(PatchRefused, match=r"assay_predictor\.py"):
        apply_answer(
            files,
            "*** Begin Patch\n*** Delete File: assay_predictor.py\n*** End Patch\n",
            protected=protected,
        )
    for name in (
        "assay_predictor/__init__.py",
        "assay_predictor.abi3.so",
        "__pycache__/assay_predictor.cpython-311.pyc",
    ):
        with pytest.raises(PatchRefused, match=r"instead of `assay_predictor\.py`"):
            check_codebase(files | {name: ""}, files, protected)


def test_a_different_file_of_ones_own_is_refused(folder: Path) -> None:
    write_tree({HUB: vendored_files()[HUB]}, folder)
    assert Environment.load(folder).id  # the same file changes nothing
    write_tree({HUB: b"mine = True\n"}, folder)
    with pytest.raises(InvalidInput, match=r"sources/hub\.py is `vendored`.*Delete it"):
        Environment.load(folder)


def test_a_file_that_assay_does_not_have_is_named(folder: Path) -> None:
    manifest = folder / "environment.toml"
    manifest.write_text(MANIFEST.replace("sources/hub.py", "sources/hug.py"))
    with pytest.raises(
        InvalidInput, match=r"no file 'sources/hug\.py'; it has: .*sources/hub\.py"
    ):
        Environment.load(folder)


def test_prepare_finds_them(folder: Path, tmp_path: Path) -> None:
    data = prepare_data(Environment.load(folder), "tiny", tmp_path / "cache")
    assert "Hugging Face" in (data / "train" / "hub").read_text()
    assert not (folder / HUB).exists()


def test_no_environment_has_a_copy_and_the_wheel_has_them_all() -> None:
    for name in vendored_files():
        assert list((ROOT / "environments").glob(f"*/{name}")) == []
    assert set(vendored_files()) == {PREDICTOR, HUB}
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    # A wheel takes every file of a package; this one lists no exceptions.
    assert "src/assay" in wheel["targets"]["wheel"]["packages"]
    assert not {"exclude", "only-include"} & set(wheel["targets"]["wheel"])
