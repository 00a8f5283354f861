"""Tables of access: what tenants may hold, what they hold, who is logged in, and who did what to the installation."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Index, Table, Text

from carbonq.store.dialect import BigKey, Json, UtcDateTime
from carbonq.store.tables.metadata import metadata

quotas = Table(  # a tenant's own limits; what is not in ``limits`` is the settings', null in it is no limit
    "quotas",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("limits", Json, nullable=False),
    Column("updated_at", UtcDateTime, nullable=False),
)

quota_counts = Table(  # at least what is open of a tenant: submits add, and it is counted anew now and then
    "quota_counts",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("open_jobs", BigInteger, nullable=False),
    Column("items", BigInteger, nullable=False),
    Column("input_bytes", BigInteger, nullable=False),
    Column("counted_at", UtcDateTime, nullable=False),  # grid time: the open jobs themselves were counted
)

token_days = Table(  # tokens of a tenant's accepted work by grid day; what never ran is taken off again
    "token_days",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("day", Text, primary_key=True),  # 2026-03-02
    Column("tokens", BigInteger, nullable=False),
)

sessions = Table(  # of people at the dashboard, and one-time links to it; machine times
    "sessions",
    metadata,
    Column("token_hash", Text, primary_key=True),
    Column("kind", Text, nullable=False),  # session | link
    Column("key_hash", Text, nullable=False),  # of the secret it was begun with: it ends when that does
    Column("created_at", UtcDateTime, nullable=False),
    Column("expires_at", UtcDateTime, nullable=False),
)

admin_log = Table(  # grows only; a trigger refuses UPDATE and DELETE
    "admin_log",
    metadata,
    Column("log_id", BigKey, primary_key=True, autoincrement=True),
    Column("recorded_at", UtcDateTime, nullable=False),
    Column("actor", Text, nullable=False),  # key_... or user@host
    Column("action", Text, nullable=False),
    Column("subject", Text, nullable=False),
    Column("tenant", Text),  # whose it is; NULL: the installation's
    Column("before", Json),
    Column("after", Json),
    Index("ix_admin_log_tenant", "tenant", "log_id"),
)
