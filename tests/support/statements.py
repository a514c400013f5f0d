"""Counts the statements that a database is sent."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import event

from assay.storage.database import Database


@contextmanager
def counted(db: Database) -> Iterator[list[str]]:
    """The statements that are executed while the block runs, by any thread, as they come."""
    found: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        found.append(statement)

    event.listen(db.engine, "before_cursor_execute", note)
    try:
        yield found
    finally:
        event.remove(db.engine, "before_cursor_execute", note)
