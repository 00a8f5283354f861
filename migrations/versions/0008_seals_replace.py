"""What keeps seals append-only where SQLite's REPLACE went past the trigger on DELETE."""

from __future__ import annotations

from alembic import op

revision = "0008"
down_revision = "0007"

#: Tables that only ever grow, with the columns of which each row has its own.
_TABLES: dict[str, tuple[str, ...]] = {
    "seal_parts": ("seal, number",),
    "seals": ("seal", "hash"),
}


def upgrade() -> None:
    if op.get_bind().dialect.name != "sqlite":
        return
    for table, keys in _TABLES.items():
        # A rowid is -1 unless the statement names one, or the key is the rowid.
        ways = [f"({key}) = ({', '.join(f'NEW.{one}' for one in key.split(', '))})" for key in keys]
        there = " OR ".join([*ways, "(NEW.rowid <> -1 AND rowid = NEW.rowid)"])
        op.execute(
            f"CREATE TRIGGER {table}_refuse_replace BEFORE INSERT ON {table} "
            f"WHEN EXISTS (SELECT 1 FROM {table} WHERE {there}) "
            f"BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END"
        )


def downgrade() -> None:
    if op.get_bind().dialect.name != "sqlite":
        return
    for table in _TABLES:
        op.execute(f"DROP TRIGGER {table}_refuse_replace")
