"""Carbon budgets: what owners set, what was spent, what is expected of jobs and chunks, and which chunks wait."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

from carbonq.store.dialect import BigKey, ExactDecimal, UtcDateTime

revision = "0019"
down_revision = "0018"

_JOBS: tuple[tuple[str, sa.types.TypeEngine[Any]], ...] = (
    ("impact_pg_per_token", sa.BigInteger()),
    ("inventory_pg_per_token", sa.BigInteger()),
)
_CHUNKS: tuple[tuple[str, sa.types.TypeEngine[Any]], ...] = (
    ("for_tenant", sa.Text()),
    ("product_line", sa.Text()),
    ("workload", sa.Text()),
    ("longest_item", sa.Integer()),
    ("impact_pg_per_token", sa.BigInteger()),
    ("inventory_pg_per_token", sa.BigInteger()),
    ("held_by", sa.Text()),
    ("held_until", UtcDateTime()),
)


def upgrade() -> None:
    for table, columns in (("jobs", _JOBS), ("chunks", _CHUNKS)):
        for name, kind in columns:
            op.add_column(table, sa.Column(name, kind, nullable=True))
    is_open = sa.text("state <> 'done'")
    op.create_index(
        "ix_chunks_line",
        "chunks",
        ["for_tenant", "product_line", "workload"],
        sqlite_where=is_open,
        postgresql_where=is_open,
    )
    is_held = sa.text("held_by IS NOT NULL")
    op.create_index("ix_chunks_held_by", "chunks", ["held_by"], sqlite_where=is_held, postgresql_where=is_held)
    op.create_table(
        "budgets",
        sa.Column("budget_id", sa.Text(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("level", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("book", sa.Text(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("cap_g", ExactDecimal(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("updated_at", UtcDateTime(), nullable=False),
        sa.Column("is_counted", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("budget_id", name=op.f("pk_budgets")),
        sa.UniqueConstraint("tenant", "level", "name", name=op.f("uq_budgets_tenant_level_name")),
    )
    op.create_table(
        "budget_cells",
        sa.Column("budget_id", sa.Text(), nullable=False),
        sa.Column("window_at", UtcDateTime(), nullable=False),
        sa.Column("spent_g", ExactDecimal(), nullable=False),
        sa.Column("provisional_g", ExactDecimal(), nullable=False),
        sa.Column("unknown", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("budget_id", "window_at", name=op.f("pk_budget_cells")),
    )
    op.create_table(
        "budget_totals",
        sa.Column("budget_id", sa.Text(), nullable=False),
        sa.Column("started_at", UtcDateTime(), nullable=False),
        sa.Column("spent_g", ExactDecimal(), nullable=False),
        sa.Column("provisional_g", ExactDecimal(), nullable=False),
        sa.Column("unknown", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("budget_id", name=op.f("pk_budget_totals")),
    )
    op.create_table(
        "budget_counts",
        sa.Column("budget_id", sa.Text(), nullable=False),
        sa.Column("started_at", UtcDateTime(), nullable=False),
        sa.Column("reserved_ug", sa.BigInteger(), nullable=False),
        sa.Column("unknown", sa.Integer(), nullable=False),
        sa.Column("waiting", sa.Integer(), nullable=False),
        sa.Column("waiting_ug", sa.BigInteger(), nullable=False),
        sa.Column("counted_at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("budget_id", name=op.f("pk_budget_counts")),
    )
    op.create_table(
        "spent_marks",
        sa.Column("mark_id", BigKey, autoincrement=True, nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("product_line", sa.Text(), nullable=True),
        sa.Column("workload", sa.Text(), nullable=True),
        sa.Column("window_at", UtcDateTime(), nullable=False),
        sa.Column("emission_g", ExactDecimal(), nullable=True),
        sa.Column("inventory_g", ExactDecimal(), nullable=True),
        sa.PrimaryKeyConstraint("mark_id", name=op.f("pk_spent_marks")),
    )
    op.create_index("ix_spent_marks_tenant", "spent_marks", ["tenant", "window_at"])
    op.create_table(
        "budget_alarms",
        sa.Column("budget_id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("started_at", UtcDateTime(), nullable=False),
        sa.Column("at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("budget_id", "kind", name=op.f("pk_budget_alarms")),
    )


def downgrade() -> None:
    for table in ("budget_alarms", "spent_marks", "budget_counts", "budget_totals", "budget_cells", "budgets"):
        op.drop_table(table)
    op.drop_index("ix_chunks_held_by", "chunks")
    op.drop_index("ix_chunks_line", "chunks")
    for table, columns in (("chunks", _CHUNKS), ("jobs", _JOBS)):
        for name, _ in reversed(columns):
            op.drop_column(table, name)
