"""Results are compared under equal conditions: they belong to what makes a measurement the same.

Measurements of before have none recorded (''): they stay comparable with one another, within
their hardware class, and what was queued is measured by any worker of that class.
"""

import sqlalchemy as sa
from alembic import op

from assay.storage.types import Document, UtcDateTime

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

_IDENTITY = [
    "codebase_id",
    "environment_id",
    "profile",
    "seed",
    "hardware_class",
    "replicate",
    "kind",
]
_SHAPE = [
    "hardware_class",
    "cpus",
    "gpus",
    "memory_bytes",
    "needs_isolation",
    "budget_seconds",
    "bound_seconds",
]


def upgrade() -> None:
    """Add tables and columns, and put the conditions into the identities."""
    op.create_table(
        "condition_set",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("hardware_class", sa.String(64), nullable=False),
        sa.Column("facts", Document, nullable=False),
        sa.Column("created_at", UtcDateTime, nullable=False),
    )
    op.create_table(
        "equivalence",
        sa.Column(
            "environment_id", sa.String(64), sa.ForeignKey("environment.id"), primary_key=True
        ),
        sa.Column("profile", sa.String(64), primary_key=True),
        sa.Column(
            "conditions_id", sa.String(64), sa.ForeignKey("condition_set.id"), primary_key=True
        ),
        sa.Column("equals_id", sa.String(64), sa.ForeignKey("condition_set.id"), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("evidence", Document, nullable=False),
        sa.Column("declared_by", sa.String(64)),
        sa.Column("created_at", UtcDateTime, nullable=False),
        sa.Column("decided_at", UtcDateTime),
    )
    op.create_index("ix_equivalence_equals_id", "equivalence", ["equals_id"])
    for table in ("batch", "verdict_fit"):
        op.add_column(table, _column("conditions_id"))
    _replace_unique("measurement", "uq_measurement_identity", _IDENTITY, ["conditions_id"])
    names = ["environment_id", "profile", "conditions_id"]
    _replace_unique("shape", "uq_shape", _SHAPE, names)


def downgrade() -> None:
    """Drop them again; of measurements that differ in conditions alone, nothing may be left."""
    _restore_unique("shape", "uq_shape", _SHAPE, ["environment_id", "profile", "conditions_id"])
    _restore_unique("measurement", "uq_measurement_identity", _IDENTITY, ["conditions_id"])
    for table in ("verdict_fit", "batch"):
        op.drop_column(table, "conditions_id")
    op.drop_index("ix_equivalence_equals_id", "equivalence")
    op.drop_table("equivalence")
    op.drop_table("condition_set")


def _column(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.String(64), nullable=False, server_default="")


def _replace_unique(table: str, name: str, old: list[str], new: list[str]) -> None:
    for column in new:
        op.add_column(table, _column(column))
    _change_unique(table, name, [*old, *new])


def _restore_unique(table: str, name: str, old: list[str], new: list[str]) -> None:
    _change_unique(table, name, old)
    for column in new:
        op.drop_column(table, column)


def _change_unique(table: str, name: str, columns: list[str]) -> None:
    """SQLite cannot change a constraint, so the table is copied; that loses its indexes, of which
    it does not tell all, and its triggers."""
    connection = op.get_bind()
    if connection.dialect.name != "sqlite":
        op.drop_constraint(name, table, type_="unique")
        op.create_unique_constraint(name, table, columns)
        return
    lost = connection.execute(
        sa.text(
            "SELECT type, name, sql FROM sqlite_master WHERE tbl_name = :table "
            "AND type IN ('index', 'trigger') AND sql IS NOT NULL"
        ),
        {"table": table},
    ).all()
    for kind, known, _ in lost:
        op.execute(f"DROP {kind.upper()} {known}")
    with op.batch_alter_table(table) as batch:
        batch.drop_constraint(name, type_="unique")
        batch.create_unique_constraint(name, columns)
    for _, _, statement in lost:
        op.execute(sa.text(statement.replace(":", "\\:")))
