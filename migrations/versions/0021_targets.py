"""Contract targets, and what ran toward them by hour, with the list of hours to be summed up anew."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from carbonq.store.dialect import BigKey, ExactDecimal, UtcDateTime

revision = "0021"
down_revision = "0020"

_BOOKS = ("emission", "inventory")

#: Which rows of a table change what an hour adds up to: parts of items' engine batches, and later revisions.
_CHANGES = {"engine_batches": "model IS NOT NULL", "entries": "revision > 1"}

_HOUR_ON_SQLITE = "substr(NEW.window_at, 1, 13) || ':00:00.000000Z'"

# A mark that nobody has taken yet is seen by whoever takes it after this transaction, which is SQLite's only one.
_ON_SQLITE = """
    CREATE TRIGGER {table}_mark_hour AFTER INSERT ON {table}
    WHEN NEW.{condition} AND NOT EXISTS (SELECT 1 FROM target_marks WHERE hour_at = {hour} AND NOT is_taken)
    BEGIN
      INSERT INTO target_marks (hour_at, is_taken) VALUES ({hour}, 0);
    END
"""

# With the owner's rights: who may add entries needs none on the work list, nor a newer script of roles.
_ON_POSTGRESQL = (
    """
    CREATE FUNCTION {table}_mark_hour() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
    SET search_path FROM CURRENT AS $$ BEGIN
      INSERT INTO target_marks (hour_at, is_taken)
      SELECT DISTINCT date_trunc('hour', window_at, 'UTC'), false FROM added WHERE {condition};
      RETURN NULL;
    END $$
    """,
    """
    CREATE TRIGGER {table}_mark_hour AFTER INSERT ON {table} REFERENCING NEW TABLE AS added
    FOR EACH STATEMENT EXECUTE FUNCTION {table}_mark_hour()
    """,
)


def upgrade() -> None:
    op.create_table(
        "targets",
        sa.Column("target_id", sa.Text(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("book", sa.Text(), nullable=False),
        sa.Column("g_per_1k_tokens", ExactDecimal(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("updated_at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("target_id", name=op.f("pk_targets")),
        sa.UniqueConstraint("tenant", "model", name=op.f("uq_targets_tenant_model")),
    )
    op.create_table(
        "target_hours",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("hour_at", UtcDateTime(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        *(column for book in _BOOKS for column in _sums(book)),
        sa.PrimaryKeyConstraint("tenant", "hour_at", "model", name=op.f("pk_target_hours")),
    )
    op.create_index("ix_target_hours_hour_at", "target_hours", ["hour_at"])
    op.create_table(
        "target_days",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("day_at", UtcDateTime(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        *(column for book in _BOOKS for column in _sums(book)),
        sa.PrimaryKeyConstraint("tenant", "day_at", "model", name=op.f("pk_target_days")),
    )
    op.create_index("ix_target_days_day_at", "target_days", ["day_at"])
    op.create_table(
        "target_marks",
        sa.Column("mark_id", BigKey, autoincrement=True, nullable=False),
        sa.Column("hour_at", UtcDateTime(), nullable=False),
        sa.Column("is_taken", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("mark_id", name=op.f("pk_target_marks")),
    )
    op.create_index("ix_target_marks_hour_at", "target_marks", ["hour_at"])
    op.create_table(
        "target_ahead",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("tokens", sa.BigInteger(), nullable=False),
        sa.Column("emission_tokens", sa.BigInteger(), nullable=False),
        sa.Column("emission_g", ExactDecimal(), nullable=False),
        sa.Column("inventory_tokens", sa.BigInteger(), nullable=False),
        sa.Column("inventory_g", ExactDecimal(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "model", name=op.f("pk_target_ahead")),
    )
    op.create_table(
        "target_alarms",
        sa.Column("target_id", sa.Text(), nullable=False),
        sa.Column("month_at", UtcDateTime(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("target_id", "month_at", "kind", name=op.f("pk_target_alarms")),
    )
    is_sqlite = op.get_bind().dialect.name == "sqlite"
    for table, condition in _CHANGES.items():
        for statement in (_ON_SQLITE,) if is_sqlite else _ON_POSTGRESQL:
            op.execute(statement.format(table=table, condition=condition, hour=_HOUR_ON_SQLITE))


def _sums(book: str) -> tuple[sa.Column[object], ...]:
    return (
        sa.Column(f"{book}_g", ExactDecimal(), nullable=False),
        sa.Column(f"{book}_provisional_g", ExactDecimal(), nullable=False),
        sa.Column(f"{book}_tokens", sa.BigInteger(), nullable=False),
        sa.Column(f"{book}_unknown", sa.BigInteger(), nullable=False),
        sa.Column(f"{book}_unknown_tokens", sa.BigInteger(), nullable=False),
    )


def downgrade() -> None:
    is_sqlite = op.get_bind().dialect.name == "sqlite"
    for table in _CHANGES:
        op.execute(f"DROP TRIGGER {table}_mark_hour" + ("" if is_sqlite else f" ON {table}"))
        if not is_sqlite:
            op.execute(f"DROP FUNCTION {table}_mark_hour()")
    for table in ("target_alarms", "target_ahead", "target_marks", "target_days", "target_hours", "targets"):
        op.drop_table(table)
