"""Remove from the object store what nobody can reach, and large artifacts of results that are not
among the best: `python -m assay.storage.garbage --days 30`.

A process that is killed between its last object and the row that names it leaves the object
behind; so does an attempt that was fenced. Such objects are harmless: readers follow rows and
never list. They are removed when they are older than any work that might still name them. Which
artifacts are large, and which of them are kept, is in `retention`.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from sqlalchemy import Column, delete, select
from sqlalchemy.orm import Session

from assay.domain.errors import AssayError
from assay.domain.states import LIVE_ATTEMPT
from assay.storage import retention, schema
from assay.storage.database import Database
from assay.storage.objects import Listed, LocalStore, ObjectStore
from assay.storage.retention import REMOVED_AT
from assay.storage.rows import table_of

_log = logging.getLogger(__name__)
_AT_ONCE = 500


@dataclass(frozen=True)
class Collected:
    """What was removed."""

    objects: int = 0
    bytes: int = 0


def collect(db: Database, store: ObjectStore, older_than: timedelta) -> Collected:
    """Remove objects that no row names and that are older than `older_than`.

    Take days: longer than an idea takes from its codebase to the row that names it, and longer
    than the time from which a backup of the database may come back.
    """
    with db.read() as session:
        before = db.now(session) - older_than
    objects = size = 0
    for prefix in ("attempts/", "codebases/", "bundles/"):
        old = (item for item in store.list(prefix) if item.modified < before)
        for some in _groups(old):
            if prefix == "codebases/":
                with db.write() as session:
                    _forget_codebases(session, [_content(item.key) for item in some], before)
            with db.read() as session:
                garbage = _unreachable(session, prefix, some)
            for item in garbage:
                store.remove(item.key)
                objects, size = objects + 1, size + item.size
    _log.info("removed %d objects of %d bytes that nothing names", objects, size)
    return Collected(objects, size)


def _forget_codebases(session: Session, names: Collection[str], before: datetime) -> None:
    """Delete the rows of codebases that nothing names, such as uploads that nobody submitted."""
    table = schema.Codebase
    old = set(
        session.scalars(select(table.id).where(table.id.in_(names), table.created_at < before))
    )
    for column in _named_by():
        old -= set(session.scalars(select(column).where(column.in_(old)).distinct()))
    session.execute(delete(table).where(table.id.in_(old), table.created_at < before))


def _named_by() -> list[Column[str]]:
    """The columns that hold a codebase."""
    key = table_of(schema.Codebase).c.id
    others = (
        (schema.Environment, "codebase"),
        (schema.Idea, "codebase_id"),
        (schema.Idea, "base_id"),
        (schema.Search, "base_id"),
    )
    tables = schema.Base.metadata.tables.values()
    return [
        *(column for table in tables for column in table.c if column.references(key)),
        *(table_of(model).c[name] for model, name in others),
    ]


def _groups(items: Iterable[Listed]) -> Iterator[list[Listed]]:
    group: list[Listed] = []
    for item in items:
        group.append(item)
        if len(group) == _AT_ONCE:
            yield group
            group = []
    if group:
        yield group


def _unreachable(session: Session, prefix: str, items: list[Listed]) -> list[Listed]:
    whole = [item for item in items if not item.is_unfinished]
    if prefix == "attempts/":
        kept = _attempt_keys(session, whole)
    else:
        column = schema.Codebase.id if prefix == "codebases/" else schema.Environment.bundle
        names = {_content(item.key) for item in whole}
        kept = {
            f"{prefix}{name}.zip"
            for name in session.scalars(select(column).where(column.in_(names)))
        }
    return [item for item in items if item.key not in kept]


def _content(key: str) -> str:
    return key.rpartition("/")[2].removesuffix(".zip")


def _attempt_keys(session: Session, items: list[Listed]) -> set[str]:
    """Those of the objects below attempts that a manifest or a log names, or still may."""
    attempts = {item.key: _attempt(item.key) for item in items}
    ids = set(attempts.values())
    removed: dict[str, set[str]] = {
        prefix: {file["name"] for file in files if REMOVED_AT in file}
        for prefix, files in session.execute(
            select(schema.Artifacts.prefix, schema.Artifacts.files).where(
                schema.Artifacts.attempt_id.in_(ids)
            )
        )
    }
    live = set(
        session.scalars(
            select(schema.Attempt.id).where(
                schema.Attempt.id.in_(ids),
                schema.Attempt.state.in_([state.value for state in LIVE_ATTEMPT]),
            )
        )
    )
    logs = set(
        session.scalars(select(schema.LogChunk.key).where(schema.LogChunk.attempt_id.in_(ids)))
    )
    return {
        key
        for key, attempt in attempts.items()
        if attempt in live or key in logs or ("/logs/" not in key and _is_stored(key, removed))
    }


def _is_stored(key: str, removed: Mapping[str, Collection[str]]) -> bool:
    """Whether a key is of an attempt with a manifest, and was not removed."""
    prefix, _, name = key.rpartition("/")
    return prefix in removed and name not in removed[prefix]


def _attempt(key: str) -> str:
    """`attempts/<measurement>/<attempt>-<token>/…` → attempt."""
    parts = key.split("/")
    return parts[2].rpartition("-")[0] if len(parts) > 3 else ""


def main(arguments: list[str] | None = None) -> int:
    """The command: for the servers that `ASSAY_SERVER_…` names, or for a data folder."""
    from assay.storage.settings import RetentionSettings

    parser = argparse.ArgumentParser(prog="python -m assay.storage.garbage", description=__doc__)
    parser.add_argument("--days", type=float, default=30.0, help="leave alone what is younger")
    parser.add_argument("--data-dir", type=Path, help="of `assay serve`, instead of servers")
    given = parser.parse_args(arguments)
    rules = RetentionSettings().rules
    db, store = _opened(given.data_dir)
    try:
        large = retention.apply(db, store, rules)
        removed = collect(db, store, timedelta(days=given.days))
    except AssayError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    finally:
        db.dispose()
    sys.stdout.write(
        f"{removed.objects} objects removed, {removed.bytes} bytes; "
        f"{large.files} large artifacts removed, {large.bytes} bytes\n"
    )
    return 0


def _opened(data_dir: Path | None) -> tuple[Database, ObjectStore]:
    from assay.storage.opening import open_database, open_store
    from assay.storage.settings import ServerSettings

    if data_dir is None:
        settings = ServerSettings()
        return open_database(settings), open_store(settings)
    file = data_dir / "assay.db"
    if not file.is_file():
        raise SystemExit(f"--data-dir: there is no {file}; name the folder of `assay serve`")
    return Database(f"sqlite:///{file}"), LocalStore(data_dir / "objects")


if __name__ == "__main__":
    raise SystemExit(main())
