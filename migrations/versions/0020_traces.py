"""Where a trace began: the context of each submit, for the runs that are linked to it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"


def upgrade() -> None:
    for table in ("jobs", "batches"):
        op.add_column(table, sa.Column("trace_context", sa.Text(), nullable=True))


def downgrade() -> None:
    for table in ("jobs", "batches"):
        op.drop_column(table, "trace_context")
