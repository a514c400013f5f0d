"""Batches have a kind, and may start from a promoted codebase, as searches may.

Smokes and second scores are stored, and so are the answers of ideators. Codebases say which of
them are the same code.

Batches of before are of the kind `score`, also those that confirm: what they measured was scored
on the split that search sees.
"""

import sqlalchemy as sa
from alembic import op

from assay.storage.types import Document, UtcDateTime

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

_COLUMNS = {
    "batch": ("base", "base_id"),
    "search": ("base", "base_id"),
    "idea": ("reproduces", "codebase_id"),
}


def upgrade() -> None:
    """Add tables and columns, and allow results without a metric."""
    op.create_table(
        "promotion",
        sa.Column(
            "environment_id", sa.String(64), sa.ForeignKey("environment.id"), primary_key=True
        ),
        sa.Column("name", sa.String(64), primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True),
        sa.Column("codebase_id", sa.String(64), sa.ForeignKey("codebase.id"), nullable=False),
        sa.Column("experiment_id", sa.String(64), sa.ForeignKey("experiment.id"), nullable=False),
        sa.Column(
            "confirmation_id", sa.String(64), sa.ForeignKey("experiment.id"), nullable=False
        ),
        sa.Column("owner", sa.String(64), nullable=False),
        sa.Column("created_at", UtcDateTime, nullable=False),
    )
    op.create_table(
        "rescore",
        sa.Column(
            "measurement_id",
            sa.String(64),
            sa.ForeignKey("result.measurement_id"),
            primary_key=True,
        ),
        sa.Column("metric", sa.Float, nullable=False),
        sa.Column("metrics", Document, nullable=False),
        sa.Column("seconds", sa.Float, nullable=False),
        sa.Column("created_at", UtcDateTime, nullable=False),
    )
    op.create_table(
        "ideator_answer",
        sa.Column("search_id", sa.String(64), sa.ForeignKey("search.id"), primary_key=True),
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("epoch", sa.Integer, nullable=False),
        sa.Column("operator", sa.String(16), nullable=False),
        *[sa.Column(name, sa.Integer, nullable=False) for name in ("asked", "ideas", "unread")],
        sa.Column("stop", sa.String(64), nullable=False),
        sa.Column("text", sa.Text, nullable=False),
        sa.Column("thinking", sa.Text),
        sa.Column("created_at", UtcDateTime, nullable=False),
    )
    with op.batch_alter_table("codebase") as batch:
        batch.add_column(sa.Column("canonical", sa.String(64)))
        batch.create_unique_constraint("uq_codebase_canonical", ["canonical"])
    kind = sa.Column("kind", sa.String(16), nullable=False, server_default="score")
    op.add_column("batch", kind)
    for table, names in _COLUMNS.items():
        for name in names:
            op.add_column(table, sa.Column(name, sa.String(64)))
    for name in ("confirms", "reproduces"):
        op.create_index(f"ix_idea_{name}", "idea", [name])
    op.create_index("ix_batch_base_id", "batch", ["base_id"])
    with op.batch_alter_table("result") as batch:
        batch.alter_column("metric", existing_type=sa.Float, nullable=True)


def downgrade() -> None:
    """Drop them again, with the results of smokes."""
    op.execute("DELETE FROM result WHERE metric IS NULL")
    with op.batch_alter_table("result") as batch:
        batch.alter_column("metric", existing_type=sa.Float, nullable=False)
    op.drop_index("ix_batch_base_id", "batch")
    for name in ("reproduces", "confirms"):
        op.drop_index(f"ix_idea_{name}", "idea")
    for table, names in _COLUMNS.items():
        for name in names:
            op.drop_column(table, name)
    op.drop_column("batch", "kind")
    with op.batch_alter_table("codebase") as batch:
        batch.drop_constraint("uq_codebase_canonical", type_="unique")
        batch.drop_column("canonical")
    op.drop_table("ideator_answer")
    op.drop_table("rescore")
    op.drop_table("promotion")
