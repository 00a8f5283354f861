"""Learned token weights, beside what was learned of a model's speed."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from carbonq.store.dialect import Json

revision = "0011"
down_revision = "0008"


def upgrade() -> None:
    op.add_column("throughputs", sa.Column("token_weights", Json(), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("throughputs") as batch:
        batch.drop_column("token_weights")
