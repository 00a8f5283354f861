"""What the planner learns and keeps beside: duration margins, observed-only plans, the holdout."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

from carbonq.store.dialect import ExactDecimal, Json, UtcDateTime

revision = "0005"
down_revision = "0004"

#: (table, column, type); all of them may be NULL, for rows and code from before.
_COLUMNS: tuple[tuple[str, str, sa.types.TypeEngine[Any]], ...] = (
    ("chunks", "treatment", sa.Text()),
    ("jobs", "treatment", sa.Text()),
    ("plans", "trigger", sa.Text()),
    ("plans", "gap", sa.Float()),
    ("plans", "unplaced", sa.Integer()),
    ("plans", "at_once", sa.Integer()),
    ("regions", "maintenance", Json()),
    ("regions", "transfer_kwh_per_gb", ExactDecimal()),
    ("regions", "transfer_g_per_kwh", ExactDecimal()),
    ("regions", "price_per_kwh", ExactDecimal()),
    ("throughputs", "overrun", sa.Float()),
)


def upgrade() -> None:
    for table, name, kind in _COLUMNS:
        op.add_column(table, sa.Column(name, kind))
    op.create_table(
        "shadows",
        sa.Column("chunk_id", sa.Text, primary_key=True),
        sa.Column("plan_id", sa.Text, nullable=False),
        sa.Column("region", sa.Text, nullable=False),
        sa.Column("window_at", UtcDateTime, nullable=False),
        sa.Column("duration_s", sa.Float, nullable=False),
        sa.Column("g_per_kwh", ExactDecimal),
        sa.Column("issued_at", UtcDateTime),
        sa.Column("signal", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("created_at", UtcDateTime, nullable=False),
    )
    op.create_index("ix_shadows_window_at", "shadows", ["window_at"])


def downgrade() -> None:
    op.drop_index("ix_shadows_window_at", "shadows")
    op.drop_table("shadows")
    for table, name, _ in reversed(_COLUMNS):
        op.drop_column(table, name)
