"""Events are sent to webhooks: where to, what became of each delivery, what is yet to be told."""

import sqlalchemy as sa
from alembic import op

from assay.storage.types import Document, UtcDateTime

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

_PENDING = sa.text("state = 'pending'")


def upgrade() -> None:
    """Add the tables."""
    op.create_table(
        "webhook",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("owner", sa.String(64), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("events", Document, nullable=False),
        sa.Column("description", sa.String(200)),
        sa.Column("secret", sa.String(64), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("created_at", UtcDateTime, nullable=False),
    )
    op.create_index("ix_webhook_owner", "webhook", ["owner"])
    op.create_table(
        "delivery",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column(
            "webhook_id",
            sa.String(64),
            sa.ForeignKey("webhook.id", ondelete="CASCADE"),
            nullable=False,
        ),
        sa.Column("type", sa.String(64), nullable=False),
        sa.Column("cause", sa.String(64), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("data", Document, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("attempts_before", sa.Integer(), nullable=False),
        sa.Column("next_at", UtcDateTime, nullable=False),
        sa.Column("status", sa.Integer()),
        sa.Column("error", sa.Text()),
        sa.Column("created_at", UtcDateTime, nullable=False),
        sa.Column("finished_at", UtcDateTime),
        sa.UniqueConstraint("webhook_id", "cause"),
    )
    op.create_index(
        "ix_delivery_due",
        "delivery",
        ["next_at"],
        sqlite_where=_PENDING,
        postgresql_where=_PENDING,
    )
    op.create_index("ix_delivery_webhook", "delivery", ["webhook_id", "id"])
    op.create_index("ix_delivery_finished", "delivery", ["finished_at"])
    op.create_table(
        "unjudged",
        sa.Column("batch_id", sa.String(64), sa.ForeignKey("batch.id"), primary_key=True),
        sa.Column("looks", sa.Integer(), nullable=False),
        sa.Column("next_at", UtcDateTime, nullable=False),
    )
    op.create_index("ix_unjudged_next_at", "unjudged", ["next_at"])


def downgrade() -> None:
    """Drop them; what was not delivered is forgotten."""
    for table in ("unjudged", "delivery", "webhook"):
        op.drop_table(table)
