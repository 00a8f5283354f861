"""Since when a chunk's ticket is out and how often it was sent: what finds a worker that lives and takes nothing."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from carbonq.store.dialect import UtcDateTime

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    op.add_column("chunks", sa.Column("ticket_at", UtcDateTime(), nullable=True))
    op.add_column("chunks", sa.Column("tickets_sent", sa.Integer(), nullable=True))


def downgrade() -> None:
    op.drop_column("chunks", "tickets_sent")
    op.drop_column("chunks", "ticket_at")
