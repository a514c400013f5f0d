"""Alembic's entry: the same migrations on SQLite and Postgres."""

from typing import Any

from alembic import context
from sqlalchemy import create_engine

from assay.storage.schema import Base


def compared(_: Any, name: str | None, *_rest: Any) -> bool:
    """Whether an object is compared with its model: SQLite does not say how an index sorts."""
    return not (connection.dialect.name == "sqlite" and name == "ix_measurement_queue")


engine = create_engine(context.config.attributes["url"])
with engine.connect() as connection:
    context.configure(
        connection=connection,
        target_metadata=Base.metadata,
        render_as_batch=connection.dialect.name == "sqlite",
        compare_type=False,
        include_object=compared,
    )
    with context.begin_transaction():
        context.run_migrations()
engine.dispose()
