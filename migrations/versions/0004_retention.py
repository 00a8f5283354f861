"""When a job's items and files were put out of reach, and when the last of them was gone."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from carbonq.store.dialect import UtcDateTime

revision = "0004"
down_revision = "0003"

_KEPT = sa.text("finished_at IS NOT NULL AND purged_at IS NULL")
_DONE = sa.text("state = 'done'")


def upgrade() -> None:
    op.add_column("jobs", sa.Column("retired_at", UtcDateTime))
    op.add_column("jobs", sa.Column("purged_at", UtcDateTime))
    op.create_index("ix_jobs_kept", "jobs", ["finished_at"], sqlite_where=_KEPT, postgresql_where=_KEPT)
    op.create_index("ix_chunks_done", "chunks", ["finished_at"], sqlite_where=_DONE, postgresql_where=_DONE)


def downgrade() -> None:
    op.drop_index("ix_chunks_done", "chunks")
    op.drop_index("ix_jobs_kept", "jobs")
    op.drop_column("jobs", "purged_at")
    op.drop_column("jobs", "retired_at")
