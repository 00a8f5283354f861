"""Chunks that run on a smaller model than was asked for."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("may_downgrade", sa.Boolean(), nullable=True))
    op.add_column("chunks", sa.Column("downgraded", sa.Text(), nullable=True))
    op.add_column("chunks", sa.Column("may_downgrade", sa.Boolean(), nullable=True))
    op.add_column("engine_batches", sa.Column("downgraded", sa.Text(), nullable=True))
    is_downgraded = sa.text("downgraded IS NOT NULL")
    op.create_index(
        "ix_chunks_downgraded",
        "chunks",
        ["state"],
        sqlite_where=is_downgraded,
        postgresql_where=is_downgraded,
    )
    op.create_index(
        "ix_engine_batches_downgraded",
        "engine_batches",
        ["window_at"],
        sqlite_where=is_downgraded,
        postgresql_where=is_downgraded,
    )


def downgrade() -> None:
    op.drop_index("ix_engine_batches_downgraded", "engine_batches")
    op.drop_index("ix_chunks_downgraded", "chunks")
    op.drop_column("engine_batches", "downgraded")
    op.drop_column("chunks", "may_downgrade")
    op.drop_column("chunks", "downgraded")
    op.drop_column("jobs", "may_downgrade")
