"""A search may name the conditions it is measured under; earlier ones named none."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column."""
    op.add_column("search", sa.Column("conditions_id", sa.String(64)))


def downgrade() -> None:
    """Drop it again."""
    op.drop_column("search", "conditions_id")
