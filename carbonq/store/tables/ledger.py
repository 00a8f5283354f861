"""Tables of the ledger; triggers refuse UPDATE and DELETE on those in ``APPEND_ONLY``."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, Float, ForeignKey, Index, Integer, Table, Text, text

from carbonq.store.dialect import ExactDecimal, Json, UtcDateTime
from carbonq.store.tables.metadata import metadata

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
    Index("ix_rates_window_at", "signal", "zone", "window_at"),
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
    # Fill and speed, on the first part; NULL where an engine cannot tell, and for what ran before they were kept.
    Column("capacity_items", Integer),
    Column("tokens", BigInteger),  # computed: prompt without cached, and completion
    Column("padded_tokens", BigInteger),  # the longest item's times the items
    Column("estimated_items", Integer),  # whose tokens the engine did not say
    Column("ttft_us", BigInteger),  # median time to the first token, microseconds
    Column("output_token_us", BigInteger),  # mean time of a further token
    Column("speculative", Text),  # decoding, as the settings describe it
    Column("downgraded", Text),  # budget | policy: why a smaller model ran than its items asked for; on every part
    Index("ix_engine_batches_window_at", "window_at"),  # an entry's window is its part's: find it here, then by part
    Index(
        "ix_engine_batches_downgraded",
        "window_at",
        sqlite_where=text("downgraded IS NOT NULL"),
        postgresql_where=text("downgraded IS NOT NULL"),
    ),
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
    # On PostgreSQL one trigger a statement stands for these four foreign keys: what they refer to is never taken away,
    # and a look at each row's four was half of what an entry cost.
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
    Index("ix_entries_baseline_rate_id", "baseline_rate_id"),  # a baseline lies in another window than its entry
    Index(
        "ix_entries_restatement_id",
        "restatement_id",
        sqlite_where=text("restatement_id IS NOT NULL"),
        postgresql_where=text("restatement_id IS NOT NULL"),
    ),
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

corrections = Table(  # observations that were said anew: a work list, rows go when entries of theirs are restated
    "corrections",
    metadata,
    Column("signal", Text, primary_key=True),
    Column("zone", Text, primary_key=True),
    Column("source", Text, primary_key=True),
    Column("window_at", UtcDateTime, primary_key=True),
)

restatements = Table(  # who restated entries, when, why and which; the entries' revisions name theirs
    "restatements",
    metadata,
    Column("restatement_id", Text, primary_key=True),
    Column("recorded_at", UtcDateTime, nullable=False),
    Column("recorded_by", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("is_automatic", Boolean, nullable=False),  # noticed by settlement, nobody asked for it
    Column("signal", Text),  # NULL: both
    Column("zone", Text),  # NULL: all
    Column("start_at", UtcDateTime, nullable=False),  # windows of rates: from, up to and not including
    Column("end_at", UtcDateTime, nullable=False),
)

gaps = Table(  # silences of workers that were booked as gaps
    "gaps",
    metadata,
    Column("worker_id", Text, primary_key=True),
    Column("silent_since", UtcDateTime, primary_key=True),  # machine time: when it was heard of last
    Column("engine_batch_id", Text, nullable=False),
    Column("booked_at", UtcDateTime, nullable=False),
    Column("returned_at", UtcDateTime),  # machine time: it was heard of again, and its meters tell the truth
)

#: Tables that only ever grow; a trigger on each refuses UPDATE and DELETE.
APPEND_ONLY = (rates, facts, engine_batches, entries, restatements)
