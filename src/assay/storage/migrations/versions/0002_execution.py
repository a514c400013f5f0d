"""Execution on servers: shapes of measurements, deadlines, devices, cordons, leases of ideas."""

from typing import Any

import sqlalchemy as sa
from alembic import op

from assay.storage.types import Document, UtcDateTime

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

LIVE = "state IN ('assigned', 'starting', 'running', 'finalizing')"
QUEUED = "state = 'queued'"
FAILED = "state = 'failed'"
#: Start and finish of an attempt, on top of its budgets.
MARGIN_SECONDS = 60
NEEDS = "hardware_class, cpus, gpus, memory_bytes, needs_isolation, budget_seconds"


def _new_columns() -> dict[str, list[sa.Column[Any]]]:
    """Columns by table; made anew for every use, as each becomes part of a table."""
    return {
        "measurement": [
            sa.Column("shape_id", sa.String(64)),
            sa.Column("batch_at", UtcDateTime()),
            sa.Column("not_before", UtcDateTime()),
        ],
        "attempt": [
            sa.Column("bound_seconds", sa.Float(), nullable=False, server_default="0"),
            sa.Column("devices", Document, nullable=False, server_default="[]"),
            sa.Column("infrastructure", sa.Boolean(), nullable=False, server_default=sa.false()),
            sa.Column("rings", sa.Integer(), nullable=False, server_default="0"),
            sa.Column("rung_at", UtcDateTime()),
            sa.Column("deadline_at", UtcDateTime()),
        ],
        "worker": [
            sa.Column("usable_gpus", sa.Integer(), nullable=False, server_default="0"),
            sa.Column("devices", Document, nullable=False, server_default="[]"),
            sa.Column("version", sa.String(64), nullable=False, server_default=""),
            sa.Column("cordoned_until", UtcDateTime()),
            sa.Column("cordon_reason", sa.Text()),
            sa.Column("cordons", sa.Integer(), nullable=False, server_default="0"),
        ],
        "implementation": [
            sa.Column("holder", sa.String(64)),
            sa.Column("lease_expires_at", UtcDateTime()),
        ],
    }


def upgrade() -> None:
    op.create_table(
        "shape",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("hardware_class", sa.String(64), nullable=False),
        sa.Column("cpus", sa.Integer(), nullable=False),
        sa.Column("gpus", sa.Integer(), nullable=False),
        sa.Column("memory_bytes", sa.BigInteger(), nullable=False),
        sa.Column("needs_isolation", sa.Boolean(), nullable=False),
        sa.Column("budget_seconds", sa.Float(), nullable=False),
        sa.Column("bound_seconds", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_shape"),
        sa.UniqueConstraint(
            "hardware_class",
            "cpus",
            "gpus",
            "memory_bytes",
            "needs_isolation",
            "budget_seconds",
            "bound_seconds",
            name="uq_shape",
        ),
    )
    for table, columns in _new_columns().items():
        for column in columns:
            op.add_column(table, column)
    _fill()
    op.drop_index("ix_measurement_queued", "measurement")
    op.create_index(
        "ix_measurement_queue",
        "measurement",
        ["shape_id", sa.text("priority DESC"), "batch_at", "queued_at", "id"],
        sqlite_where=sa.text(QUEUED),
        postgresql_where=sa.text(QUEUED),
    )
    op.create_index(
        "ix_attempt_live",
        "attempt",
        ["lease_expires_at"],
        sqlite_where=sa.text(LIVE),
        postgresql_where=sa.text(LIVE),
    )
    op.create_index(
        "ix_attempt_infrastructure",
        "attempt",
        ["worker_id", "finished_at"],
        sqlite_where=sa.text("infrastructure"),
        postgresql_where=sa.text("infrastructure"),
    )
    _index_ends()
    _logs_elsewhere()


def _index_ends() -> None:
    """What has ended is added up as it ends."""
    op.create_index("ix_attempt_finished_at", "attempt", ["finished_at"])
    op.create_index("ix_sample_finished_at", "sample", ["finished_at"])
    op.create_index(
        "ix_measurement_failed",
        "measurement",
        ["finished_at"],
        sqlite_where=sa.text(FAILED),
        postgresql_where=sa.text(FAILED),
    )


def _fill() -> None:
    """Shapes of the measurements there are. Their evaluation's budget is in a manifest, so twice
    the training's stands for it."""
    bound = f"3 * budget_seconds + {MARGIN_SECONDS}"
    op.execute(
        f"INSERT INTO shape (id, {NEEDS}, bound_seconds) "
        f"SELECT 'shp_' || min(substr(id, 5)), {NEEDS}, {bound} FROM measurement GROUP BY {NEEDS}"
    )
    same = " AND ".join(f"shape.{c.strip()} = measurement.{c.strip()}" for c in NEEDS.split(","))
    op.execute(
        "UPDATE measurement SET batch_at = created_at, "
        f"shape_id = (SELECT shape.id FROM shape WHERE {same})"
    )
    op.execute(
        "UPDATE attempt SET bound_seconds = (SELECT shape.bound_seconds FROM shape "
        "JOIN measurement ON measurement.shape_id = shape.id "
        "WHERE measurement.id = attempt.measurement_id)"
    )
    op.execute("UPDATE worker SET usable_gpus = gpus")


def _logs_elsewhere() -> None:
    """Log bytes may be in the object store."""
    op.create_table(
        "system_point",
        sa.Column("attempt_id", sa.String(64), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("seconds", sa.Float(), nullable=False),
        sa.Column("values", Document, nullable=False),
        sa.ForeignKeyConstraint(["attempt_id"], ["attempt.id"], name="fk_system_point_attempt_id"),
        sa.PrimaryKeyConstraint("attempt_id", "seq", name="pk_system_point"),
    )
    with op.batch_alter_table("log_chunk") as batch:
        batch.alter_column("data", existing_type=sa.LargeBinary(), nullable=True)
        batch.add_column(sa.Column("size", sa.Integer(), nullable=False, server_default="0"))
        batch.add_column(sa.Column("key", sa.String(256)))
    op.execute("UPDATE log_chunk SET size = length(data)")


def downgrade() -> None:
    op.execute("DELETE FROM log_chunk WHERE data IS NULL")
    with op.batch_alter_table("log_chunk") as batch:
        batch.drop_column("key")
        batch.drop_column("size")
        batch.alter_column("data", existing_type=sa.LargeBinary(), nullable=False)
    op.drop_table("system_point")
    op.drop_index("ix_measurement_failed", "measurement")
    op.drop_index("ix_sample_finished_at", "sample")
    op.drop_index("ix_attempt_finished_at", "attempt")
    op.drop_index("ix_attempt_infrastructure", "attempt")
    op.drop_index("ix_attempt_live", "attempt")
    op.drop_index("ix_measurement_queue", "measurement")
    op.create_index(
        "ix_measurement_queued",
        "measurement",
        ["hardware_class", "priority", "queued_at"],
        sqlite_where=sa.text(QUEUED),
        postgresql_where=sa.text(QUEUED),
    )
    for table, columns in _new_columns().items():
        for column in columns:
            # By its own statement also on SQLite: copying a table would lose its triggers.
            op.drop_column(table, column.name)
    op.drop_table("shape")
