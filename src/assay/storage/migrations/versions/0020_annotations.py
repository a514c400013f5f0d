"""Experiments and searches can have tags and a note."""

import sqlalchemy as sa
from alembic import op

from assay.storage.types import Document

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the tables."""
    op.create_table(
        "annotation",
        sa.Column("subject_id", sa.String(64), primary_key=True),
        sa.Column("tags", Document, nullable=False),
        sa.Column("note", sa.Text(), nullable=False),
    )
    op.create_table(
        "tag",
        sa.Column("subject_id", sa.String(64), primary_key=True),
        sa.Column("name", sa.String(40), primary_key=True),
        sa.Column("owner", sa.String(64), nullable=False),
    )
    op.create_index("ix_tag_name", "tag", ["owner", "name", "subject_id"])


def downgrade() -> None:
    """Drop them; all tags and notes are lost."""
    op.drop_table("tag")
    op.drop_table("annotation")
