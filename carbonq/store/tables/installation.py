"""Tables of the installation: clock, keys, regions, workers, learned throughputs."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, Float, Index, Integer, Table, Text

from carbonq.store.dialect import ExactDecimal, Json, UtcDateTime
from carbonq.store.tables.metadata import metadata

clocks = Table(
    "clocks",
    metadata,
    Column("clock_id", Integer, primary_key=True),  # always 1
    Column("kind", Text, nullable=False),
    Column("factor", Float, nullable=False),
    Column("machine_epoch", UtcDateTime, nullable=False),
    Column("grid_epoch", UtcDateTime, nullable=False),
)

installation = Table(  # what all processes of the installation must agree on; compared when a worker registers
    "installation",
    metadata,
    Column("installation_id", Integer, primary_key=True),  # always 1
    Column("settings", Json, nullable=False),  # regions, zones, models and the like; no secrets, no paths of a host
    Column("settings_digest", Text, nullable=False),
    Column("software_version", Text, nullable=False),
    Column("updated_at", UtcDateTime, nullable=False),
)

schema_floor = Table(  # the oldest schema revision whose code still runs on this database; migrations write it
    "schema_floor",
    metadata,
    Column("floor_id", Integer, primary_key=True),  # always 1
    Column("revision", Text, nullable=False),
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
    Column("scopes", Json),  # NULL, from before there were scopes: all but admin; the local key's: all
    Column("defaults", Json),  # fields of ``carbon`` where a request says nothing
    Column("requests_per_minute", BigInteger),  # NULL: as the settings say
    Column("tokens_per_minute", BigInteger),
    Column("last_used_at", UtcDateTime),  # to a minute or so
    Column("previous_hash", Text),  # of the secret before the last rotation, which is good ...
    Column("previous_until", UtcDateTime),  # ... until then
    Index("ix_api_keys_previous_hash", "previous_hash", unique=True),
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
    Column("maintenance", Json),  # [{start, end, slots}]
    Column("transfer_kwh_per_gb", ExactDecimal),
    Column("transfer_g_per_kwh", ExactDecimal),
    Column("price_per_kwh", ExactDecimal),
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
    Column("settings_digest", Text),
    Column("clock_offset_s", Float),  # the host's clock minus the database's when it registered
    Column("gpus", Json),
    Index("ix_workers_region_last_seen_at", "region", "last_seen_at"),
)

holds = Table(  # what an operator paused or drains; a region's state is also in its own row
    "holds",
    metadata,
    Column("kind", Text, primary_key=True),  # region | tenant | model
    Column("name", Text, primary_key=True),
    Column("state", Text, nullable=False),  # paused | draining
    Column("held_at", UtcDateTime, nullable=False),
    Column("reason", Text),
    Column("held_by", Text),
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
    Column("overrun", Float),  # ratio of actual to foretold duration that 95 % of chunks stay below; NULL: not known
    Column("token_weights", Json),  # sums of engine batches and the weights in force; NULL: the model learns none
)
