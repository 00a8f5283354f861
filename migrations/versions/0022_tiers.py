"""Chunks that run on a smaller model than was asked for."""

from __future__ import annotations

revision = "0022"
down_revision = "0021"


def upgrade() -> None:
    pass


def downgrade() -> None:
    pass
