"""What the planner learns and keeps beside: duration margins, observed-only plans, the holdout."""

from __future__ import annotations

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    pass


def downgrade() -> None:
    pass
