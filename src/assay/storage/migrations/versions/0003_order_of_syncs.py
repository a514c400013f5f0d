"""Syncs of a worker are numbered: one that comes late says nothing any more."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column."""
    op.add_column(
        "worker", sa.Column("last_sync", sa.BigInteger(), nullable=False, server_default="0")
    )


def downgrade() -> None:
    """Drop the column."""
    with op.batch_alter_table("worker") as batch:
        batch.drop_column("last_sync")
