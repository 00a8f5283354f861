"""Scopes, rotation and limits of keys; quotas of tenants and what counts toward them; the log of admin actions."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

from carbonq.store.dialect import BigKey, Json, UtcDateTime

revision = "0017"
down_revision = "0016"

#: Columns of ``api_keys``; all of them may be NULL, for keys and code from before.
_COLUMNS: tuple[tuple[str, sa.types.TypeEngine[Any]], ...] = (
    ("scopes", Json()),
    ("defaults", Json()),
    ("requests_per_minute", sa.BigInteger()),
    ("tokens_per_minute", sa.BigInteger()),
    ("last_used_at", UtcDateTime()),
    ("previous_hash", sa.Text()),
    ("previous_until", UtcDateTime()),
)


def upgrade() -> None:
    for name, kind in _COLUMNS:
        op.add_column("api_keys", sa.Column(name, kind, nullable=True))
    op.create_index("ix_api_keys_previous_hash", "api_keys", ["previous_hash"], unique=True)
    is_open = sa.text("finished_at IS NULL")
    op.create_index("ix_jobs_tenant_open", "jobs", ["tenant"], sqlite_where=is_open, postgresql_where=is_open)
    op.create_table(
        "quotas",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("limits", Json(), nullable=False),
        sa.Column("updated_at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", name=op.f("pk_quotas")),
    )
    op.create_table(
        "quota_counts",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("open_jobs", sa.BigInteger(), nullable=False),
        sa.Column("items", sa.BigInteger(), nullable=False),
        sa.Column("input_bytes", sa.BigInteger(), nullable=False),
        sa.Column("counted_at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", name=op.f("pk_quota_counts")),
    )
    op.create_table(
        "token_days",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("day", sa.Text(), nullable=False),
        sa.Column("tokens", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "day", name=op.f("pk_token_days")),
    )
    op.create_table(
        "admin_log",
        sa.Column("log_id", BigKey, autoincrement=True, nullable=False),
        sa.Column("recorded_at", UtcDateTime(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=True),
        sa.Column("before", Json(), nullable=True),
        sa.Column("after", Json(), nullable=True),
        sa.PrimaryKeyConstraint("log_id", name=op.f("pk_admin_log")),
    )
    op.create_index("ix_admin_log_tenant", "admin_log", ["tenant", "log_id"])
    _refuse_changes()


def _refuse_changes() -> None:
    if op.get_bind().dialect.name == "sqlite":
        for action in ("UPDATE", "DELETE"):
            op.execute(
                f"CREATE TRIGGER admin_log_refuse_{action.lower()} BEFORE {action} ON admin_log "
                "BEGIN SELECT RAISE(ABORT, 'admin_log is append-only'); END"
            )
        # REPLACE takes the row that is in its way without asking the trigger on DELETE. The key is the rowid, which is
        # -1 in a row that names none.
        op.execute(
            "CREATE TRIGGER admin_log_refuse_replace BEFORE INSERT ON admin_log "
            "WHEN EXISTS (SELECT 1 FROM admin_log WHERE log_id = NEW.log_id) "
            "BEGIN SELECT RAISE(ABORT, 'admin_log is append-only'); END"
        )
        return
    op.execute(
        "CREATE FUNCTION admin_log_is_append_only() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'admin_log is append-only'; END $$"
    )
    op.execute(
        "CREATE TRIGGER admin_log_refuse BEFORE UPDATE OR DELETE OR TRUNCATE ON admin_log "
        "FOR EACH STATEMENT EXECUTE FUNCTION admin_log_is_append_only()"
    )


def downgrade() -> None:
    for table in ("admin_log", "token_days", "quota_counts", "quotas"):
        op.drop_table(table)
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP FUNCTION admin_log_is_append_only()")
    op.drop_index("ix_jobs_tenant_open", "jobs")
    op.drop_index("ix_api_keys_previous_hash", "api_keys")
    for name, _ in reversed(_COLUMNS):
        op.drop_column("api_keys", name)
