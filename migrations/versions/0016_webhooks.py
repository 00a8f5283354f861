"""Webhooks, and events in an order that readers can follow."""

from __future__ import annotations

revision = "0016"
down_revision = "0015"


def upgrade() -> None:
    pass


def downgrade() -> None:
    pass
