"""An index of what waits and runs, so that counting it does not read all measurements."""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

_LIVE = sa.text("state IN ('queued', 'running')")


def upgrade() -> None:
    """Add the index."""
    op.create_index(
        "ix_measurement_live",
        "measurement",
        ["state"],
        sqlite_where=_LIVE,
        postgresql_where=_LIVE,
    )


def downgrade() -> None:
    """Drop it."""
    op.drop_index("ix_measurement_live", "measurement")
