"""Whether the database of a data folder is whole, for `assay doctor`. Nothing is changed."""

from __future__ import annotations

import fcntl
import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from assay.cli.doctor import Finding
from assay.sqlite_log import find_damage, log_path

_CHECK = "data folder"
_RESTORE = "stop the service and restore a backup: docs/operations.md, Backup"


def examine_folder(folder: Path) -> Finding:
    """Return what is found in the data folder of an embedded service."""
    database = folder / "assay.db"
    log = log_path(database)
    if not database.exists() and not log.exists():
        return Finding(_CHECK, "ok", f"no database in {folder} yet")
    served = _is_served(folder)
    try:
        damage = None if served else find_damage(database)
        if damage is not None and damage.certain:
            remedy = f"{_RESTORE}; or move {log} away to go on without it, and check again"
            return Finding(_CHECK, "missing", f"{log}: {damage.message}", remedy)
        wrong = _ask(database)
    except (OSError, sqlite3.OperationalError) as error:
        return Finding(_CHECK, "note", f"{database}: {error}", "check the folder's permissions")
    except sqlite3.DatabaseError as error:
        wrong = str(error)
    if wrong != "ok":
        return Finding(_CHECK, "missing", f"{database} is damaged: {wrong}", _RESTORE)
    if damage is not None:
        remedy = "nothing, if power failed while the service ran; else restore a backup"
        return Finding(_CHECK, "note", f"{log}: {damage.message}", remedy)
    if served:
        detail = f"{database} is whole; a service uses it, so its log was not checked"
        return Finding(_CHECK, "ok", detail)
    return Finding(_CHECK, "ok", f"{database} is whole")


def _is_served(folder: Path) -> bool:
    """Whether a service holds the folder's lock."""
    try:
        with (folder / "service.lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    return False


def _ask(database: Path) -> str:
    """Return `ok`, or the first thing that SQLite finds wrong."""
    uri = f"file:{quote(str(database.resolve()))}?mode=ro"
    with closing(sqlite3.connect(uri, uri=True, timeout=30)) as connection:
        (found,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
    return " ".join(str(found).split())
