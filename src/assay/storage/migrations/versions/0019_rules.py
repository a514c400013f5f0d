"""The leader says what it decides by."""

import sqlalchemy as sa
from alembic import op

from assay.storage.types import Document

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; a leader of before fills it when it renews its lease."""
    op.add_column("leader", sa.Column("rules", Document))


def downgrade() -> None:
    """Drop it."""
    op.drop_column("leader", "rules")
