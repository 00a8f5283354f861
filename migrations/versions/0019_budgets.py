"""Carbon budgets."""

from __future__ import annotations

revision = "0019"
down_revision = "0018"


def upgrade() -> None:
    pass


def downgrade() -> None:
    pass
