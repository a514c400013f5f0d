"""Calls of models are a ledger of their own; repairs; smoke measurements; similar ideas; caps."""

from typing import Any

import sqlalchemy as sa
from alembic import op

from assay.storage.types import Document, Dollars, UtcDateTime

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def _new_columns() -> dict[str, list[sa.Column[Any]]]:
    """Columns by table; made anew for every use, as each becomes part of a table."""
    return {
        "search": [sa.Column("caps", Document, nullable=False, server_default="{}")],
        "idea": [sa.Column("similar", Document, nullable=False, server_default="[]")],
        "implementation": [sa.Column("repairs", sa.Integer(), nullable=False, server_default="0")],
        "sample": [
            sa.Column("is_repair", sa.Boolean(), nullable=False, server_default=sa.false()),
            sa.Column("fitted", sa.Boolean(), nullable=False, server_default=sa.false()),
            sa.Column("smoke_id", sa.String(64)),
        ],
        "experiment_measurement": [
            sa.Column("role", sa.String(16), nullable=False, server_default="score")
        ],
    }


def upgrade() -> None:
    """Add tables and columns, and a ledger of the calls that were recorded without one."""
    _create_calls()
    _create_repairs()
    for table, columns in _new_columns().items():
        for column in columns:
            op.add_column(table, column)
    op.execute(
        "UPDATE sample SET fitted = true WHERE state = 'applied' OR code = 'does_not_compile'"
    )
    op.execute(
        "INSERT INTO model_call (id, owner, search_id, batch_id, implementation_id, sample, "
        "revision, number, model, request_hash, prompt_version, state, code, input_tokens, "
        "cached_input_tokens, cache_write_tokens, output_tokens, is_estimate, is_replay, "
        "cost_usd, started_at, finished_at) "
        "SELECT 'call_' || substr(s.implementation_id, 6) || '_' || s.sample || '_' || "
        "s.revision, b.owner, b.search_id, b.id, s.implementation_id, s.sample, s.revision, 1, "
        "i.executor, '', s.prompt_version, CASE WHEN s.finished_at IS NULL THEN 'interrupted' "
        "WHEN s.state IN ('failed', 'cancelled') THEN s.state ELSE 'returned' END, s.code, "
        "s.input_tokens, s.cached_input_tokens, 0, s.output_tokens, false, false, s.cost_usd, "
        "s.started_at, coalesce(s.finished_at, s.started_at) FROM sample s "
        "JOIN implementation i ON i.id = s.implementation_id "
        "JOIN experiment e ON e.id = i.experiment_id JOIN batch b ON b.id = e.batch_id"
    )


def downgrade() -> None:
    """Drop them again."""
    for table, columns in _new_columns().items():
        with op.batch_alter_table(table) as batch:
            for column in columns:
                batch.drop_column(column.name)
    op.drop_table("repair")
    op.drop_table("model_call")


def _create_calls() -> None:
    op.create_table(
        "model_call",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("owner", sa.String(64), nullable=False),
        sa.Column("search_id", sa.String(64)),
        sa.Column("batch_id", sa.String(64), nullable=False),
        sa.Column("implementation_id", sa.String(64), nullable=False),
        sa.Column("sample", sa.Integer(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("model", sa.String(256), nullable=False),
        sa.Column("request_hash", sa.String(64), nullable=False),
        sa.Column("prompt_version", sa.String(64), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("code", sa.String(64)),
        sa.Column("message", sa.Text()),
        sa.Column("input_tokens", sa.Integer(), nullable=False),
        sa.Column("cached_input_tokens", sa.Integer(), nullable=False),
        sa.Column("cache_write_tokens", sa.Integer(), nullable=False),
        sa.Column("output_tokens", sa.Integer(), nullable=False),
        sa.Column("is_estimate", sa.Boolean(), nullable=False),
        sa.Column("is_replay", sa.Boolean(), nullable=False),
        sa.Column("reserved_usd", Dollars()),
        sa.Column("cost_usd", Dollars()),
        sa.Column("seconds", sa.Float()),
        sa.Column("request_id", sa.String(200)),
        sa.Column("started_at", UtcDateTime(), nullable=False),
        sa.Column("finished_at", UtcDateTime()),
        sa.PrimaryKeyConstraint("id", name="pk_model_call"),
        sa.ForeignKeyConstraint(["batch_id"], ["batch.id"], name="fk_model_call_batch_id"),
        sa.ForeignKeyConstraint(
            ["implementation_id"], ["implementation.id"], name="fk_model_call_implementation_id"
        ),
    )
    op.create_index("ix_model_call_owner", "model_call", ["owner", "started_at"])
    op.create_index(
        "ix_model_call_sample", "model_call", ["implementation_id", "sample", "revision"]
    )
    for column in ("search_id", "batch_id", "finished_at"):
        op.create_index(f"ix_model_call_{column}", "model_call", [column])


def _create_repairs() -> None:
    op.create_table(
        "repair",
        sa.Column("experiment_id", sa.String(64), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("codebase_id", sa.String(64), nullable=False),
        sa.Column("measurement_id", sa.String(64), nullable=False),
        sa.Column("failure", Document, nullable=False),
        sa.Column("sample", sa.Integer(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("repaired_id", sa.String(64)),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("finished_at", UtcDateTime()),
        sa.PrimaryKeyConstraint("experiment_id", "number", name="pk_repair"),
        sa.ForeignKeyConstraint(
            ["experiment_id"], ["experiment.id"], name="fk_repair_experiment_id"
        ),
        sa.ForeignKeyConstraint(["codebase_id"], ["codebase.id"], name="fk_repair_codebase_id"),
        sa.ForeignKeyConstraint(
            ["measurement_id"], ["measurement.id"], name="fk_repair_measurement_id"
        ),
        sa.ForeignKeyConstraint(["repaired_id"], ["codebase.id"], name="fk_repair_repaired_id"),
    )
