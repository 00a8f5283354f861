"""Tables of work: jobs, items, chunks, attempts, segments of results, events."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    Table,
    Text,
    UniqueConstraint,
    text,
)

from carbonq.store.dialect import BigKey, ExactDecimal, Json, UtcDateTime
from carbonq.store.tables.metadata import metadata

jobs = Table(
    "jobs",
    metadata,
    Column("job_id", Text, primary_key=True),
    Column("tenant", Text, nullable=False),
    Column("api_key_id", Text),
    Column("source", Text, nullable=False),  # jobs | batches
    Column("endpoint", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("requested_model", Text, nullable=False),
    Column("product_line", Text),
    Column("workload", Text),
    Column("home_region", Text, nullable=False),
    Column("regions", Json),
    Column("deadline_at", UtcDateTime, nullable=False),
    Column("late_policy", Text, nullable=False),
    Column("max_carbon_g", ExactDecimal),
    Column("state", Text, nullable=False),
    Column("is_cancel_requested", Boolean, nullable=False),
    Column("is_chunked", Boolean, nullable=False),
    Column("input_blob", Text, nullable=False),
    Column("input_bytes", BigInteger, nullable=False),
    Column("items_total", Integer, nullable=False),
    Column("items_succeeded", Integer, nullable=False),
    Column("items_failed", Integer, nullable=False),
    Column("items_expired", Integer, nullable=False),
    Column("items_cancelled", Integer, nullable=False),
    Column("est_tokens", BigInteger, nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    Column("machine_created_at", UtcDateTime, nullable=False),
    Column("started_at", UtcDateTime),
    Column("finished_at", UtcDateTime),
    Column("output_blob", Text),
    Column("error_blob", Text),
    Column("infeasible", Text),  # the sentence given at submit when the deadline cannot be met
    Column("error", Text),
    Column("idempotency_key", Text),
    Column("body_fingerprint", Text),
    Column("metadata", Json, nullable=False),
    Column("retired_at", UtcDateTime),  # its files and items are out of reach since then (grid time)
    Column("purged_at", UtcDateTime),  # and the last of them is gone
    Column("treatment", Text),  # planned | observed | held_out; NULL: planned, from before it was noted
    Column("batch_id", Text),  # NULL: a job of its own
    Column("progress_at", UtcDateTime),  # machine time: when an event told of its progress last
    Column("trace_context", Text),  # the submit's span, as a traceparent, for runs to be linked to
    Column("may_downgrade", Boolean),  # whether a smaller model may run it; NULL: nobody said
    # Expected emission for each of its tokens, in picograms by book; NULL: no rate known, or no budget to ask for it.
    Column("impact_pg_per_token", BigInteger),
    Column("inventory_pg_per_token", BigInteger),
    UniqueConstraint("tenant", "idempotency_key"),
    Index("ix_jobs_tenant_created_at_job_id", "tenant", "created_at", "job_id"),
    Index(
        "ix_jobs_tenant_open",
        "tenant",
        sqlite_where=text("finished_at IS NULL"),
        postgresql_where=text("finished_at IS NULL"),
    ),
    Index(
        "ix_jobs_open",
        "state",
        "created_at",
        sqlite_where=text("finished_at IS NULL"),
        postgresql_where=text("finished_at IS NULL"),
    ),
    Index(
        "ix_jobs_batch_id",
        "batch_id",
        sqlite_where=text("batch_id IS NOT NULL"),
        postgresql_where=text("batch_id IS NOT NULL"),
    ),
    Index(
        "ix_jobs_kept",
        "finished_at",
        sqlite_where=text("finished_at IS NOT NULL AND purged_at IS NULL"),
        postgresql_where=text("finished_at IS NOT NULL AND purged_at IS NULL"),
    ),
)

chunks = Table(
    "chunks",
    metadata,
    Column("chunk_id", Text, primary_key=True),
    Column("tenant", Text),  # NULL when tenants share chunks
    Column("model", Text, nullable=False),
    Column("endpoint", Text, nullable=False),
    Column("regions", Json),
    Column("release_at", UtcDateTime, nullable=False),
    Column("deadline_at", UtcDateTime, nullable=False),
    Column("items_count", Integer, nullable=False),
    Column("est_tokens", BigInteger, nullable=False),
    Column("est_duration_s", Float, nullable=False),
    Column("est_energy_uj", BigInteger, nullable=False),
    Column("state", Text, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("token", BigInteger, nullable=False),  # the fencing token: grows with every claim and every reap
    Column("lease_until", UtcDateTime),
    Column("worker_id", Text),
    Column("region", Text),
    Column("window_at", UtcDateTime),
    Column("placement_id", Text),
    Column("latest_start_at", UtcDateTime),
    Column("dispatched_at", UtcDateTime),
    Column("not_before", UtcDateTime),  # machine time: backoff after a failed attempt
    Column("baseline_region", Text, nullable=False),
    Column("baseline_window_at", UtcDateTime, nullable=False),
    Column("parent_chunk_id", Text),
    Column("error", Text),
    Column("created_at", UtcDateTime, nullable=False),
    Column("finished_at", UtcDateTime),
    Column("treatment", Text),  # that of its jobs
    Column("ticket_at", UtcDateTime),  # machine time: when its ticket went out first; ``dispatched_at``: last
    Column("tickets_sent", Integer),
    Column("downgraded", Text),  # budget | policy: why a smaller model runs it than its jobs asked for; NULL: none does
    Column("may_downgrade", Boolean),  # that of its jobs
    Column("for_tenant", Text),  # whose items it holds, with the next two; NULL: of several, or not noted
    Column("product_line", Text),
    Column("workload", Text),
    Column("longest_item", Integer),  # tokens
    Column("impact_pg_per_token", BigInteger),  # as in jobs; by the planned cell once it has a place
    Column("inventory_pg_per_token", BigInteger),
    Column("held_by", Text),  # the budget that holds it back
    Column("held_until", UtcDateTime),  # grid time: when that budget's next period begins; NULL: it has none
    CheckConstraint("(state = 'running') = (lease_until IS NOT NULL)", name="running_has_lease"),
    CheckConstraint("(state = 'done') = (finished_at IS NOT NULL)", name="done_is_finished"),
    Index(
        "ix_chunks_open",
        "state",
        "window_at",
        sqlite_where=text("state <> 'done'"),
        postgresql_where=text("state <> 'done'"),
    ),
    Index(
        "ix_chunks_region_state",
        "region",
        "state",
        sqlite_where=text("state <> 'done'"),
        postgresql_where=text("state <> 'done'"),
    ),
    Index(
        "ix_chunks_line",
        "for_tenant",
        "product_line",
        "workload",
        sqlite_where=text("state <> 'done'"),
        postgresql_where=text("state <> 'done'"),
    ),
    Index(
        "ix_chunks_held_by",
        "held_by",
        sqlite_where=text("held_by IS NOT NULL"),
        postgresql_where=text("held_by IS NOT NULL"),
    ),
    Index(
        "ix_chunks_downgraded",
        "state",
        sqlite_where=text("downgraded IS NOT NULL"),
        postgresql_where=text("downgraded IS NOT NULL"),
    ),
    Index(
        "ix_chunks_done",
        "finished_at",
        sqlite_where=text("state = 'done'"),
        postgresql_where=text("state = 'done'"),
    ),
)

items = Table(
    "items",
    metadata,
    Column("item_id", BigKey, primary_key=True, autoincrement=True),
    Column("job_id", Text, ForeignKey("jobs.job_id"), nullable=False),
    Column("idx", Integer, nullable=False),  # 0-based line number among the job's items
    Column("custom_id", Text, nullable=False),
    Column("line_offset", BigInteger, nullable=False),
    Column("line_bytes", Integer, nullable=False),
    Column("est_tokens", Integer, nullable=False),
    Column("state", Text, nullable=False),
    Column("chunk_id", Text),
    Column("error_code", Text),
    Column("finished_at", UtcDateTime),
    UniqueConstraint("job_id", "custom_id"),
    UniqueConstraint("job_id", "idx"),
    Index("ix_items_chunk_id", "chunk_id"),
)

attempts = Table(
    "attempts",
    metadata,
    Column("chunk_id", Text, primary_key=True),
    Column("token", BigInteger, primary_key=True),
    Column("attempt", Integer, nullable=False),
    Column("worker_id", Text, nullable=False),
    Column("region", Text, nullable=False),
    Column("started_at", UtcDateTime, nullable=False),
    Column("machine_started_at", UtcDateTime, nullable=False),
    Column("ended_at", UtcDateTime),
    Column("outcome", Text),
    Column("error", Text),
    Column("pending", Json),  # metered parts not booked yet, as of the last renewal; the reaper books them as wasted
    Index("ix_attempts_worker_id", "worker_id"),
)

segments = Table(
    "segments",
    metadata,
    Column("segment_id", BigKey, primary_key=True, autoincrement=True),
    Column("job_id", Text, ForeignKey("jobs.job_id"), nullable=False),
    Column("chunk_id", Text, nullable=False),
    Column("kind", Text, nullable=False),  # output | error
    Column("blob", Text, nullable=False, unique=True),
    Column("bytes", BigInteger, nullable=False),
    Column("items", Integer, nullable=False),
    Index("ix_segments_job_id", "job_id"),
)

events = Table(
    "events",
    metadata,
    Column("event_id", BigKey, primary_key=True, autoincrement=True),
    Column("recorded_at", UtcDateTime, nullable=False),
    Column("at", UtcDateTime, nullable=False),
    Column("tenant", Text),
    Column("job_id", Text),
    Column("type", Text, nullable=False),
    Column("data", Json, nullable=False),
    Column("batch_id", Text),  # the batch of its job, or the one it is about
    Index(
        "ix_events_batch_id",
        "batch_id",
        "event_id",
        sqlite_where=text("batch_id IS NOT NULL"),
        postgresql_where=text("batch_id IS NOT NULL"),
    ),
    Index("ix_events_job_id", "job_id", "event_id"),
    Index("ix_events_tenant", "tenant", "event_id"),
)
