"""Webhooks, the batch of an event, and when a job's progress was told last."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from carbonq.store.dialect import BigKey, Json, UtcDateTime

revision = "0016"
down_revision = "0015"

_PENDING = sa.text("state = 'pending'")
_OF_BATCH = sa.text("batch_id IS NOT NULL")


def upgrade() -> None:
    op.add_column("jobs", sa.Column("progress_at", UtcDateTime(), nullable=True))
    op.add_column("events", sa.Column("batch_id", sa.Text(), nullable=True))
    op.create_index(
        "ix_events_batch_id",
        "events",
        ["batch_id", "event_id"],
        sqlite_where=_OF_BATCH,
        postgresql_where=_OF_BATCH,
    )
    op.create_table(
        "webhooks",
        sa.Column("webhook_id", sa.Text(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("event_types", Json(), nullable=False),
        sa.Column("secret", sa.Text(), nullable=False),
        sa.Column("old_secrets", Json(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("disabled_reason", sa.Text(), nullable=True),
        sa.Column("since_event_id", sa.BigInteger(), nullable=False),
        sa.Column("failing_since", UtcDateTime(), nullable=True),
        sa.Column("not_before", UtcDateTime(), nullable=True),
        sa.Column("busy_until", UtcDateTime(), nullable=True),
        sa.Column("token", sa.BigInteger(), nullable=False),
        sa.Column("machine_created_at", UtcDateTime(), nullable=False),
        sa.Column("machine_updated_at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("webhook_id", name=op.f("pk_webhooks")),
    )
    op.create_index("ix_webhooks_tenant", "webhooks", ["tenant", "webhook_id"])
    op.create_table(
        "webhook_deliveries",
        sa.Column("delivery_id", BigKey, autoincrement=True, nullable=False),
        sa.Column("webhook_id", sa.Text(), nullable=False),
        sa.Column("message_id", sa.Text(), nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("next_at", UtcDateTime(), nullable=True),
        sa.Column("last_at", UtcDateTime(), nullable=True),
        sa.Column("last_status", sa.Integer(), nullable=True),
        sa.Column("last_error", sa.Text(), nullable=True),
        sa.Column("recorded_at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("delivery_id", name=op.f("pk_webhook_deliveries")),
        sa.UniqueConstraint("webhook_id", "message_id", name=op.f("uq_webhook_deliveries_webhook_id_message_id")),
    )
    op.create_index("ix_webhook_deliveries_webhook_id", "webhook_deliveries", ["webhook_id", "delivery_id"])
    op.create_index(
        "ix_webhook_deliveries_pending",
        "webhook_deliveries",
        ["next_at"],
        sqlite_where=_PENDING,
        postgresql_where=_PENDING,
    )
    op.create_table(
        "webhook_cursor",
        sa.Column("cursor_id", sa.Integer(), nullable=False),
        sa.Column("event_id", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("cursor_id", name=op.f("pk_webhook_cursor")),
    )


def downgrade() -> None:
    op.drop_table("webhook_cursor")
    op.drop_table("webhook_deliveries")
    op.drop_table("webhooks")
    op.drop_index("ix_events_batch_id", "events")
    op.drop_column("events", "batch_id")
    op.drop_column("jobs", "progress_at")
