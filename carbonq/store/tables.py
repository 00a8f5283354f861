"""The schema, as SQLAlchemy Core tables. A new column needs a line here and a migration.

Times named ``machine_*``, ``lease_until``, ``dispatched_at``, ``last_*_at`` and ``recorded_at`` are machine times; all
others are grid times. Names of states are those of ``carbonq.model``.
"""

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
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    text,
)

from carbonq.store.dialect import BigKey, ExactDecimal, Json, UtcDateTime

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

# --- installation -----------------------------------------------------------------------------------------------

clocks = Table(
    "clocks",
    metadata,
    Column("clock_id", Integer, primary_key=True),  # always 1
    Column("kind", Text, nullable=False),
    Column("factor", Float, nullable=False),
    Column("machine_epoch", UtcDateTime, nullable=False),
    Column("grid_epoch", UtcDateTime, nullable=False),
)

api_keys = Table(
    "api_keys",
    metadata,
    Column("key_id", Text, primary_key=True),
    Column("tenant", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("key_hash", Text, nullable=False, unique=True),  # hex SHA-256 of the whole key
    Column("is_local", Boolean, nullable=False),  # made by the embedded stack for this machine only
    Column("created_at", UtcDateTime, nullable=False),
    Column("expires_at", UtcDateTime),
    Column("revoked_at", UtcDateTime),
)

regions = Table(
    "regions",
    metadata,
    Column("region", Text, primary_key=True),
    Column("zone", Text, nullable=False),
    Column("slots", Integer, nullable=False),
    Column("realtime_slots", Integer, nullable=False),
    Column("pue", ExactDecimal, nullable=False),
    Column("pue_source", Text, nullable=False),
    Column("hardware", Text, nullable=False),
    Column("latency_ms", Float, nullable=False),
    Column("ownership", Text, nullable=False),
    Column("models", Json),
    Column("embodied_kg", ExactDecimal),
    Column("life_h", ExactDecimal),
    Column("state", Text, nullable=False),
    Column("is_configured", Boolean, nullable=False),  # False once it left the settings; its history stays
    Column("updated_at", UtcDateTime, nullable=False),
)

workers = Table(
    "workers",
    metadata,
    Column("worker_id", Text, primary_key=True),
    Column("region", Text, nullable=False),
    Column("host", Text, nullable=False),
    Column("pid", Integer, nullable=False),
    Column("slots", Integer, nullable=False),
    Column("started_at", UtcDateTime, nullable=False),
    Column("last_seen_at", UtcDateTime, nullable=False),
    Column("last_claimed_at", UtcDateTime),
    Column("stopped_at", UtcDateTime),
    Column("software_version", Text, nullable=False),
    Column("hardware", Text, nullable=False),
    Index("ix_workers_region_last_seen_at", "region", "last_seen_at"),
)

throughputs = Table(
    "throughputs",
    metadata,
    Column("model", Text, primary_key=True),
    Column("hardware", Text, primary_key=True),
    Column("tokens_per_s", Float, nullable=False),
    Column("uj_per_token", BigInteger, nullable=False),
    Column("samples", BigInteger, nullable=False),
    Column("updated_at", UtcDateTime, nullable=False),
)

# --- work -------------------------------------------------------------------------------------------------------

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
    UniqueConstraint("tenant", "idempotency_key"),
    Index("ix_jobs_tenant_created_at_job_id", "tenant", "created_at", "job_id"),
    Index(
        "ix_jobs_open",
        "state",
        "created_at",
        sqlite_where=text("finished_at IS NULL"),
        postgresql_where=text("finished_at IS NULL"),
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
    Index("ix_events_job_id", "job_id", "event_id"),
    Index("ix_events_tenant", "tenant", "event_id"),
)

# --- planning ---------------------------------------------------------------------------------------------------

plans = Table(
    "plans",
    metadata,
    Column("plan_id", Text, primary_key=True),
    Column("created_at", UtcDateTime, nullable=False),
    Column("recorded_at", UtcDateTime, nullable=False),
    Column("chunks", Integer, nullable=False),
    Column("moved", Integer, nullable=False),
    Column("late", Integer, nullable=False),
    Column("objective_g", Float),
    Column("lower_bound_g", Float),
    Column("is_overlay", Boolean, nullable=False),  # made without a carbon signal: earliest deadline, nearest region
    Column("duration_s", Float, nullable=False),
    Column("note", Text),
    Column("inputs", Text),  # what it was made from; the planner rests until that changes or a chunk is waiting
    Index("ix_plans_recorded_at", "recorded_at"),
)

placements = Table(
    "placements",
    metadata,
    Column("placement_id", Text, primary_key=True),
    Column("chunk_id", Text, nullable=False),
    Column("plan_id", Text, nullable=False),
    Column("region", Text, nullable=False),
    Column("window_at", UtcDateTime, nullable=False),
    Column("g_per_kwh", ExactDecimal),  # the forecast it was based on; NULL: none was to be had
    Column("issued_at", UtcDateTime),
    Column("reason", Text, nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    Index("ix_placements_chunk_id", "chunk_id"),
)

baseline_slots = Table(  # the virtual first-come-first-served queue of each home region
    "baseline_slots",
    metadata,
    Column("region", Text, primary_key=True),
    Column("slot", Integer, primary_key=True),
    Column("free_at", UtcDateTime, nullable=False),
)

forecasts = Table(  # as issued, one row an issue; ``values`` is a list of decimals as text, null where missing
    "forecasts",
    metadata,
    Column("forecast_id", BigKey, primary_key=True, autoincrement=True),
    Column("zone", Text, nullable=False),
    Column("signal", Text, nullable=False),
    Column("source", Text, nullable=False),
    Column("model", Text),
    Column("gas", Text, nullable=False),
    Column("method", Text),
    Column("issued_at", UtcDateTime, nullable=False),
    Column("retrieved_at", UtcDateTime, nullable=False),
    Column("start_at", UtcDateTime, nullable=False),
    Column("step_s", Integer, nullable=False),
    Column("values", Json, nullable=False),
    Column("raw_unit", Text, nullable=False),
    Column("raw_per_g_per_kwh", ExactDecimal, nullable=False),
    Column("is_estimated", Boolean, nullable=False),
    Column("may_settle", Boolean, nullable=False),
    UniqueConstraint("zone", "signal", "source", "issued_at"),
)

observations = Table(
    "observations",
    metadata,
    Column("zone", Text, primary_key=True),
    Column("signal", Text, primary_key=True),
    Column("source", Text, primary_key=True),
    Column("window_at", UtcDateTime, primary_key=True),
    Column("revision", Integer, primary_key=True),
    Column("model", Text),
    Column("gas", Text, nullable=False),
    Column("method", Text),
    Column("step_s", Integer, nullable=False),
    Column("retrieved_at", UtcDateTime, nullable=False),
    Column("g_per_kwh", ExactDecimal, nullable=False),
    Column("raw", ExactDecimal, nullable=False),
    Column("raw_unit", Text, nullable=False),
    Column("is_estimated", Boolean, nullable=False),
    Column("may_settle", Boolean, nullable=False),
)

# --- ledger (append-only: triggers refuse UPDATE and DELETE on the four tables below) ---------------------------

rates = Table(
    "rates",
    metadata,
    Column("rate_id", Text, primary_key=True),  # a digest of the columns below: the same fact has the same id
    Column("signal", Text, nullable=False),
    Column("zone", Text, nullable=False),
    Column("source", Text, nullable=False),
    Column("model", Text),
    Column("gas", Text, nullable=False),
    Column("method", Text),
    Column("window_at", UtcDateTime, nullable=False),
    Column("step_s", Integer, nullable=False),
    Column("issued_at", UtcDateTime),
    Column("retrieved_at", UtcDateTime, nullable=False),
    Column("g_per_kwh", ExactDecimal, nullable=False),
    Column("raw", ExactDecimal, nullable=False),
    Column("raw_unit", Text, nullable=False),
    Column("is_estimated", Boolean, nullable=False),
    Column("kind", Text, nullable=False),
    Column("may_settle", Boolean, nullable=False),
)

facts = Table(  # what was stated of a region when the energy was used
    "facts",
    metadata,
    Column("fact_id", Text, primary_key=True),  # a digest of the columns below
    Column("region", Text, nullable=False),
    Column("pue", ExactDecimal, nullable=False),
    Column("pue_source", Text, nullable=False),
    Column("hardware", Text, nullable=False),
    Column("ownership", Text, nullable=False),
    Column("embodied_kg", ExactDecimal),
    Column("life_h", ExactDecimal),
)

engine_batches = Table(  # one row for each part (window) of an engine batch, and for each idle window of a worker
    "engine_batches",
    metadata,
    Column("engine_batch_id", Text, primary_key=True),
    Column("part", Integer, primary_key=True),  # 1-based
    Column("parts", Integer, nullable=False),
    Column("items", Integer, nullable=False),
    Column("weight", BigInteger, nullable=False),  # share_den: the sum of the items' token weights
    Column("class", Text, nullable=False),
    Column("worker_id", Text, nullable=False),
    Column("fact_id", Text, ForeignKey("facts.fact_id"), nullable=False),
    Column("region", Text, nullable=False),
    Column("device_ids", Json, nullable=False),
    Column("model", Text),
    Column("engine", Text),
    Column("engine_version", Text),
    Column("precision", Text),
    Column("software_version", Text, nullable=False),
    Column("clock", Text, nullable=False),
    Column("window_at", UtcDateTime, nullable=False),
    Column("started_at", UtcDateTime, nullable=False),
    Column("ended_at", UtcDateTime, nullable=False),
    Column("duration_s", ExactDecimal, nullable=False),  # machine seconds, microsecond precision
    Column("gpu_uj", BigInteger),
    Column("cpu_uj", BigInteger),
    Column("dram_uj", BigInteger),
    Column("energy_uj", BigInteger),  # NULL where no meter covered anything
    Column("gpu_meter", Text, nullable=False),
    Column("cpu_meter", Text, nullable=False),
    Column("dram_meter", Text, nullable=False),
    Column("quality", Text, nullable=False),
    Column("uncertainty_pct", Float),
)

entries = Table(  # narrow: what engine_batches, rates, facts, chunks and placements say is joined at export
    "entries",
    metadata,
    Column("entry_id", Text, primary_key=True),  # "<engine_batch_id>.<part>.<position>"
    Column("revision", Integer, primary_key=True),  # 1, 2, ...
    Column("supersedes", Text, unique=True),  # "<entry_id>#<revision - 1>"; NULL for the first
    Column("reason", Text, nullable=False),
    Column("restatement_id", Text),
    Column("recorded_at", UtcDateTime, nullable=False),
    Column("recorded_by", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("outcome", Text),
    Column("schema", Integer, nullable=False),
    Column("method", Text, nullable=False),
    Column("tenant", Text),
    Column("api_key_id", Text),
    Column("product_line", Text),
    Column("workload", Text),
    Column("job_id", Text),
    Column("custom_id", Text),
    Column("item", Integer),
    Column("chunk_id", Text),
    Column("attempt", Integer),
    Column("class", Text),
    Column("requested_model", Text),
    Column("engine_batch_id", Text, nullable=False),
    Column("part", Integer, nullable=False),
    Column("window_at", UtcDateTime, nullable=False),
    Column("share_num", BigInteger, nullable=False),
    Column("share_den", BigInteger, nullable=False),
    Column("prompt_tokens", Integer, nullable=False),
    Column("cached_tokens", Integer, nullable=False),
    Column("completion_tokens", Integer, nullable=False),
    Column("w_prompt", Integer, nullable=False),
    Column("w_cached", Integer, nullable=False),
    Column("w_completion", Integer, nullable=False),
    Column("gpu_uj", BigInteger),
    Column("cpu_uj", BigInteger),
    Column("dram_uj", BigInteger),
    Column("energy_uj", BigInteger),  # NULL where no meter covered anything
    Column("moer_rate_id", Text, ForeignKey("rates.rate_id")),
    Column("moer_status", Text, nullable=False),
    Column("emission_g", ExactDecimal),
    Column("aer_rate_id", Text, ForeignKey("rates.rate_id")),
    Column("aer_status", Text, nullable=False),
    Column("inventory_g", ExactDecimal),
    Column("embodied_g", ExactDecimal),
    Column("transfer_bytes", BigInteger),
    Column("transfer_kwh_per_gb", ExactDecimal),
    Column("transfer_g_per_kwh", ExactDecimal),
    Column("transfer_g", ExactDecimal),
    Column("placement_id", Text),
    Column("baseline_region", Text),
    Column("baseline_window_at", UtcDateTime),
    Column("baseline_fact_id", Text, ForeignKey("facts.fact_id")),
    Column("baseline_rate_id", Text, ForeignKey("rates.rate_id")),
    Column("baseline_moer_status", Text),
    Column("baseline_g", ExactDecimal),
    Column("saved_g", ExactDecimal),
    Column("cost", ExactDecimal),
    Index("ix_entries_job_id", "job_id"),
    Index("ix_entries_tenant_recorded_at", "tenant", "recorded_at"),
    Index("ix_entries_engine_batch_id", "engine_batch_id", "part"),
    Index("ix_entries_window_at", "window_at"),
)

unsettled = Table(  # which rates the entries of a part still wait for; a work list, rows go when they are settled
    "unsettled",
    metadata,
    Column("signal", Text, primary_key=True),
    Column("zone", Text, primary_key=True),
    Column("window_at", UtcDateTime, primary_key=True),
    Column("engine_batch_id", Text, primary_key=True),
    Column("part", Integer, primary_key=True),
    Index("ix_unsettled_engine_batch_id", "engine_batch_id", "part"),
)

#: Tables that only ever grow; a trigger on each refuses UPDATE and DELETE.
APPEND_ONLY = (rates, facts, engine_batches, entries)
