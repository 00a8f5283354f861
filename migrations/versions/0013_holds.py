"""What operators paused or drain beside regions: tenants and models, with who, when and why."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from carbonq.store.dialect import UtcDateTime

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    op.create_table(
        "holds",
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("held_at", UtcDateTime(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("held_by", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("kind", "name", name=op.f("pk_holds")),
    )


def downgrade() -> None:
    op.drop_table("holds")
