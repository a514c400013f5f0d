"""Priors of verdicts are fitted and stored, and ideas confirm earlier experiments."""

import sqlalchemy as sa
from alembic import op

from assay.storage.types import Document, UtcDateTime

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table and the column."""
    op.create_table(
        "verdict_fit",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column(
            "environment_id", sa.String(64), sa.ForeignKey("environment.id"), nullable=False
        ),
        sa.Column("profile", sa.String(64), nullable=False),
        sa.Column("hardware_class", sa.String(64), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("owner", sa.String(64), nullable=False),
        sa.Column("prior", Document, nullable=False),
        sa.Column("created_at", UtcDateTime, nullable=False),
        sa.UniqueConstraint("environment_id", "profile", "hardware_class", "number"),
    )
    op.add_column("idea", sa.Column("confirms", sa.String(64)))


def downgrade() -> None:
    """Drop them again."""
    op.drop_column("idea", "confirms")
    op.drop_table("verdict_fit")
