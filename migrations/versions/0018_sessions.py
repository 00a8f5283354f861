"""Sessions of the dashboard, and one-time links to it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from carbonq.store.dialect import UtcDateTime

revision = "0018"
down_revision = "0017"


def upgrade() -> None:
    op.create_table(
        "sessions",
        sa.Column("token_hash", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("key_hash", sa.Text(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("expires_at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("token_hash", name=op.f("pk_sessions")),
    )


def downgrade() -> None:
    op.drop_table("sessions")
