"""Tables of the OpenAI edge: files, and batches, each of which is one or more jobs."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Index, Integer, Table, Text, UniqueConstraint, text

from carbonq.store.dialect import Json, UtcDateTime
from carbonq.store.tables.metadata import metadata

files = Table(
    "files",
    metadata,
    Column("file_id", Text, primary_key=True),
    Column("tenant", Text, nullable=False),
    Column("api_key_id", Text),
    Column("purpose", Text, nullable=False),  # batch | batch_output
    Column("filename", Text, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("lines", Integer, nullable=False),
    Column("blob", Text, nullable=False),
    Column("carbon", Json),  # terms it was uploaded with, as the client wrote them
    Column("created_at", UtcDateTime, nullable=False),
    Column("expires_at", UtcDateTime),
    Column("deleted_at", UtcDateTime),  # out of everybody's reach; the row goes when its bytes have gone
    Index("ix_files_tenant_created_at_file_id", "tenant", "created_at", "file_id"),
    Index(
        "ix_files_expires_at",
        "expires_at",
        sqlite_where=text("expires_at IS NOT NULL AND deleted_at IS NULL"),
        postgresql_where=text("expires_at IS NOT NULL AND deleted_at IS NULL"),
    ),
    Index(
        "ix_files_deleted_at",
        "deleted_at",
        sqlite_where=text("deleted_at IS NOT NULL"),
        postgresql_where=text("deleted_at IS NOT NULL"),
    ),
)

batches = Table(
    "batches",
    metadata,
    Column("batch_id", Text, primary_key=True),
    Column("tenant", Text, nullable=False),
    Column("api_key_id", Text),
    Column("state", Text, nullable=False),
    Column("endpoint", Text, nullable=False),
    Column("model", Text),  # NULL until its input was read
    Column("input_file_id", Text, nullable=False),
    Column("completion_window", Text, nullable=False),
    Column("metadata", Json),
    Column("terms", Json, nullable=False),  # as ``terms.dump`` writes them; times absolute
    Column("output_expires_after_s", Integer),
    Column("errors", Json),  # [{code, line, message, param}]
    Column("items_total", Integer),  # NULL until its input was read
    Column("output_file_id", Text),  # fixed before the file is assembled, so that a second try makes the same one
    Column("error_file_id", Text),
    Column("usage", Json),  # tokens by kind, fixed when it became final
    Column("created_at", UtcDateTime, nullable=False),
    Column("machine_created_at", UtcDateTime, nullable=False),
    Column("expires_at", UtcDateTime, nullable=False),
    Column("in_progress_at", UtcDateTime),
    Column("finalizing_at", UtcDateTime),
    Column("cancelling_at", UtcDateTime),
    Column("finished_at", UtcDateTime),  # completed, failed, expired or cancelled, as ``state`` says
    Column("idempotency_key", Text),
    Column("fingerprint", Text, nullable=False),  # of the request's body and key
    Column("retry_count", Integer, nullable=False),  # which try of the client's made it; 0: the first
    Column("trace_context", Text),  # the create's span, as a traceparent, for what follows to be linked to
    UniqueConstraint("tenant", "idempotency_key"),
    Index("ix_batches_tenant_created_at_batch_id", "tenant", "created_at", "batch_id"),
    Index("ix_batches_fingerprint", "fingerprint", "machine_created_at"),
    Index("ix_batches_input_file_id", "input_file_id"),
    Index(
        "ix_batches_open",
        "state",
        "created_at",
        sqlite_where=text("finished_at IS NULL"),
        postgresql_where=text("finished_at IS NULL"),
    ),
)
