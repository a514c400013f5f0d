"""Remove what nobody can reach from the object store: `python -m assay.storage.garbage --days 30`.

A process that is killed between its last object and the row that names it leaves the object
behind; so does an attempt that was fenced. Such objects are harmless: readers follow rows and
never list. They are removed when they are older than any work that might still name them.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import select
from sqlalchemy.orm import Session

from assay.domain.errors import AssayError
from assay.domain.states import LIVE_ATTEMPT
from assay.storage import schema
from assay.storage.database import Database
from assay.storage.objects import Listed, ObjectStore

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
            with db.read() as session:
                garbage = _unreachable(session, prefix, some)
            for item in garbage:
                store.remove(item.key)
                objects, size = objects + 1, size + item.size
    _log.info("removed %d objects of %d bytes that nothing names", objects, size)
    return Collected(objects, size)


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
    stored = set(
        session.scalars(
            select(schema.Artifacts.prefix).where(schema.Artifacts.attempt_id.in_(ids))
        )
    )
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
        if attempt in live
        or key in logs
        or ("/logs/" not in key and key.rpartition("/")[0] in stored)
    }


def _attempt(key: str) -> str:
    """`attempts/<measurement>/<attempt>-<token>/…` → attempt."""
    parts = key.split("/")
    return parts[2].rpartition("-")[0] if len(parts) > 3 else ""


def main(arguments: list[str] | None = None) -> int:
    """The command: for the servers that `ASSAY_SERVER_…` names."""
    from assay.storage.opening import open_store
    from assay.storage.settings import ServerSettings

    parser = argparse.ArgumentParser(prog="python -m assay.storage.garbage", description=__doc__)
    parser.add_argument("--days", type=float, default=30.0, help="leave alone what is younger")
    given = parser.parse_args(arguments)
    settings = ServerSettings()
    db = Database(settings.database_url.get_secret_value())
    try:
        removed = collect(db, open_store(settings), timedelta(days=given.days))
    except AssayError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    finally:
        db.dispose()
    sys.stdout.write(f"{removed.objects} objects removed, {removed.bytes} bytes\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
