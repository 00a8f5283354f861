"""Restatements, corrections and gaps; what keeps the ledger append-only where REPLACE went past it; lighter indexes."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from carbonq.store.dialect import UtcDateTime

revision = "0006"
down_revision = "0005"

#: Tables that only ever grow, with the columns that are unique in each.
_LEDGER = {
    "rates": [("rate_id",)],
    "facts": [("fact_id",)],
    "engine_batches": [("engine_batch_id", "part")],
    "entries": [("entry_id", "revision"), ("supersedes",)],
    "restatements": [("restatement_id",)],
}

#: What entries refer to, by column.
_REFERS = {
    "moer_rate_id": "rates",
    "aer_rate_id": "rates",
    "baseline_fact_id": "facts",
    "baseline_rate_id": "rates",
}


def upgrade() -> None:
    op.create_table(
        "corrections",
        sa.Column("signal", sa.Text, nullable=False),
        sa.Column("zone", sa.Text, nullable=False),
        sa.Column("source", sa.Text, nullable=False),
        sa.Column("window_at", UtcDateTime, nullable=False),
        sa.PrimaryKeyConstraint("signal", "zone", "source", "window_at", name="pk_corrections"),
    )
    op.create_table(
        "restatements",
        sa.Column("restatement_id", sa.Text, nullable=False),
        sa.Column("recorded_at", UtcDateTime, nullable=False),
        sa.Column("recorded_by", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("is_automatic", sa.Boolean, nullable=False),
        sa.Column("signal", sa.Text),
        sa.Column("zone", sa.Text),
        sa.Column("start_at", UtcDateTime, nullable=False),
        sa.Column("end_at", UtcDateTime, nullable=False),
        sa.PrimaryKeyConstraint("restatement_id", name="pk_restatements"),
    )
    op.create_table(
        "gaps",
        sa.Column("worker_id", sa.Text, nullable=False),
        sa.Column("silent_since", UtcDateTime, nullable=False),
        sa.Column("engine_batch_id", sa.Text, nullable=False),
        sa.Column("booked_at", UtcDateTime, nullable=False),
        sa.Column("returned_at", UtcDateTime),
        sa.PrimaryKeyConstraint("worker_id", "silent_since", name="pk_gaps"),
    )
    op.drop_index("ix_entries_window_at", "entries")
    op.create_index("ix_entries_baseline_rate_id", "entries", ["baseline_rate_id"])
    is_restated = sa.text("restatement_id IS NOT NULL")
    op.create_index(
        "ix_entries_restatement_id",
        "entries",
        ["restatement_id"],
        sqlite_where=is_restated,
        postgresql_where=is_restated,
    )
    op.create_index("ix_engine_batches_window_at", "engine_batches", ["window_at"])
    op.create_index("ix_rates_window_at", "rates", ["signal", "zone", "window_at"])
    if op.get_bind().dialect.name == "sqlite":
        _on_sqlite()
    else:
        _on_postgresql()


def _on_sqlite() -> None:
    for action in ("UPDATE", "DELETE"):
        op.execute(
            f"CREATE TRIGGER restatements_refuse_{action.lower()} BEFORE {action} ON restatements "
            "BEGIN SELECT RAISE(ABORT, 'restatements is append-only'); END"
        )
    for table, keys in _LEDGER.items():
        # REPLACE takes the row that is in its way without asking the trigger on DELETE. A row that is there stays, as
        # with ON CONFLICT DO NOTHING. A rowid is -1 unless the statement names one; NULL is in nobody's way.
        ways = [" AND ".join(f"{name} = NEW.{name}" for name in key) for key in keys] + ["rowid = NEW.rowid"]
        tests = [*("", "NEW.supersedes IS NOT NULL AND ")[: len(keys)], "NEW.rowid <> -1 AND "]
        there = " OR ".join(
            f"({test}EXISTS (SELECT 1 FROM {table} WHERE {way}))" for test, way in zip(tests, ways, strict=True)
        )
        op.execute(
            f"CREATE TRIGGER {table}_refuse_replace BEFORE INSERT ON {table} WHEN {there} "
            "BEGIN SELECT RAISE(IGNORE); END"
        )


def _on_postgresql() -> None:
    op.execute(
        "CREATE FUNCTION restatements_is_append_only() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'restatements is append-only'; END $$"
    )
    op.execute(
        "CREATE TRIGGER restatements_refuse BEFORE UPDATE OR DELETE OR TRUNCATE ON restatements "
        "FOR EACH STATEMENT EXECUTE FUNCTION restatements_is_append_only()"
    )
    for column in _REFERS:
        op.drop_constraint(f"fk_entries_{column}", "entries", type_="foreignkey")
    missing = " UNION ALL ".join(
        f"SELECT {column} AS id, '{table}' AS kind FROM (SELECT DISTINCT {column} FROM added) AS a "
        f"WHERE {column} IS NOT NULL AND NOT EXISTS "
        f"(SELECT FROM {table} AS t WHERE t.{'rate' if table == 'rates' else 'fact'}_id = a.{column})"
        for column, table in _REFERS.items()
    )
    op.execute(
        f"""
        CREATE FUNCTION entries_is_referring() RETURNS trigger LANGUAGE plpgsql AS $$
        DECLARE lost record;
        BEGIN
          SELECT id, kind INTO lost FROM ({missing}) AS m LIMIT 1;
          IF FOUND THEN
            RAISE EXCEPTION 'an entry refers to % in %, which is not there', lost.id, lost.kind
              USING ERRCODE = 'foreign_key_violation';
          END IF;
          RETURN NULL;
        END $$
        """
    )
    op.execute(
        "CREATE TRIGGER entries_refers AFTER INSERT ON entries REFERENCING NEW TABLE AS added "
        "FOR EACH STATEMENT EXECUTE FUNCTION entries_is_referring()"
    )


def downgrade() -> None:
    if op.get_bind().dialect.name == "sqlite":
        for table in _LEDGER:
            op.execute(f"DROP TRIGGER {table}_refuse_replace")
    else:
        op.execute("DROP TRIGGER entries_refers ON entries")
        op.execute("DROP FUNCTION entries_is_referring()")
        for column, table in _REFERS.items():
            key = "rate_id" if table == "rates" else "fact_id"
            op.create_foreign_key(f"fk_entries_{column}", "entries", table, [column], [key])
    op.drop_index("ix_rates_window_at", "rates")
    op.drop_index("ix_engine_batches_window_at", "engine_batches")
    op.drop_index("ix_entries_restatement_id", "entries")
    op.drop_index("ix_entries_baseline_rate_id", "entries")
    op.create_index("ix_entries_window_at", "entries", ["window_at"])
    for table in ("gaps", "restatements", "corrections"):
        op.drop_table(table)
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP FUNCTION restatements_is_append_only()")
