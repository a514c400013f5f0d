"""When checkpoints were there, and that they cannot be changed afterwards."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from assay.evaluation.checkpoints import Reader
from services.worker.checkpoints import CheckpointWatch

BIG = 1 << 20


@pytest.fixture
def out(tmp_path: Path) -> Iterator[int]:
    descriptor = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    yield descriptor
    os.close(descriptor)


def leave(folder: Path, name: str, text: str) -> Path:
    """As a training does: build it elsewhere, move it into place."""
    unfinished = folder / f"unfinished-{name}"
    unfinished.mkdir()
    (unfinished / "model.pt").write_text(text)
    (folder / "checkpoints").mkdir(exist_ok=True)
    return unfinished.rename(folder / "checkpoints" / name)


def test_checkpoints_have_the_time_at_which_they_were_seen(tmp_path: Path, out: int) -> None:
    watch = CheckpointWatch(out, BIG, poll_seconds=0.01)
    watch.start()
    for name in ("02", "01"):
        time.sleep(0.15)
        leave(tmp_path, name, name)
    time.sleep(0.15)
    first, second = watch.stop()
    assert (first.name, second.name) == ("01", "02")
    assert 0.14 < second.seconds < first.seconds < 5
    assert first.sha256 != second.sha256


def test_what_comes_last_is_seen_when_training_has_ended(tmp_path: Path, out: int) -> None:
    watch = CheckpointWatch(out, BIG, poll_seconds=30)
    watch.start()
    leave(tmp_path, "01", "x")
    assert [c.name for c in watch.stop()] == ["01"]


def test_a_checkpoint_that_is_changed_later_does_not_count(tmp_path: Path, out: int) -> None:
    watch = CheckpointWatch(out, BIG, poll_seconds=0.01)
    watch.start()
    folders = [leave(tmp_path, name, "early") for name in ("01", "02", "03", "04")]
    time.sleep(0.2)
    (folders[0] / "model.pt").write_text("late!")
    folders[1].rename(tmp_path / "elsewhere")
    (folders[2] / "more").write_text("")
    assert [c.name for c in watch.stop()] == ["04"]


def test_links_devices_and_too_much_are_no_checkpoints(tmp_path: Path, out: int) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "model.pt").write_text("x")
    leave(tmp_path, "fine", "x")
    (leave(tmp_path, "link", "x") / "inner").symlink_to(secret / "model.pt")
    (leave(tmp_path, "folder", "x") / "inner").symlink_to(secret)
    os.mkfifo(leave(tmp_path, "pipe", "x") / "inner")
    with (leave(tmp_path, "sparse", "x") / "inner").open("wb") as file:
        file.truncate(1 << 40)  # an hour of hashing
    (tmp_path / "checkpoints" / "linked").symlink_to(secret)
    (tmp_path / "checkpoints" / "a file").write_text("x")
    watch = CheckpointWatch(out, BIG)
    watch.start()
    assert [c.name for c in watch.stop()] == ["fine"]


def test_what_is_nested_too_deep_is_no_checkpoint(tmp_path: Path, out: int) -> None:
    (leave(tmp_path, "deep", "x") / "/".join("d" * 40)).mkdir(parents=True)
    leave(tmp_path, "fine", "x")
    watch = CheckpointWatch(out, BIG)
    watch.start()
    assert [c.name for c in watch.stop()] == ["fine"]


def test_a_file_in_a_folders_place_has_no_hash(tmp_path: Path, out: int) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "01").write_text("the weights of the end")
    assert Reader(BIG).hash_of(out, "01") is None


def test_what_was_read_in_vain_counts(tmp_path: Path, out: int) -> None:
    """Otherwise a few kilobytes of sparse files and links keep the worker reading for hours."""
    for name in ("a", "b", "c"):
        folder = leave(tmp_path, name, "x")
        with (folder / "large").open("wb") as file:
            file.truncate(BIG // 2)
        (folder / "zzz").symlink_to("large")
    reader = Reader(BIG)
    assert [reader.hash_of(out, name) for name in ("a", "b", "c")] == [None] * 3
    assert reader.most_bytes < BIG // 2


def test_a_cancelled_training_is_not_read_to_its_end(tmp_path: Path, out: int) -> None:
    leave(tmp_path, "01", "x")
    cancel = threading.Event()
    cancel.set()
    watch = CheckpointWatch(out, BIG, cancel)
    watch.start()
    assert watch.stop() == ()


def test_a_checkpoints_folder_that_is_a_link_is_not_followed(tmp_path: Path, out: int) -> None:
    (tmp_path / "elsewhere" / "01").mkdir(parents=True)
    (tmp_path / "checkpoints").symlink_to(tmp_path / "elsewhere")
    watch = CheckpointWatch(out, BIG)
    watch.start()
    assert watch.stop() == ()
