"""A worker on a busy host says how many of its processors it offers."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; null means all."""
    op.add_column("worker", sa.Column("usable_cpus", sa.Integer()))


def downgrade() -> None:
    """Drop it again."""
    op.drop_column("worker", "usable_cpus")
