"""Where a trace began: the context of each submit."""

from __future__ import annotations

revision = "0020"
down_revision = "0019"


def upgrade() -> None:
    pass


def downgrade() -> None:
    pass
