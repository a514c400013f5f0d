"""The base of all tables, and how constraints are named."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any

from sqlalchemy import MetaData, String
from sqlalchemy.orm import DeclarativeBase

from assay.storage.types import Document, Dollars, UtcDateTime

NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}

Id = String(64)
State = String(16)


class Base(DeclarativeBase):
    """Base of all tables."""

    metadata = MetaData(naming_convention=NAMING)
    type_annotation_map = {
        dict[str, Any]: Document,
        list[Any]: Document,
        datetime: UtcDateTime,
        Decimal: Dollars,
    }
