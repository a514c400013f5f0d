"""What `assay doctor` finds in a data folder."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from assay.cli.data_folder import examine_folder
from assay.cli.doctor import Finding
from assay.sqlite_log import log_path
from tests.cli.conftest import Cli
from tests.support.damage import (
    crashed_folder,
    damage_header,
    damage_log,
    damage_pages,
    flip,
)


def bytes_of(folder: Path) -> dict[str, bytes]:
    """What SQLite keeps there, but for the index that readers share and logs without a byte."""
    files = {path.name: path.read_bytes() for path in folder.glob("assay.db*")}
    return {name: data for name, data in files.items() if data and not name.endswith("-shm")}


def damage_log_header(database: Path) -> None:
    flip(log_path(database), 0)


def replace_log(database: Path) -> None:
    """Put the log of another database beside this one, as a restored file beside an old log."""
    other = crashed_folder(database.parent.with_name("other"), transactions=90)
    flip(other, 200, 2000)
    shutil.copy(log_path(other), log_path(database))
    with database.open("r+b") as file:
        file.truncate(4096 * 8)


@pytest.mark.parametrize(
    "damage", [damage_header, damage_pages, damage_log, damage_log_header, replace_log]
)
def test_damage_is_found_and_nothing_is_changed(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    path = crashed_folder(tmp_path / "data")
    if damage in (damage_header, damage_pages):
        log_path(path).unlink()
    damage(path)
    before = bytes_of(path.parent)
    finding = examine_folder(path.parent)
    assert finding.state == "missing", finding
    assert "restore a backup" in finding.remedy
    assert "\n" not in finding.detail
    assert bytes_of(path.parent) == before


def test_a_whole_folder_and_none_are_fine(tmp_path: Path) -> None:
    assert examine_folder(tmp_path / "none").detail == f"no database in {tmp_path}/none yet"
    assert not (tmp_path / "none").exists()
    path = crashed_folder(tmp_path / "data")
    assert examine_folder(path.parent) == Finding("data folder", "ok", f"{path} is whole")


def test_a_broken_last_transaction_is_a_note(tmp_path: Path) -> None:
    path = crashed_folder(tmp_path / "data")
    flip(log_path(path), log_path(path).stat().st_size - 1)
    assert examine_folder(path.parent).state == "note"


def test_the_log_of_a_running_service_is_left_alone(tmp_path: Path) -> None:
    path = crashed_folder(tmp_path / "data")
    with (path.parent / "service.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        finding = examine_folder(path.parent)
    assert finding.state == "ok"
    assert "its log was not checked" in finding.detail


def test_doctor_fails_for_a_damaged_folder(cli: Cli, tmp_path: Path) -> None:
    path = crashed_folder(tmp_path / "data")
    damage_log(path)
    answer = cli("doctor", "--data-dir", str(path.parent))
    assert answer.code == 1
    assert "Missing: data folder" in answer.err
