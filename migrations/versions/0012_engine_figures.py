"""The fill and speed of engine batches, beside their energy."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"

_COLUMNS = {
    "capacity_items": sa.Integer,
    "tokens": sa.BigInteger,
    "padded_tokens": sa.BigInteger,
    "estimated_items": sa.Integer,
    "ttft_us": sa.BigInteger,
    "output_token_us": sa.BigInteger,
    "speculative": sa.Text,
}


def upgrade() -> None:
    for name, kind in _COLUMNS.items():
        op.add_column("engine_batches", sa.Column(name, kind(), nullable=True))


def downgrade() -> None:
    # One by one: a table made anew would lose the triggers that keep it append-only.
    for name in reversed(_COLUMNS):
        op.drop_column("engine_batches", name)
