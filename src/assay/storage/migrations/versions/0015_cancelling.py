"""An index of the batches whose experiments are still being cancelled."""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the index."""
    where = sa.text("state = 'cancelled' AND finished_at IS NULL")
    op.create_index(
        "ix_batch_cancelling", "batch", ["id"], sqlite_where=where, postgresql_where=where
    )


def downgrade() -> None:
    """Drop it again."""
    op.drop_index("ix_batch_cancelling", "batch")
