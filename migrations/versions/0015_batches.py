"""Files and batches of the OpenAI edge, and which batch a job belongs to."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from carbonq.store.dialect import Json, UtcDateTime

revision = "0015"
down_revision = "0014"

_OPEN = sa.text("finished_at IS NULL")
_DELETED = sa.text("deleted_at IS NOT NULL")
_EXPIRES = sa.text("expires_at IS NOT NULL AND deleted_at IS NULL")
_IN_BATCH = sa.text("batch_id IS NOT NULL")


def _index(name: str, table: str, columns: list[str], where: sa.TextClause | None = None) -> None:
    op.create_index(name, table, columns, sqlite_where=where, postgresql_where=where)


def upgrade() -> None:
    op.create_table(
        "files",
        sa.Column("file_id", sa.Text(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("api_key_id", sa.Text(), nullable=True),
        sa.Column("purpose", sa.Text(), nullable=False),
        sa.Column("filename", sa.Text(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("lines", sa.Integer(), nullable=False),
        sa.Column("blob", sa.Text(), nullable=False),
        sa.Column("carbon", Json(), nullable=True),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("expires_at", UtcDateTime(), nullable=True),
        sa.Column("deleted_at", UtcDateTime(), nullable=True),
        sa.PrimaryKeyConstraint("file_id", name=op.f("pk_files")),
    )
    _index("ix_files_tenant_created_at_file_id", "files", ["tenant", "created_at", "file_id"])
    _index("ix_files_expires_at", "files", ["expires_at"], _EXPIRES)
    _index("ix_files_deleted_at", "files", ["deleted_at"], _DELETED)
    op.create_table(
        "batches",
        sa.Column("batch_id", sa.Text(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("api_key_id", sa.Text(), nullable=True),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("endpoint", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=True),
        sa.Column("input_file_id", sa.Text(), nullable=False),
        sa.Column("completion_window", sa.Text(), nullable=False),
        sa.Column("metadata", Json(), nullable=True),
        sa.Column("terms", Json(), nullable=False),
        sa.Column("output_expires_after_s", sa.Integer(), nullable=True),
        sa.Column("errors", Json(), nullable=True),
        sa.Column("items_total", sa.Integer(), nullable=True),
        sa.Column("output_file_id", sa.Text(), nullable=True),
        sa.Column("error_file_id", sa.Text(), nullable=True),
        sa.Column("usage", Json(), nullable=True),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("machine_created_at", UtcDateTime(), nullable=False),
        sa.Column("expires_at", UtcDateTime(), nullable=False),
        sa.Column("in_progress_at", UtcDateTime(), nullable=True),
        sa.Column("finalizing_at", UtcDateTime(), nullable=True),
        sa.Column("cancelling_at", UtcDateTime(), nullable=True),
        sa.Column("finished_at", UtcDateTime(), nullable=True),
        sa.Column("idempotency_key", sa.Text(), nullable=True),
        sa.Column("fingerprint", sa.Text(), nullable=False),
        sa.Column("retry_count", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("batch_id", name=op.f("pk_batches")),
        sa.UniqueConstraint("tenant", "idempotency_key", name=op.f("uq_batches_tenant_idempotency_key")),
    )
    _index("ix_batches_tenant_created_at_batch_id", "batches", ["tenant", "created_at", "batch_id"])
    _index("ix_batches_fingerprint", "batches", ["fingerprint", "machine_created_at"])
    _index("ix_batches_input_file_id", "batches", ["input_file_id"])
    _index("ix_batches_open", "batches", ["state", "created_at"], _OPEN)
    op.add_column("jobs", sa.Column("batch_id", sa.Text(), nullable=True))
    _index("ix_jobs_batch_id", "jobs", ["batch_id"], _IN_BATCH)


def downgrade() -> None:
    op.drop_index("ix_jobs_batch_id", "jobs")
    op.drop_column("jobs", "batch_id")
    op.drop_table("batches")
    op.drop_table("files")
