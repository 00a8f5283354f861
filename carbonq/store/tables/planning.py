"""Tables of planning: plans, placements, the baseline's virtual queue, what the grid sources said."""

from __future__ import annotations

from sqlalchemy import Boolean, Column, Float, Index, Integer, LargeBinary, Table, Text, UniqueConstraint, false

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
    Column("signal", Text),  # what it decided by: moer, or aer where the installation has no marginal source
    Column("trigger", Text),  # why it was made, e.g. "new jobs, forecast"; NULL: before that was noted
    Column("gap", Float),  # (objective - lower bound) / objective; NULL where either is unknown
    Column("unplaced", Integer),
    Column("at_once", Integer),  # chunks that run at once by observe-only or holdout, and are in none of the sums
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
    Column("signal", Text),  # which book g_per_kwh belongs to; NULL: placed before that was noted, moer
    Index("ix_placements_chunk_id", "chunk_id"),
)

shadows = Table(  # where an observed chunk would have run; it moves with each plan until its window has come
    "shadows",
    metadata,
    Column("chunk_id", Text, primary_key=True),
    Column("plan_id", Text, nullable=False),  # the plan that put it there last
    Column("region", Text, nullable=False),
    Column("window_at", UtcDateTime, nullable=False),
    Column("duration_s", Float, nullable=False),  # grid seconds that it would hold its slot
    Column("g_per_kwh", ExactDecimal),  # the forecast it was decided by; NULL: none was to be had
    Column("issued_at", UtcDateTime),
    Column("signal", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    Index("ix_shadows_window_at", "window_at"),
)

baseline_slots = Table(  # the virtual first-come-first-served queue of each home region
    "baseline_slots",
    metadata,
    Column("region", Text, primary_key=True),
    Column("slot", Integer, primary_key=True),
    Column("free_at", UtcDateTime, nullable=False),
)

forecasts = Table(  # as issued, one row an issue; ``packed`` holds the values (store/packing.py)
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
    Column("packed", LargeBinary, nullable=False),
    Column("raw_unit", Text, nullable=False),
    Column("raw_per_g_per_kwh", ExactDecimal, nullable=False),
    Column("is_estimated", Boolean, nullable=False),
    Column("may_settle", Boolean, nullable=False),
    Column("is_thinned", Boolean, nullable=False, server_default=false()),  # the one issue kept of its hour
    UniqueConstraint("zone", "signal", "source", "issued_at"),
    Index("ix_forecasts_is_thinned_issued_at", "is_thinned", "issued_at"),
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

source_states = Table(  # how each configured source does; grid times
    "source_states",
    metadata,
    Column("zone", Text, primary_key=True),
    Column("signal", Text, primary_key=True),
    Column("source", Text, primary_key=True),
    Column("position", Integer, nullable=False),  # 0: preferred; then the fallbacks in their order
    Column("asked_at", UtcDateTime),  # of position 0: when somebody took it on to ask this zone's sources
    Column("last_ok_at", UtcDateTime),
    Column("last_error", Text),
    Column("last_error_at", UtcDateTime),
    Column("failures", Integer, nullable=False),  # in a row
    Column("fresh_at", UtcDateTime),  # newest moment it has told of: its last issue, or the end of its last window
    Column("is_down", Boolean, nullable=False),  # fresh_at was older than max_stale_s when it was last asked
    Column("may_settle", Boolean),  # whether what it said last may settle entries; NULL: it never said anything
    Column("revised_at", UtcDateTime),  # when it was last asked what it corrected
)

outlook_skills = Table(  # what was learned of a source's forecasts; ``state`` is that of plan/blend.py
    "outlook_skills",
    metadata,
    Column("zone", Text, primary_key=True),
    Column("signal", Text, primary_key=True),
    Column("source", Text, primary_key=True),
    Column("state", Json, nullable=False),
    Column("learned_until", UtcDateTime, nullable=False),
    Column("updated_at", UtcDateTime, nullable=False),
)
