"""A database as the first migration made it, with work in flight.

Recorded from an embedded service of that version, which was killed with -9 in the middle of 16
ideas for `toy`: 4 experiments had succeeded, one attempt was starting, one was assigned, 10
measurements were queued, and no message of the outbox had been delivered for good.
"""

from __future__ import annotations

import base64
import json
import zipfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from alembic import command

from assay.storage.database import Database, alembic_config

FOLDER = Path(__file__).parent / "recorded_0001"
#: The class of the machine on which it was recorded: what is queued waits for a worker of it.
HARDWARE_CLASS = "cpu-amx"
WORKER = "local"
IDEAS = 16
#: Of the ideas and the baseline.
RESULTS = IDEAS + 1
HAD_RESULTS = 5


def restore(db: Database, objects: Path) -> None:
    """Make an empty database and a folder of objects into the recorded ones."""
    command.upgrade(alembic_config(db.url), "0001")
    recorded: dict[str, list[dict[str, Any]]] = json.loads((FOLDER / "rows.json").read_text())
    tables = sa.MetaData()
    tables.reflect(db.engine)
    with db.write() as session:
        for table in tables.sorted_tables:
            rows = recorded.get(table.name, [])
            for row in rows:
                values = {name: _value(table.c[name].type, value) for name, value in row.items()}
                session.execute(table.insert().values(values))
            if rows and not db.is_sqlite:
                _advance(session, table)
    with zipfile.ZipFile(FOLDER / "objects.zip") as archive:
        archive.extractall(objects)


def _value(kind: sa.types.TypeEngine[Any], stored: Any) -> Any:
    """A value as SQLite kept it, for a column of that type."""
    if stored is None:
        return sa.null()
    if isinstance(stored, dict):
        return base64.b64decode(stored["$bytes"])
    if isinstance(kind, sa.DateTime):
        return datetime.fromisoformat(stored).replace(tzinfo=UTC)
    if isinstance(kind, sa.JSON):
        return json.loads(stored)
    return bool(stored) if isinstance(kind, sa.Boolean) else stored


def _advance(session: Any, table: sa.Table) -> None:
    """Sequences are where the recorded rows left them."""
    for column in table.primary_key:
        sequence = session.scalar(
            sa.select(sa.func.pg_get_serial_sequence(table.name, column.name))
        )
        if sequence is not None:
            highest = session.scalar(sa.select(sa.func.max(column)))
            session.execute(sa.select(sa.func.setval(sequence, highest)))
