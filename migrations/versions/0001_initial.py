"""The first schema."""

from __future__ import annotations

from alembic import op

from carbonq.store import tables

revision = "0001"
down_revision = None


def upgrade() -> None:
    bind = op.get_bind()
    tables.metadata.create_all(bind)
    for table in tables.APPEND_ONLY:
        if bind.dialect.name == "sqlite":
            for action in ("UPDATE", "DELETE"):
                op.execute(
                    f"CREATE TRIGGER {table.name}_refuse_{action.lower()} BEFORE {action} ON {table.name} "
                    f"BEGIN SELECT RAISE(ABORT, '{table.name} is append-only'); END"
                )
        else:
            op.execute(
                f"CREATE FUNCTION {table.name}_is_append_only() RETURNS trigger LANGUAGE plpgsql AS "
                f"$$ BEGIN RAISE EXCEPTION '{table.name} is append-only'; END $$"
            )
            op.execute(
                f"CREATE TRIGGER {table.name}_refuse BEFORE UPDATE OR DELETE OR TRUNCATE ON {table.name} "
                f"FOR EACH STATEMENT EXECUTE FUNCTION {table.name}_is_append_only()"
            )


def downgrade() -> None:
    tables.metadata.drop_all(op.get_bind())
