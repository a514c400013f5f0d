"""Alembic's entry: the same migrations on SQLite and Postgres."""

from alembic import context
from sqlalchemy import create_engine

from assay.storage.schema import Base

engine = create_engine(context.config.attributes["url"])
with engine.connect() as connection:
    context.configure(
        connection=connection,
        target_metadata=Base.metadata,
        render_as_batch=connection.dialect.name == "sqlite",
        compare_type=False,
    )
    with context.begin_transaction():
        context.run_migrations()
engine.dispose()
