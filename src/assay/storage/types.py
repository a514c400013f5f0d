"""Column types that behave the same on SQLite and Postgres."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from sqlalchemy import JSON, BigInteger, DateTime, Dialect, Float, Integer
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeDecorator


class UtcDateTime(TypeDecorator[datetime]):
    """Aware datetimes in UTC; SQLite keeps them naive, so the zone is put back when reading."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("a naive datetime was about to be stored")
        return value.astimezone(UTC)

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        stored: datetime = value
        return stored.replace(tzinfo=UTC) if stored.tzinfo is None else stored.astimezone(UTC)


class epoch(FunctionElement[float]):  # noqa: N801 - a function of SQL
    """Seconds since 1970 of a datetime: cheaper to read by the thousand than datetimes."""

    type = Float()
    inherit_cache = True
    name = "epoch"


@compiles(epoch, "postgresql")
def _epoch_postgres(element: epoch, compiler: Any, **options: Any) -> str:
    return f"date_part('epoch', {compiler.process(element.clauses, **options)})"


@compiles(epoch, "sqlite")
def _epoch_sqlite(element: epoch, compiler: Any, **options: Any) -> str:
    return f"((julianday({compiler.process(element.clauses, **options)}) - 2440587.5) * 86400.0)"


class clock(FunctionElement[datetime]):  # noqa: N801 - a function of SQL
    """Now, inside a statement: what `Database.now` says, without asking for it first."""

    type = UtcDateTime()
    inherit_cache = True
    name = "clock"


@compiles(clock, "postgresql")
def _clock_postgres(_element: clock, _compiler: Any, **_options: Any) -> str:
    return "clock_timestamp()"


@compiles(clock, "sqlite")
def _clock_sqlite(_element: clock, _compiler: Any, **_options: Any) -> str:
    return "assay_clock()"


def clock_of_sqlite() -> str:
    """What SQLite calls for it: now, as SQLAlchemy stores a datetime there."""
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")


class Dollars(TypeDecorator[Decimal]):
    """Exact dollars, as whole billionths: SQLite has no decimals, and sums must not drift."""

    impl = BigInteger
    cache_ok = True

    def process_bind_param(self, value: Decimal | None, dialect: Dialect) -> int | None:
        return None if value is None else int((value * 10**9).to_integral_value())

    def process_result_value(self, value: Any, dialect: Dialect) -> Decimal | None:
        return None if value is None else Decimal(int(value)) / 10**9


#: A JSON document.
Document = JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")
#: SQLite numbers rows itself only for a column of type INTEGER.
BigId = BigInteger().with_variant(Integer(), "sqlite")
