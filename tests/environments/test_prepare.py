"""What becomes of prepared data, whatever environment it belongs to."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from assay.environments.bundle import write_tree
from assay.environments.catalog import Environment
from assay.environments.prepare import PrepareError, prepare_data
from tests.support.waiting import wait_until

MANIFEST = """
name = "private"
title = "t"
problem = "p"
[metric]
name = "score"
direction = "minimize"
[entry_points]
train = ["python", "train.py"]
[profiles.tiny]
[profiles.tiny.budget]
seconds = 5
"""
PREPARE = """
import os, pathlib, sys
out = pathlib.Path(sys.argv[sys.argv.index("--out") + 1])
own = pathlib.Path(os.environ["OWN_FILE"])
for split in ("train", "search", "sealed"):
    (out / split / "model").mkdir(parents=True, mode=0o700)
    file = out / split / "model" / "weights"
    file.write_text(split)
    file.chmod(0o600)
os.link(own, out / "train" / "linked")
"""
GENERATED = """
import os, pathlib, sys
out = pathlib.Path(sys.argv[sys.argv.index("--out") + 1])
for split in ("train", "search", "sealed"):
    (out / split).mkdir()
    (out / split / "key").write_text(os.environ["ASSAY_HELD_OUT_KEY"])
"""


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def environment(folder: Path, prepare: str) -> Environment:
    files = {"environment.toml": MANIFEST, "prepare.py": prepare, "codebase/train.py": ""}
    files["evaluator/evaluate.py"] = "def evaluate(run): ..."
    write_tree({name: text.encode() for name, text in files.items()}, folder)
    return Environment.load(folder)


def test_a_sandbox_user_can_read_what_training_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "own"
    own.write_text("x")
    own.chmod(0o600)
    monkeypatch.setenv("OWN_FILE", str(own))
    data = prepare_data(environment(tmp_path / "private", PREPARE), "tiny", tmp_path / "cache")
    assert mode(data / "train" / "model") & 0o555 == 0o555
    assert mode(data / "train" / "model" / "weights") & 0o444 == 0o444
    # What is held out is for the evaluator alone, and a user's own file keeps its mode.
    assert mode(data / "search" / "model" / "weights") == 0o600
    assert mode(own) == 0o600


def test_data_are_prepared_once_for_every_key(tmp_path: Path) -> None:
    made, cache = environment(tmp_path / "generated", GENERATED), tmp_path / "cache"
    keys = ["", "one", "another"]
    data = [prepare_data(made, "tiny", cache, held_out_key=key) for key in keys]
    assert [(folder / "search" / "key").read_text() for folder in data] == keys
    # What is there is used again, and no path tells the key.
    (data[1] / "search" / "key").write_text("changed")
    assert prepare_data(made, "tiny", cache, held_out_key="one") == data[1]
    assert (data[1] / "search" / "key").read_text() == "changed"
    assert "another" not in str(data[2])


HANGS = """
import os, time
print("fetching", flush=True)
if os.fork() == 0:
    time.sleep(300)
open(os.environ["OWN_FILE"], "w").write(str(os.getpid()))
time.sleep(300)
"""


def test_a_preparation_that_hangs_is_ended_with_what_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "own"
    monkeypatch.setenv("OWN_FILE", str(own))
    made = environment(tmp_path / "hanging", HANGS)
    with pytest.raises(PrepareError, match=r"did not end within 3 s\nfetching"):
        prepare_data(made, "tiny", tmp_path / "cache", seconds=3)
    group = int(own.read_text())

    def is_gone() -> bool:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        return False

    wait_until(is_gone, "nothing of the preparation runs")


def test_of_what_a_preparation_prints_the_end_is_told(tmp_path: Path) -> None:
    prints = "for n in range(2_000_000): print('line', n)\nraise SystemExit(3)"
    with pytest.raises(PrepareError) as failed:
        prepare_data(environment(tmp_path / "loud", prints), "tiny", tmp_path / "cache")
    assert "exit code 3" in str(failed.value)
    assert str(failed.value).endswith("line 1999999")
    assert len(str(failed.value)) < 1000
