"""A worker says which of its GPUs it leaves out, and why."""

import sqlalchemy as sa
from alembic import op

from assay.storage.types import Document

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; none are known yet."""
    column = sa.Column("troubles", Document, nullable=False, server_default="[]")
    op.add_column("worker", column)


def downgrade() -> None:
    """Drop it again."""
    op.drop_column("worker", "troubles")
