"""Seals over entries: the chain, the leaves of each seal, and the work list of what is not sealed yet."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from carbonq.store.dialect import BigKey, Json, UtcDateTime

revision = "0007"
down_revision = "0006"

_APPEND_ONLY = ("seals", "seal_parts")

#: The one that runs first on a new part is enough: a transaction's rows come part by part.
_ON_SQLITE = """
    CREATE TRIGGER entries_await_seal AFTER INSERT ON entries
    WHEN NOT EXISTS (
      SELECT 1 FROM unsealed WHERE unsealed_id = (SELECT max(unsealed_id) FROM unsealed)
      AND engine_batch_id = NEW.engine_batch_id AND part = NEW.part AND revision = NEW.revision
    )
    BEGIN
      INSERT INTO unsealed (engine_batch_id, part, revision) VALUES (NEW.engine_batch_id, NEW.part, NEW.revision);
    END
"""

# With the owner's rights: who may add entries needs none on the work list, nor a newer script of roles.
_ON_POSTGRESQL = (
    """
    CREATE FUNCTION entries_await_seal() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
    SET search_path FROM CURRENT AS $$ BEGIN
      INSERT INTO unsealed (engine_batch_id, part, revision)
      SELECT DISTINCT engine_batch_id, part, revision FROM added ORDER BY 1, 2, 3;
      RETURN NULL;
    END $$
    """,
    """
    CREATE TRIGGER entries_await_seal AFTER INSERT ON entries REFERENCING NEW TABLE AS added
    FOR EACH STATEMENT EXECUTE FUNCTION entries_await_seal()
    """,
)


def upgrade() -> None:
    op.create_table(
        "seals",
        sa.Column("seal", sa.Integer(), nullable=False),
        sa.Column("sealed_at", UtcDateTime(), nullable=False),
        sa.Column("software_version", sa.Text(), nullable=False),
        sa.Column("leaves", sa.BigInteger(), nullable=False),
        sa.Column("entries", sa.BigInteger(), nullable=False),
        sa.Column("root", sa.Text(), nullable=False),
        sa.Column("previous", sa.Text(), nullable=False),
        sa.Column("history", sa.Text(), nullable=False),
        sa.Column("hash", sa.Text(), nullable=False),
        sa.Column("peaks", Json(), nullable=False),
        sa.PrimaryKeyConstraint("seal", name=op.f("pk_seals")),
        sa.UniqueConstraint("hash", name=op.f("uq_seals_hash")),
    )
    op.create_table(
        "seal_parts",
        sa.Column("seal", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("engine_batch_id", sa.Text(), nullable=False),
        sa.Column("part", sa.Integer(), nullable=False),
        sa.Column("lines", sa.Text(), nullable=False),
        sa.Column("hashes", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("seal", "number", name=op.f("pk_seal_parts")),
    )
    op.create_index("ix_seal_parts_engine_batch_id", "seal_parts", ["engine_batch_id", "part"])
    op.create_table(
        "unsealed",
        sa.Column("unsealed_id", BigKey, nullable=False),
        sa.Column("engine_batch_id", sa.Text(), nullable=False),
        sa.Column("part", sa.Integer(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("unsealed_id", name=op.f("pk_unsealed")),
    )
    op.create_index("ix_unsealed_engine_batch_id", "unsealed", ["engine_batch_id"])
    is_sqlite = op.get_bind().dialect.name == "sqlite"
    for table in _APPEND_ONLY:
        _refuse_changes(table, is_sqlite=is_sqlite)
    # The trigger first: on PostgreSQL it waits for transactions that add entries; what they added is read below.
    for statement in (_ON_SQLITE,) if is_sqlite else _ON_POSTGRESQL:
        op.execute(statement)
    op.execute(
        "INSERT INTO unsealed (engine_batch_id, part, revision) "
        "SELECT DISTINCT engine_batch_id, part, revision FROM entries ORDER BY 1, 2, 3"
    )


def downgrade() -> None:
    is_sqlite = op.get_bind().dialect.name == "sqlite"
    op.execute("DROP TRIGGER entries_await_seal" + ("" if is_sqlite else " ON entries"))
    for table in ("seals", "seal_parts", "unsealed"):
        op.drop_table(table)
    if not is_sqlite:
        for name in ("seals_is_append_only", "seal_parts_is_append_only", "entries_await_seal"):
            op.execute(f"DROP FUNCTION {name}()")


def _refuse_changes(table: str, *, is_sqlite: bool) -> None:
    if is_sqlite:
        for action in ("UPDATE", "DELETE"):
            op.execute(
                f"CREATE TRIGGER {table}_refuse_{action.lower()} BEFORE {action} ON {table} "
                f"BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END"
            )
        return
    op.execute(
        f"CREATE FUNCTION {table}_is_append_only() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN RAISE EXCEPTION '{table} is append-only'; END $$"
    )
    op.execute(
        f"CREATE TRIGGER {table}_refuse BEFORE UPDATE OR DELETE OR TRUNCATE ON {table} "
        f"FOR EACH STATEMENT EXECUTE FUNCTION {table}_is_append_only()"
    )
