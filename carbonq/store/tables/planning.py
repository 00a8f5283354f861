"""Tables of planning: plans, placements, the baseline's virtual queue, what the grid sources said."""

from __future__ import annotations

from sqlalchemy import Boolean, Column, Float, Index, Integer, Table, Text, UniqueConstraint

from carbonq.store.dialect import BigKey, ExactDecimal, Json, UtcDateTime
from carbonq.store.tables.metadata import metadata

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
