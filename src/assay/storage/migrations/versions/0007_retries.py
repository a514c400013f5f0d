"""Experiments are retried, attempts keep their conditions, and searches have events."""

import sqlalchemy as sa
from alembic import op

from assay.storage.types import BigId, Document, UtcDateTime

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns and the table."""
    op.add_column("idea", sa.Column("retries", sa.String(64)))
    op.create_index("ix_idea_retries", "idea", ["retries"])
    op.add_column("attempt", sa.Column("conditions", Document))
    op.create_table(
        "search_event",
        sa.Column("id", BigId, primary_key=True, autoincrement=True),
        sa.Column("search_id", sa.String(64), sa.ForeignKey("search.id"), nullable=False),
        sa.Column("type", sa.String(64), nullable=False),
        sa.Column("data", Document, nullable=False),
        sa.Column("created_at", UtcDateTime, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_search_event", "search_event", ["search_id", "id"])


def downgrade() -> None:
    """Drop them again."""
    op.drop_index("ix_search_event", "search_event")
    op.drop_table("search_event")
    # By its own statement also on SQLite: copying a table would lose its triggers.
    op.drop_column("attempt", "conditions")
    op.drop_index("ix_idea_retries", "idea")
    op.drop_column("idea", "retries")
