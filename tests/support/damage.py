"""Databases of an embedded service as a crash leaves them, and ways to damage them."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

from assay.sqlite_log import log_path
from tests.support.databases import sqlite_database

ROWS = 40


def crashed_folder(folder: Path, *, transactions: int = ROWS) -> Path:
    """Make a data folder whose log holds that many transactions, and return its database."""
    folder.mkdir(parents=True)
    template = folder.with_name(folder.name + "-running")
    template.mkdir()
    database = sqlite_database(template / "assay.db")
    database.dispose()
    with closing(sqlite3.connect(template / "assay.db")) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        for number in range(transactions):
            connection.execute(
                "INSERT INTO leader (name, holder, epoch, expires_at) VALUES (?, 'x', 1, 'y')",
                (f"row {number}",),
            )
            connection.commit()
        for name in ("assay.db", "assay.db-wal"):
            shutil.copy(template / name, folder / name)
    return folder / "assay.db"


def rows_of(database: Path) -> int:
    """Return how many of the rows SQLite still finds."""
    with closing(sqlite3.connect(database)) as connection:
        (found,) = connection.execute("SELECT count(*) FROM leader").fetchone()
    return int(found)


def flip(path: Path, at: int, length: int = 1) -> None:
    """Change bytes of a file."""
    data = bytearray(path.read_bytes())
    for place in range(at, at + length):
        data[place] ^= 0xFF
    path.write_bytes(data)


def damage_header(database: Path) -> None:
    """Damage the database itself so that it is none."""
    flip(database, 0, 16)


def damage_pages(database: Path) -> None:
    """Damage every page of the database but the header of the file."""
    flip(database, 100, database.stat().st_size - 100)


def damage_log(database: Path) -> None:
    """Damage the log in its first transaction."""
    flip(log_path(database), 32 + 24 + 100)
