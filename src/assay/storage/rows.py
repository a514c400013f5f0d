"""Small helpers on rows that several repositories need."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable
from typing import Any, TypeVar

from sqlalchemy import (
    Boolean,
    ColumnElement,
    CursorResult,
    Dialect,
    Executable,
    Insert,
    String,
    Table,
    Text,
    bindparam,
    select,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import InstrumentedAttribute, Session
from sqlalchemy.orm.util import identity_key
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeDecorator, TypeEngine

from assay.domain.errors import NotFound
from assay.storage.schema import Base
from assay.storage.types import clock

T = TypeVar("T", bound=Base)


def get(session: Session, model: type[T], key: Any, what: str) -> T:
    """The row with that primary key.

    Raises:
        NotFound: there is none.
    """
    row = session.get(model, key)
    if row is None:
        raise NotFound(f"{what} {key!r} was not found")
    return row


def get_all(session: Session, model: type[T], keys: Iterable[str]) -> dict[str, T]:
    """The rows with these primary keys, by key; those that are not there are left out.

    A row that the session holds already is not read again. Keep what is returned: a session
    forgets rows that nobody refers to.
    """
    found: dict[str, T] = {}
    missing: list[str] = []
    for key in dict.fromkeys(keys):
        row = session.identity_map.get(identity_key(model, key))
        if row is None:
            missing.append(key)
        else:
            found[key] = row
    if missing:
        (column,) = table_of(model).primary_key
        statement = select(model).where(among(column))
        for row in session.scalars(statement, {"ids": missing}):
            found[getattr(row, column.name)] = row
    return found


def among(
    column: ColumnElement[str] | InstrumentedAttribute[str] | InstrumentedAttribute[str | None],
    name: str = "ids",
) -> ColumnElement[bool]:
    """Return whether a column is one of the ids of that parameter, a list.

    The list is a single parameter, so the statement is the same for every number of ids, and
    Postgres plans it once. psycopg reads a statement with 800 parameters for 20 ms.
    """
    return _Among(column, bindparam(name, type_=_Ids()))


class _Ids(TypeDecorator[list[str]]):
    """Ids as one parameter: an array on Postgres, JSON on SQLite, which has no arrays."""

    impl = Text
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        found = postgresql.ARRAY(String()) if dialect.name == "postgresql" else Text()
        return dialect.type_descriptor(found)

    def process_bind_param(self, value: list[str] | None, dialect: Dialect) -> Any:
        return value if dialect.name == "postgresql" else json.dumps(value)


class _Among(FunctionElement[bool]):
    type = Boolean()
    inherit_cache = True
    name = "among"


@compiles(_Among, "postgresql")
def _among_postgres(element: _Among, compiler: Any, **options: Any) -> str:
    column, ids = (compiler.process(each, **options) for each in element.clauses)
    return f"{column} = ANY ({ids})"


@compiles(_Among, "sqlite")
def _among_sqlite(element: _Among, compiler: Any, **options: Any) -> str:
    column, ids = (compiler.process(each, **options) for each in element.clauses)
    return f"{column} IN (SELECT value FROM json_each({ids}))"


def insert_missing(
    session: Session, model: type[Base], rows: list[dict[str, Any]], *, at: tuple[str, ...] = ()
) -> int:
    """Insert rows whose keys are not there yet; leave the others alone. Returns how many.

    Columns named in `at` get the time by the database's clock.
    """
    if not rows:
        return 0
    session.flush()  # rows that these refer to
    statement = _insert_missing(model, session.get_bind().dialect.name, at)
    return session.connection().execute(statement, rows).rowcount


@functools.cache
def _insert_missing(model: type[Base], dialect: str, at: tuple[str, ...]) -> Insert:
    """Rows are its parameters: an INSERT that holds them itself is compiled every time."""
    insert = sqlite.insert if dialect == "sqlite" else postgresql.insert
    # Without the option, the number of rows that an INSERT made is not kept (it reads -1).
    statement = insert(table_of(model)).on_conflict_do_nothing()
    if at:
        statement = statement.values({column: clock() for column in at})
    return statement.execution_options(preserve_rowcount=True)


def table_of(model: type[Base]) -> Table:
    """The table of a model."""
    table = model.__table__
    assert isinstance(table, Table)
    return table


def run(session: Session, statement: Executable, **values: Any) -> CursorResult[*tuple[Any, ...]]:
    """Execute a statement that was built once, with these values for its parameters.

    What every report of a worker asks is built once: building a statement takes longer than
    Postgres needs to execute it. Objects that the session has loaded keep the values they had.
    """
    session.flush()
    return session.connection().execute(statement, values)


def changed(session: Session, statement: Executable) -> int:
    """Execute and return the number of rows it changed: 0 means somebody else was first.

    Objects that the session has loaded keep the values they had: use what the statement says,
    or read columns again.
    """
    outcome = session.execute(statement, execution_options={"synchronize_session": False})
    assert isinstance(outcome, CursorResult)
    return outcome.rowcount
