"""Batches have a kind, and may start from a promoted codebase, as searches may.

Smokes and second scores are stored, and so are the calls of ideators with their answers: they are
in the ledger with those of executors. Codebases say which of them are the same code.

The cap of a search was in its config, for the client to keep. It is among its caps now, and the
service keeps it.

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
_OF_EXECUTORS = ("batch_id", "implementation_id")


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
    with op.batch_alter_table("model_call") as batch:
        for name in _OF_EXECUTORS:
            batch.alter_column(name, existing_type=sa.String(64), nullable=True)
    op.create_table(
        "ideator_call",
        sa.Column("call_id", sa.String(64), sa.ForeignKey("model_call.id"), primary_key=True),
        sa.Column("search_id", sa.String(64), sa.ForeignKey("search.id"), nullable=False),
        sa.Column("epoch", sa.Integer, nullable=False),
        sa.Column("place", sa.String(64), nullable=False),
        sa.Column("loop", sa.String(64), nullable=False),
        sa.Column("operator", sa.String(16), nullable=False),
        sa.Column("asked", sa.Integer, nullable=False),
        sa.Column("ideas", sa.Integer),
        sa.Column("unread", sa.Integer),
        sa.Column("stop", sa.String(64)),
        sa.Column("text", sa.Text),
        sa.Column("thinking", sa.Text),
        sa.Column("thinking_length", sa.Integer),
    )
    op.create_index("ix_ideator_call_place", "ideator_call", ["search_id", "epoch", "place"])
    _move_caps()
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
    op.drop_table("ideator_call")
    op.execute("DELETE FROM model_call WHERE implementation_id IS NULL")
    with op.batch_alter_table("model_call") as batch:
        for name in _OF_EXECUTORS:
            batch.alter_column(name, existing_type=sa.String(64), nullable=False)
    op.drop_table("rescore")
    op.drop_table("promotion")


def _move_caps() -> None:
    table = sa.table(
        "search", sa.column("id"), sa.column("config", Document), sa.column("caps", Document)
    )
    connection = op.get_bind()
    for row in connection.execute(sa.select(table)).all():
        cap = row.config.get("max_cost_usd")
        if cap is None or row.caps.get("max_cost_usd") is not None:
            continue
        caps = {**row.caps, "max_cost_usd": cap}
        connection.execute(sa.update(table).where(table.c.id == row.id).values(caps=caps))
