"""Contract targets."""

from __future__ import annotations

revision = "0021"
down_revision = "0020"


def upgrade() -> None:
    pass


def downgrade() -> None:
    pass
