"""An idea has a base of its own; that of a batch is what its ideas get unless they name one.

Ideas of before get the base of their batch.
"""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

_COLUMNS = ("base", "base_id")


def upgrade() -> None:
    """Move the bases of batches to their ideas."""
    for name in _COLUMNS:
        op.add_column("idea", sa.Column(name, sa.String(64)))
    for name in _COLUMNS:
        op.execute(
            f"UPDATE idea SET {name} = (SELECT {name} FROM batch WHERE batch.id = idea.batch_id)"
        )
    op.create_index("ix_idea_base_id", "idea", ["base_id"])
    op.drop_index("ix_batch_base_id", "batch")
    for name in _COLUMNS:
        op.drop_column("batch", name)


def downgrade() -> None:
    """Give each batch the base of its first idea that has one."""
    for name in _COLUMNS:
        op.add_column("batch", sa.Column(name, sa.String(64)))
    for name in _COLUMNS:
        op.execute(
            f"UPDATE batch SET {name} = (SELECT {name} FROM idea WHERE idea.batch_id = batch.id "
            "AND idea.base_id IS NOT NULL ORDER BY idea.position LIMIT 1)"
        )
    op.create_index("ix_batch_base_id", "batch", ["base_id"])
    op.drop_index("ix_idea_base_id", "idea")
    for name in _COLUMNS:
        op.drop_column("idea", name)
