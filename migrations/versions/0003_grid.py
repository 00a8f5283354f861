"""Forecasts packed; how sources do and what was learned of them; which signal a plan decided by."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import sqlalchemy as sa
from alembic import op

from carbonq.store import packing
from carbonq.store.dialect import Json, UtcDateTime
from carbonq.units import plain

revision = "0003"
down_revision = "0002"

#: Forecasts converted in one go.
_BATCH = 500


def upgrade() -> None:
    op.add_column("forecasts", sa.Column("packed", sa.LargeBinary))
    op.add_column("forecasts", sa.Column("is_thinned", sa.Boolean, nullable=False, server_default=sa.false()))
    _convert("values", "packed", _packed)
    with op.batch_alter_table("forecasts") as batch:
        batch.alter_column("packed", existing_type=sa.LargeBinary, nullable=False)
        batch.drop_column("values")
    op.create_index("ix_forecasts_is_thinned_issued_at", "forecasts", ["is_thinned", "issued_at"])
    op.add_column("plans", sa.Column("signal", sa.Text))
    op.add_column("placements", sa.Column("signal", sa.Text))
    op.create_table(
        "source_states",
        sa.Column("zone", sa.Text, nullable=False),
        sa.Column("signal", sa.Text, nullable=False),
        sa.Column("source", sa.Text, nullable=False),
        sa.Column("position", sa.Integer, nullable=False),
        sa.Column("asked_at", UtcDateTime),
        sa.Column("last_ok_at", UtcDateTime),
        sa.Column("last_error", sa.Text),
        sa.Column("last_error_at", UtcDateTime),
        sa.Column("failures", sa.Integer, nullable=False),
        sa.Column("fresh_at", UtcDateTime),
        sa.Column("is_down", sa.Boolean, nullable=False),
        sa.Column("may_settle", sa.Boolean),
        sa.Column("revised_at", UtcDateTime),
        sa.PrimaryKeyConstraint("zone", "signal", "source", name="pk_source_states"),
    )
    op.create_table(
        "outlook_skills",
        sa.Column("zone", sa.Text, nullable=False),
        sa.Column("signal", sa.Text, nullable=False),
        sa.Column("source", sa.Text, nullable=False),
        sa.Column("state", Json, nullable=False),
        sa.Column("learned_until", UtcDateTime, nullable=False),
        sa.Column("updated_at", UtcDateTime, nullable=False),
        sa.PrimaryKeyConstraint("zone", "signal", "source", name="pk_outlook_skills"),
    )
    # Older code reads the column that is gone.
    op.execute(sa.text("UPDATE schema_floor SET revision = '0003'"))


def downgrade() -> None:
    op.drop_table("outlook_skills")
    op.drop_table("source_states")
    op.drop_column("placements", "signal")
    op.drop_column("plans", "signal")
    op.drop_index("ix_forecasts_is_thinned_issued_at", "forecasts")
    op.add_column("forecasts", sa.Column("values", Json))
    _convert("packed", "values", _texts)
    with op.batch_alter_table("forecasts") as batch:
        batch.alter_column("values", existing_type=Json, nullable=False)
        batch.drop_column("packed")
        batch.drop_column("is_thinned")
    op.execute(sa.text("UPDATE schema_floor SET revision = '0002'"))


def _convert(old: str, new: str, turn: Callable[[Any], Any]) -> None:
    types = {"values": Json(), "packed": sa.LargeBinary()}
    table = sa.table(
        "forecasts", sa.column("forecast_id", sa.BigInteger), sa.column(old, types[old]), sa.column(new, types[new])
    )
    key = table.c.forecast_id
    change = sa.update(table).where(key == sa.bindparam("id")).values({new: sa.bindparam("made", type_=types[new])})
    connection = op.get_bind()
    last = 0
    while True:
        rows = connection.execute(sa.select(key, table.c[old]).where(key > last).order_by(key).limit(_BATCH)).all()
        if not rows:
            return
        connection.execute(change, [{"id": number, "made": turn(value)} for number, value in rows])
        last = rows[-1][0]


def _packed(texts: Any) -> bytes:
    return packing.pack([None if text is None else Decimal(text) for text in texts])


def _texts(packed: bytes) -> list[str | None]:
    return [None if value is None else plain(value) for value in packing.unpack(packed)]
