"""A database whose files are damaged: found, named, and never opened as if nothing were."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError
from starlette.testclient import TestClient

from assay.domain.errors import Unavailable
from assay.environments.catalog import Catalog
from assay.sqlite_log import find_damage, log_path
from assay.storage.database import Database
from assay.storage.objects import LocalStore
from services.implementer.app import create_app
from services.implementer.context import Context
from services.implementer.settings import ImplementerSettings
from tests.support.damage import (
    ROWS,
    crashed_folder,
    damage_header,
    damage_pages,
    flip,
    rows_of,
)

FRAME = 24 + 4096


@pytest.mark.parametrize("damage", [damage_header, damage_pages])
def test_a_damaged_database_is_named_with_what_to_do(
    tmp_path: Path, damage: Callable[[Path], None], store: LocalStore, catalog: Catalog
) -> None:
    path = crashed_folder(tmp_path / "data")
    log_path(path).unlink()
    damage(path)
    db = Database(f"sqlite:///{path}")

    def read() -> None:
        with db.read() as session:
            session.execute(text("SELECT * FROM batch"))

    for use in (db.migrate, read):
        with pytest.raises(Unavailable) as refused:
            use()
        assert refused.value.code == "database_damaged"
        assert "restore a backup" in str(refused.value)
        assert "\n" not in str(refused.value)
    context = Context(db, store, catalog, ImplementerSettings(), variables={})
    with TestClient(create_app(context), raise_server_exceptions=False) as api:
        for answer in (api.get("/v1/batches"), api.get("/readyz")):
            assert (answer.status_code, answer.json()["code"]) == (503, "database_damaged")
    db.dispose()


def test_a_wrong_statement_is_not_called_damage(tmp_path: Path) -> None:
    db = Database(f"sqlite:///{crashed_folder(tmp_path / 'data')}")
    same = text("INSERT INTO leader SELECT * FROM leader")
    with pytest.raises(IntegrityError), db.write() as session:
        session.execute(same)
    db.dispose()


@pytest.mark.parametrize(
    "at", [*range(0, 32, 5), 32, 32 + 9, 32 + 17, 32 + 30, 32 + 7 * FRAME + 50]
)
def test_a_log_that_would_lose_commits_is_found(tmp_path: Path, at: int) -> None:
    path = crashed_folder(tmp_path / "data")
    assert find_damage(path) is None
    flip(log_path(path), at)
    found = find_damage(path)
    assert found is not None
    assert found.certain
    assert rows_of(path) < ROWS  # and SQLite said nothing


def test_a_whole_log_is_whole(tmp_path: Path) -> None:
    path = crashed_folder(tmp_path / "data")
    assert find_damage(path) is None
    assert rows_of(path) == ROWS


@pytest.mark.parametrize("lost", [1, 24, 4000, FRAME])
def test_what_a_crash_leaves_is_no_damage(tmp_path: Path, lost: int) -> None:
    """The last bytes of a log may be missing, and it may go on with frames of an earlier use."""
    path = crashed_folder(tmp_path / "data")
    older = log_path(crashed_folder(tmp_path / "other", transactions=ROWS * 2)).read_bytes()
    own = log_path(path).read_bytes()
    log_path(path).write_bytes(own[:-lost])
    assert find_damage(path) is None
    log_path(path).write_bytes(own + older[len(own) :])
    assert find_damage(path) is None
    log_path(path).write_bytes(bytes(len(own)))
    assert find_damage(path) is None


def test_damage_of_the_last_transaction_may_be_a_loss_of_power(tmp_path: Path) -> None:
    path = crashed_folder(tmp_path / "data")
    flip(log_path(path), log_path(path).stat().st_size - 1)
    found = find_damage(path)
    assert found is not None
    assert not found.certain


def test_a_log_of_another_database_is_found(tmp_path: Path) -> None:
    path = crashed_folder(tmp_path / "data")
    flip(path, 16)  # the size of its pages
    found = find_damage(path)
    assert found is not None
    assert "another database" in found.message
    path.write_bytes(b"")
    found = find_damage(path)
    assert found is not None
    assert "missing or empty" in found.message


def test_a_database_without_a_log_has_none_that_is_damaged(tmp_path: Path) -> None:
    path = crashed_folder(tmp_path / "data")
    log_path(path).unlink()
    assert find_damage(path) is None
