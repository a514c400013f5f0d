"""An epoch of an asynchronous strategy holds its decision, stored before its ideas."""

import sqlalchemy as sa
from alembic import op

from assay.storage.types import Document

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; epochs of before have no decision."""
    op.add_column("epoch", sa.Column("decision", Document))


def downgrade() -> None:
    """Drop it, and the epochs that hold nothing else."""
    op.execute("DELETE FROM epoch WHERE decision IS NOT NULL AND ideas = '[]'")
    op.drop_column("epoch", "decision")
