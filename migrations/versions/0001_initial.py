"""The first schema."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from carbonq.store.dialect import BigKey, ExactDecimal, Json, UtcDateTime

revision = "0001"
down_revision = None

#: Tables that only ever grow.
APPEND_ONLY = ("rates", "facts", "engine_batches", "entries")


def upgrade() -> None:
    _create()
    for table in APPEND_ONLY:
        _refuse_changes(table)


def downgrade() -> None:
    bind = op.get_bind()
    for table in reversed(sa.inspect(bind).get_table_names()):
        if table != "alembic_version":
            op.execute(f'DROP TABLE "{table}"' + (" CASCADE" if bind.dialect.name == "postgresql" else ""))
    if bind.dialect.name == "postgresql":
        for table in APPEND_ONLY:
            op.execute(f"DROP FUNCTION {table}_is_append_only()")


def _refuse_changes(table: str) -> None:
    if op.get_bind().dialect.name == "sqlite":
        for action in ("UPDATE", "DELETE"):
            op.execute(
                f"CREATE TRIGGER {table}_refuse_{action.lower()} BEFORE {action} ON {table} "
                f"BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END"
            )
        return
    op.execute(
        f"CREATE FUNCTION {table}_is_append_only() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN RAISE EXCEPTION '{table} is append-only'; END $$"
    )
    op.execute(
        f"CREATE TRIGGER {table}_refuse BEFORE UPDATE OR DELETE OR TRUNCATE ON {table} "
        f"FOR EACH STATEMENT EXECUTE FUNCTION {table}_is_append_only()"
    )


def _create() -> None:
    op.create_table(
        "api_keys",
        sa.Column("key_id", sa.Text(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("key_hash", sa.Text(), nullable=False),
        sa.Column("is_local", sa.Boolean(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("expires_at", UtcDateTime(), nullable=True),
        sa.Column("revoked_at", UtcDateTime(), nullable=True),
        sa.PrimaryKeyConstraint("key_id", name=op.f("pk_api_keys")),
        sa.UniqueConstraint("key_hash", name=op.f("uq_api_keys_key_hash")),
    )
    op.create_table(
        "attempts",
        sa.Column("chunk_id", sa.Text(), nullable=False),
        sa.Column("token", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("worker_id", sa.Text(), nullable=False),
        sa.Column("region", sa.Text(), nullable=False),
        sa.Column("started_at", UtcDateTime(), nullable=False),
        sa.Column("machine_started_at", UtcDateTime(), nullable=False),
        sa.Column("ended_at", UtcDateTime(), nullable=True),
        sa.Column("outcome", sa.Text(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("pending", Json(), nullable=True),
        sa.PrimaryKeyConstraint("chunk_id", "token", name=op.f("pk_attempts")),
    )
    op.create_index("ix_attempts_worker_id", "attempts", ["worker_id"], unique=False)
    op.create_table(
        "baseline_slots",
        sa.Column("region", sa.Text(), nullable=False),
        sa.Column("slot", sa.Integer(), nullable=False),
        sa.Column("free_at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("region", "slot", name=op.f("pk_baseline_slots")),
    )
    op.create_table(
        "chunks",
        sa.Column("chunk_id", sa.Text(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=True),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("endpoint", sa.Text(), nullable=False),
        sa.Column("regions", Json(), nullable=True),
        sa.Column("release_at", UtcDateTime(), nullable=False),
        sa.Column("deadline_at", UtcDateTime(), nullable=False),
        sa.Column("items_count", sa.Integer(), nullable=False),
        sa.Column("est_tokens", sa.BigInteger(), nullable=False),
        sa.Column("est_duration_s", sa.Float(), nullable=False),
        sa.Column("est_energy_uj", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("token", sa.BigInteger(), nullable=False),
        sa.Column("lease_until", UtcDateTime(), nullable=True),
        sa.Column("worker_id", sa.Text(), nullable=True),
        sa.Column("region", sa.Text(), nullable=True),
        sa.Column("window_at", UtcDateTime(), nullable=True),
        sa.Column("placement_id", sa.Text(), nullable=True),
        sa.Column("latest_start_at", UtcDateTime(), nullable=True),
        sa.Column("dispatched_at", UtcDateTime(), nullable=True),
        sa.Column("not_before", UtcDateTime(), nullable=True),
        sa.Column("baseline_region", sa.Text(), nullable=False),
        sa.Column("baseline_window_at", UtcDateTime(), nullable=False),
        sa.Column("parent_chunk_id", sa.Text(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("finished_at", UtcDateTime(), nullable=True),
        sa.CheckConstraint("(state = 'done') = (finished_at IS NOT NULL)", name=op.f("ck_chunks_done_is_finished")),
        sa.CheckConstraint("(state = 'running') = (lease_until IS NOT NULL)", name=op.f("ck_chunks_running_has_lease")),
        sa.PrimaryKeyConstraint("chunk_id", name=op.f("pk_chunks")),
    )
    op.create_index(
        "ix_chunks_open",
        "chunks",
        ["state", "window_at"],
        unique=False,
        sqlite_where=sa.text("state <> 'done'"),
        postgresql_where=sa.text("state <> 'done'"),
    )
    op.create_index(
        "ix_chunks_region_state",
        "chunks",
        ["region", "state"],
        unique=False,
        sqlite_where=sa.text("state <> 'done'"),
        postgresql_where=sa.text("state <> 'done'"),
    )
    op.create_table(
        "clocks",
        sa.Column("clock_id", sa.Integer(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("factor", sa.Float(), nullable=False),
        sa.Column("machine_epoch", UtcDateTime(), nullable=False),
        sa.Column("grid_epoch", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("clock_id", name=op.f("pk_clocks")),
    )
    op.create_table(
        "events",
        sa.Column("event_id", BigKey, autoincrement=True, nullable=False),
        sa.Column("recorded_at", UtcDateTime(), nullable=False),
        sa.Column("at", UtcDateTime(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=True),
        sa.Column("job_id", sa.Text(), nullable=True),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("data", Json(), nullable=False),
        sa.PrimaryKeyConstraint("event_id", name=op.f("pk_events")),
    )
    op.create_index("ix_events_job_id", "events", ["job_id", "event_id"], unique=False)
    op.create_index("ix_events_tenant", "events", ["tenant", "event_id"], unique=False)
    op.create_table(
        "facts",
        sa.Column("fact_id", sa.Text(), nullable=False),
        sa.Column("region", sa.Text(), nullable=False),
        sa.Column("pue", ExactDecimal(), nullable=False),
        sa.Column("pue_source", sa.Text(), nullable=False),
        sa.Column("hardware", sa.Text(), nullable=False),
        sa.Column("ownership", sa.Text(), nullable=False),
        sa.Column("embodied_kg", ExactDecimal(), nullable=True),
        sa.Column("life_h", ExactDecimal(), nullable=True),
        sa.PrimaryKeyConstraint("fact_id", name=op.f("pk_facts")),
    )
    op.create_table(
        "forecasts",
        sa.Column("forecast_id", BigKey, autoincrement=True, nullable=False),
        sa.Column("zone", sa.Text(), nullable=False),
        sa.Column("signal", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=True),
        sa.Column("gas", sa.Text(), nullable=False),
        sa.Column("method", sa.Text(), nullable=True),
        sa.Column("issued_at", UtcDateTime(), nullable=False),
        sa.Column("retrieved_at", UtcDateTime(), nullable=False),
        sa.Column("start_at", UtcDateTime(), nullable=False),
        sa.Column("step_s", sa.Integer(), nullable=False),
        sa.Column("values", Json(), nullable=False),
        sa.Column("raw_unit", sa.Text(), nullable=False),
        sa.Column("raw_per_g_per_kwh", ExactDecimal(), nullable=False),
        sa.Column("is_estimated", sa.Boolean(), nullable=False),
        sa.Column("may_settle", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("forecast_id", name=op.f("pk_forecasts")),
        sa.UniqueConstraint(
            "zone", "signal", "source", "issued_at", name=op.f("uq_forecasts_zone_signal_source_issued_at")
        ),
    )
    op.create_table(
        "jobs",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("api_key_id", sa.Text(), nullable=True),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("endpoint", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("requested_model", sa.Text(), nullable=False),
        sa.Column("product_line", sa.Text(), nullable=True),
        sa.Column("workload", sa.Text(), nullable=True),
        sa.Column("home_region", sa.Text(), nullable=False),
        sa.Column("regions", Json(), nullable=True),
        sa.Column("deadline_at", UtcDateTime(), nullable=False),
        sa.Column("late_policy", sa.Text(), nullable=False),
        sa.Column("max_carbon_g", ExactDecimal(), nullable=True),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("is_cancel_requested", sa.Boolean(), nullable=False),
        sa.Column("is_chunked", sa.Boolean(), nullable=False),
        sa.Column("input_blob", sa.Text(), nullable=False),
        sa.Column("input_bytes", sa.BigInteger(), nullable=False),
        sa.Column("items_total", sa.Integer(), nullable=False),
        sa.Column("items_succeeded", sa.Integer(), nullable=False),
        sa.Column("items_failed", sa.Integer(), nullable=False),
        sa.Column("items_expired", sa.Integer(), nullable=False),
        sa.Column("items_cancelled", sa.Integer(), nullable=False),
        sa.Column("est_tokens", sa.BigInteger(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("machine_created_at", UtcDateTime(), nullable=False),
        sa.Column("started_at", UtcDateTime(), nullable=True),
        sa.Column("finished_at", UtcDateTime(), nullable=True),
        sa.Column("output_blob", sa.Text(), nullable=True),
        sa.Column("error_blob", sa.Text(), nullable=True),
        sa.Column("infeasible", sa.Text(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("idempotency_key", sa.Text(), nullable=True),
        sa.Column("body_fingerprint", sa.Text(), nullable=True),
        sa.Column("metadata", Json(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", name=op.f("pk_jobs")),
        sa.UniqueConstraint("tenant", "idempotency_key", name=op.f("uq_jobs_tenant_idempotency_key")),
    )
    op.create_index(
        "ix_jobs_open",
        "jobs",
        ["state", "created_at"],
        unique=False,
        sqlite_where=sa.text("finished_at IS NULL"),
        postgresql_where=sa.text("finished_at IS NULL"),
    )
    op.create_index("ix_jobs_tenant_created_at_job_id", "jobs", ["tenant", "created_at", "job_id"], unique=False)
    op.create_table(
        "observations",
        sa.Column("zone", sa.Text(), nullable=False),
        sa.Column("signal", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("window_at", UtcDateTime(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("model", sa.Text(), nullable=True),
        sa.Column("gas", sa.Text(), nullable=False),
        sa.Column("method", sa.Text(), nullable=True),
        sa.Column("step_s", sa.Integer(), nullable=False),
        sa.Column("retrieved_at", UtcDateTime(), nullable=False),
        sa.Column("g_per_kwh", ExactDecimal(), nullable=False),
        sa.Column("raw", ExactDecimal(), nullable=False),
        sa.Column("raw_unit", sa.Text(), nullable=False),
        sa.Column("is_estimated", sa.Boolean(), nullable=False),
        sa.Column("may_settle", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("zone", "signal", "source", "window_at", "revision", name=op.f("pk_observations")),
    )
    op.create_table(
        "placements",
        sa.Column("placement_id", sa.Text(), nullable=False),
        sa.Column("chunk_id", sa.Text(), nullable=False),
        sa.Column("plan_id", sa.Text(), nullable=False),
        sa.Column("region", sa.Text(), nullable=False),
        sa.Column("window_at", UtcDateTime(), nullable=False),
        sa.Column("g_per_kwh", ExactDecimal(), nullable=True),
        sa.Column("issued_at", UtcDateTime(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("placement_id", name=op.f("pk_placements")),
    )
    op.create_index("ix_placements_chunk_id", "placements", ["chunk_id"], unique=False)
    op.create_table(
        "plans",
        sa.Column("plan_id", sa.Text(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("recorded_at", UtcDateTime(), nullable=False),
        sa.Column("chunks", sa.Integer(), nullable=False),
        sa.Column("moved", sa.Integer(), nullable=False),
        sa.Column("late", sa.Integer(), nullable=False),
        sa.Column("objective_g", sa.Float(), nullable=True),
        sa.Column("lower_bound_g", sa.Float(), nullable=True),
        sa.Column("is_overlay", sa.Boolean(), nullable=False),
        sa.Column("duration_s", sa.Float(), nullable=False),
        sa.Column("note", sa.Text(), nullable=True),
        sa.Column("inputs", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("plan_id", name=op.f("pk_plans")),
    )
    op.create_index("ix_plans_recorded_at", "plans", ["recorded_at"], unique=False)
    op.create_table(
        "rates",
        sa.Column("rate_id", sa.Text(), nullable=False),
        sa.Column("signal", sa.Text(), nullable=False),
        sa.Column("zone", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=True),
        sa.Column("gas", sa.Text(), nullable=False),
        sa.Column("method", sa.Text(), nullable=True),
        sa.Column("window_at", UtcDateTime(), nullable=False),
        sa.Column("step_s", sa.Integer(), nullable=False),
        sa.Column("issued_at", UtcDateTime(), nullable=True),
        sa.Column("retrieved_at", UtcDateTime(), nullable=False),
        sa.Column("g_per_kwh", ExactDecimal(), nullable=False),
        sa.Column("raw", ExactDecimal(), nullable=False),
        sa.Column("raw_unit", sa.Text(), nullable=False),
        sa.Column("is_estimated", sa.Boolean(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("may_settle", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("rate_id", name=op.f("pk_rates")),
    )
    op.create_table(
        "regions",
        sa.Column("region", sa.Text(), nullable=False),
        sa.Column("zone", sa.Text(), nullable=False),
        sa.Column("slots", sa.Integer(), nullable=False),
        sa.Column("realtime_slots", sa.Integer(), nullable=False),
        sa.Column("pue", ExactDecimal(), nullable=False),
        sa.Column("pue_source", sa.Text(), nullable=False),
        sa.Column("hardware", sa.Text(), nullable=False),
        sa.Column("latency_ms", sa.Float(), nullable=False),
        sa.Column("ownership", sa.Text(), nullable=False),
        sa.Column("models", Json(), nullable=True),
        sa.Column("embodied_kg", ExactDecimal(), nullable=True),
        sa.Column("life_h", ExactDecimal(), nullable=True),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("is_configured", sa.Boolean(), nullable=False),
        sa.Column("updated_at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("region", name=op.f("pk_regions")),
    )
    op.create_table(
        "throughputs",
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("hardware", sa.Text(), nullable=False),
        sa.Column("tokens_per_s", sa.Float(), nullable=False),
        sa.Column("uj_per_token", sa.BigInteger(), nullable=False),
        sa.Column("samples", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("model", "hardware", name=op.f("pk_throughputs")),
    )
    op.create_table(
        "unsettled",
        sa.Column("signal", sa.Text(), nullable=False),
        sa.Column("zone", sa.Text(), nullable=False),
        sa.Column("window_at", UtcDateTime(), nullable=False),
        sa.Column("engine_batch_id", sa.Text(), nullable=False),
        sa.Column("part", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("signal", "zone", "window_at", "engine_batch_id", "part", name=op.f("pk_unsettled")),
    )
    op.create_index("ix_unsettled_engine_batch_id", "unsettled", ["engine_batch_id", "part"], unique=False)
    op.create_table(
        "workers",
        sa.Column("worker_id", sa.Text(), nullable=False),
        sa.Column("region", sa.Text(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("slots", sa.Integer(), nullable=False),
        sa.Column("started_at", UtcDateTime(), nullable=False),
        sa.Column("last_seen_at", UtcDateTime(), nullable=False),
        sa.Column("last_claimed_at", UtcDateTime(), nullable=True),
        sa.Column("stopped_at", UtcDateTime(), nullable=True),
        sa.Column("software_version", sa.Text(), nullable=False),
        sa.Column("hardware", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("worker_id", name=op.f("pk_workers")),
    )
    op.create_index("ix_workers_region_last_seen_at", "workers", ["region", "last_seen_at"], unique=False)
    op.create_table(
        "engine_batches",
        sa.Column("engine_batch_id", sa.Text(), nullable=False),
        sa.Column("part", sa.Integer(), nullable=False),
        sa.Column("parts", sa.Integer(), nullable=False),
        sa.Column("items", sa.Integer(), nullable=False),
        sa.Column("weight", sa.BigInteger(), nullable=False),
        sa.Column("class", sa.Text(), nullable=False),
        sa.Column("worker_id", sa.Text(), nullable=False),
        sa.Column("fact_id", sa.Text(), nullable=False),
        sa.Column("region", sa.Text(), nullable=False),
        sa.Column("device_ids", Json(), nullable=False),
        sa.Column("model", sa.Text(), nullable=True),
        sa.Column("engine", sa.Text(), nullable=True),
        sa.Column("engine_version", sa.Text(), nullable=True),
        sa.Column("precision", sa.Text(), nullable=True),
        sa.Column("software_version", sa.Text(), nullable=False),
        sa.Column("clock", sa.Text(), nullable=False),
        sa.Column("window_at", UtcDateTime(), nullable=False),
        sa.Column("started_at", UtcDateTime(), nullable=False),
        sa.Column("ended_at", UtcDateTime(), nullable=False),
        sa.Column("duration_s", ExactDecimal(), nullable=False),
        sa.Column("gpu_uj", sa.BigInteger(), nullable=True),
        sa.Column("cpu_uj", sa.BigInteger(), nullable=True),
        sa.Column("dram_uj", sa.BigInteger(), nullable=True),
        sa.Column("energy_uj", sa.BigInteger(), nullable=True),
        sa.Column("gpu_meter", sa.Text(), nullable=False),
        sa.Column("cpu_meter", sa.Text(), nullable=False),
        sa.Column("dram_meter", sa.Text(), nullable=False),
        sa.Column("quality", sa.Text(), nullable=False),
        sa.Column("uncertainty_pct", sa.Float(), nullable=True),
        sa.ForeignKeyConstraint(["fact_id"], ["facts.fact_id"], name=op.f("fk_engine_batches_fact_id")),
        sa.PrimaryKeyConstraint("engine_batch_id", "part", name=op.f("pk_engine_batches")),
    )
    op.create_table(
        "entries",
        sa.Column("entry_id", sa.Text(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("supersedes", sa.Text(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("restatement_id", sa.Text(), nullable=True),
        sa.Column("recorded_at", UtcDateTime(), nullable=False),
        sa.Column("recorded_by", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=True),
        sa.Column("schema", sa.Integer(), nullable=False),
        sa.Column("method", sa.Text(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=True),
        sa.Column("api_key_id", sa.Text(), nullable=True),
        sa.Column("product_line", sa.Text(), nullable=True),
        sa.Column("workload", sa.Text(), nullable=True),
        sa.Column("job_id", sa.Text(), nullable=True),
        sa.Column("custom_id", sa.Text(), nullable=True),
        sa.Column("item", sa.Integer(), nullable=True),
        sa.Column("chunk_id", sa.Text(), nullable=True),
        sa.Column("attempt", sa.Integer(), nullable=True),
        sa.Column("class", sa.Text(), nullable=True),
        sa.Column("requested_model", sa.Text(), nullable=True),
        sa.Column("engine_batch_id", sa.Text(), nullable=False),
        sa.Column("part", sa.Integer(), nullable=False),
        sa.Column("window_at", UtcDateTime(), nullable=False),
        sa.Column("share_num", sa.BigInteger(), nullable=False),
        sa.Column("share_den", sa.BigInteger(), nullable=False),
        sa.Column("prompt_tokens", sa.Integer(), nullable=False),
        sa.Column("cached_tokens", sa.Integer(), nullable=False),
        sa.Column("completion_tokens", sa.Integer(), nullable=False),
        sa.Column("w_prompt", sa.Integer(), nullable=False),
        sa.Column("w_cached", sa.Integer(), nullable=False),
        sa.Column("w_completion", sa.Integer(), nullable=False),
        sa.Column("gpu_uj", sa.BigInteger(), nullable=True),
        sa.Column("cpu_uj", sa.BigInteger(), nullable=True),
        sa.Column("dram_uj", sa.BigInteger(), nullable=True),
        sa.Column("energy_uj", sa.BigInteger(), nullable=True),
        sa.Column("moer_rate_id", sa.Text(), nullable=True),
        sa.Column("moer_status", sa.Text(), nullable=False),
        sa.Column("emission_g", ExactDecimal(), nullable=True),
        sa.Column("aer_rate_id", sa.Text(), nullable=True),
        sa.Column("aer_status", sa.Text(), nullable=False),
        sa.Column("inventory_g", ExactDecimal(), nullable=True),
        sa.Column("embodied_g", ExactDecimal(), nullable=True),
        sa.Column("transfer_bytes", sa.BigInteger(), nullable=True),
        sa.Column("transfer_kwh_per_gb", ExactDecimal(), nullable=True),
        sa.Column("transfer_g_per_kwh", ExactDecimal(), nullable=True),
        sa.Column("transfer_g", ExactDecimal(), nullable=True),
        sa.Column("placement_id", sa.Text(), nullable=True),
        sa.Column("baseline_region", sa.Text(), nullable=True),
        sa.Column("baseline_window_at", UtcDateTime(), nullable=True),
        sa.Column("baseline_fact_id", sa.Text(), nullable=True),
        sa.Column("baseline_rate_id", sa.Text(), nullable=True),
        sa.Column("baseline_moer_status", sa.Text(), nullable=True),
        sa.Column("baseline_g", ExactDecimal(), nullable=True),
        sa.Column("saved_g", ExactDecimal(), nullable=True),
        sa.Column("cost", ExactDecimal(), nullable=True),
        sa.ForeignKeyConstraint(["aer_rate_id"], ["rates.rate_id"], name=op.f("fk_entries_aer_rate_id")),
        sa.ForeignKeyConstraint(["baseline_fact_id"], ["facts.fact_id"], name=op.f("fk_entries_baseline_fact_id")),
        sa.ForeignKeyConstraint(["baseline_rate_id"], ["rates.rate_id"], name=op.f("fk_entries_baseline_rate_id")),
        sa.ForeignKeyConstraint(["moer_rate_id"], ["rates.rate_id"], name=op.f("fk_entries_moer_rate_id")),
        sa.PrimaryKeyConstraint("entry_id", "revision", name=op.f("pk_entries")),
        sa.UniqueConstraint("supersedes", name=op.f("uq_entries_supersedes")),
    )
    op.create_index("ix_entries_engine_batch_id", "entries", ["engine_batch_id", "part"], unique=False)
    op.create_index("ix_entries_job_id", "entries", ["job_id"], unique=False)
    op.create_index("ix_entries_tenant_recorded_at", "entries", ["tenant", "recorded_at"], unique=False)
    op.create_index("ix_entries_window_at", "entries", ["window_at"], unique=False)
    op.create_table(
        "items",
        sa.Column("item_id", BigKey, autoincrement=True, nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("idx", sa.Integer(), nullable=False),
        sa.Column("custom_id", sa.Text(), nullable=False),
        sa.Column("line_offset", sa.BigInteger(), nullable=False),
        sa.Column("line_bytes", sa.Integer(), nullable=False),
        sa.Column("est_tokens", sa.Integer(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("chunk_id", sa.Text(), nullable=True),
        sa.Column("error_code", sa.Text(), nullable=True),
        sa.Column("finished_at", UtcDateTime(), nullable=True),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.job_id"], name=op.f("fk_items_job_id")),
        sa.PrimaryKeyConstraint("item_id", name=op.f("pk_items")),
        sa.UniqueConstraint("job_id", "custom_id", name=op.f("uq_items_job_id_custom_id")),
        sa.UniqueConstraint("job_id", "idx", name=op.f("uq_items_job_id_idx")),
    )
    op.create_index("ix_items_chunk_id", "items", ["chunk_id"], unique=False)
    op.create_table(
        "segments",
        sa.Column("segment_id", BigKey, autoincrement=True, nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("chunk_id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("blob", sa.Text(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("items", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.job_id"], name=op.f("fk_segments_job_id")),
        sa.PrimaryKeyConstraint("segment_id", name=op.f("pk_segments")),
        sa.UniqueConstraint("blob", name=op.f("uq_segments_blob")),
    )
    op.create_index("ix_segments_job_id", "segments", ["job_id"], unique=False)
