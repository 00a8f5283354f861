"""Scopes, limits and use of API keys; quotas of tenants; what administrators did."""

from __future__ import annotations

revision = "0017"
down_revision = "0016"


def upgrade() -> None:
    pass


def downgrade() -> None:
    pass
