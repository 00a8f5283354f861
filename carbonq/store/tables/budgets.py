"""Tables of carbon budgets: what owners have set, what was spent, what is kept of reservations. Grid times."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, Index, Integer, Table, Text, UniqueConstraint

from carbonq.store.dialect import BigKey, ExactDecimal, UtcDateTime
from carbonq.store.tables.metadata import metadata

budgets = Table(
    "budgets",
    metadata,
    Column("budget_id", Text, primary_key=True),
    Column("tenant", Text, nullable=False),
    Column("level", Text, nullable=False),  # product_line | workload | item
    Column("name", Text, nullable=False),
    Column("book", Text, nullable=False),  # impact | inventory
    Column("action", Text, nullable=False),  # warn | queue | downgrade | reject
    Column("cap_g", ExactDecimal, nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    Column("updated_at", UtcDateTime, nullable=False),
    Column("is_counted", Boolean, nullable=False),  # what had been spent before it was set is in its cells
    UniqueConstraint("tenant", "level", "name"),
)

budget_cells = Table(  # what the ledger says of a budget's running period, window by window
    "budget_cells",
    metadata,
    Column("budget_id", Text, primary_key=True),
    Column("window_at", UtcDateTime, primary_key=True),
    Column("spent_g", ExactDecimal, nullable=False),
    Column("provisional_g", ExactDecimal, nullable=False),
    Column("unknown", Integer, nullable=False),  # entries without a rate
)

budget_totals = Table(  # the sums of a budget's cells
    "budget_totals",
    metadata,
    Column("budget_id", Text, primary_key=True),
    Column("started_at", UtcDateTime, nullable=False),  # of the period they are of
    Column("spent_g", ExactDecimal, nullable=False),
    Column("provisional_g", ExactDecimal, nullable=False),
    Column("unknown", Integer, nullable=False),
)

budget_counts = Table(  # at least what is reserved: submits add, and it is counted anew now and then
    "budget_counts",
    metadata,
    Column("budget_id", Text, primary_key=True),
    Column("started_at", UtcDateTime, nullable=False),  # of the period it is of
    Column("reserved_ug", BigInteger, nullable=False),
    Column("unknown", Integer, nullable=False),
    Column("waiting", Integer, nullable=False),
    Column("waiting_ug", BigInteger, nullable=False),
    Column("counted_at", UtcDateTime, nullable=False),  # machine time
)

spent_marks = Table(  # windows whose entries changed: a work list, rows go when their cells were counted anew
    "spent_marks",
    metadata,
    Column("mark_id", BigKey, primary_key=True, autoincrement=True),
    Column("tenant", Text, nullable=False),
    Column("product_line", Text),
    Column("workload", Text),
    Column("window_at", UtcDateTime, nullable=False),
    # What new entries add until they are counted; NULL where entries were revised, or are older than the budget.
    Column("emission_g", ExactDecimal),
    Column("inventory_g", ExactDecimal),
    Index("ix_spent_marks_tenant", "tenant", "window_at"),
)

budget_alarms = Table(  # for which period each alarm of a budget was told last
    "budget_alarms",
    metadata,
    Column("budget_id", Text, primary_key=True),
    Column("kind", Text, primary_key=True),
    Column("started_at", UtcDateTime, nullable=False),
    Column("at", UtcDateTime, nullable=False),
)
