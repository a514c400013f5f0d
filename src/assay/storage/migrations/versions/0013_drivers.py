"""A search says who drives it, and which process of the service holds it.

Searches of before are driven by their clients.
"""

import sqlalchemy as sa
from alembic import op

from assay.storage.types import UtcDateTime

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns, and an index for what the service looks for."""
    driver = sa.Column("driver", sa.String(16), nullable=False, server_default="client")
    op.add_column("search", driver)
    op.add_column("search", sa.Column("holder", sa.String(64)))
    op.add_column("search", sa.Column("lease_expires_at", UtcDateTime))
    op.create_index("ix_search_driver", "search", ["driver", "state"])


def downgrade() -> None:
    """Drop them again; what the service drove waits for `assay search resume`."""
    op.drop_index("ix_search_driver", "search")
    for name in ("lease_expires_at", "holder", "driver"):
        op.drop_column("search", name)
