"""Tables of webhooks: endpoints, what is sent to them, and how far the events were looked through for them."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Index, Integer, Table, Text, UniqueConstraint, text

from carbonq.store.dialect import BigKey, Json, UtcDateTime
from carbonq.store.tables.metadata import metadata

webhooks = Table(
    "webhooks",
    metadata,
    Column("webhook_id", Text, primary_key=True),
    Column("tenant", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("url", Text, nullable=False),
    Column("event_types", Json, nullable=False),
    Column("secret", Text, nullable=False),
    Column("old_secrets", Json, nullable=False),  # [secret, machine time until which it signs too], newest first
    Column("state", Text, nullable=False),  # enabled | disabled
    Column("disabled_reason", Text),
    Column("since_event_id", BigInteger, nullable=False),  # what happened before it was made is not sent
    Column("failing_since", UtcDateTime),  # machine time; NULL: the last attempt was accepted
    Column("not_before", UtcDateTime),  # machine time: nothing is sent before
    Column("busy_until", UtcDateTime),  # machine time: somebody sends to it until then at most
    Column("token", BigInteger, nullable=False),  # grows with whoever begins to send to it
    Column("machine_created_at", UtcDateTime, nullable=False),
    Column("machine_updated_at", UtcDateTime, nullable=False),
    Index("ix_webhooks_tenant", "tenant", "webhook_id"),
)

webhook_deliveries = Table(
    "webhook_deliveries",
    metadata,
    Column("delivery_id", BigKey, primary_key=True, autoincrement=True),
    Column("webhook_id", Text, nullable=False),
    Column("message_id", Text, nullable=False),  # the header webhook-id, the same at every attempt
    Column("type", Text, nullable=False),
    Column("body", Text, nullable=False),
    Column("state", Text, nullable=False),  # pending | delivered | failed
    Column("attempts", Integer, nullable=False),
    Column("next_at", UtcDateTime),  # machine time; NULL once it is final
    Column("last_at", UtcDateTime),  # machine time of the last attempt
    Column("last_status", Integer),
    Column("last_error", Text),
    Column("recorded_at", UtcDateTime, nullable=False),
    UniqueConstraint("webhook_id", "message_id"),
    Index("ix_webhook_deliveries_webhook_id", "webhook_id", "delivery_id"),
    Index(
        "ix_webhook_deliveries_pending",
        "next_at",
        sqlite_where=text("state = 'pending'"),
        postgresql_where=text("state = 'pending'"),
    ),
)

webhook_cursor = Table(
    "webhook_cursor",
    metadata,
    Column("cursor_id", Integer, primary_key=True),  # 1
    Column("event_id", BigInteger, nullable=False),  # up to it every event was looked at
)
