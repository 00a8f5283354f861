"""What hosts must agree on, what they said when they registered, and which older code may still run."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from carbonq.store.dialect import Json, UtcDateTime

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.create_table(
        "installation",
        sa.Column("installation_id", sa.Integer, nullable=False),
        sa.Column("settings", Json, nullable=False),
        sa.Column("settings_digest", sa.Text, nullable=False),
        sa.Column("software_version", sa.Text, nullable=False),
        sa.Column("updated_at", UtcDateTime, nullable=False),
        sa.PrimaryKeyConstraint("installation_id", name="pk_installation"),
    )
    floor = op.create_table(
        "schema_floor",
        sa.Column("floor_id", sa.Integer, nullable=False),
        sa.Column("revision", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("floor_id", name="pk_schema_floor"),
    )
    op.bulk_insert(floor, [{"floor_id": 1, "revision": revision}])
    op.add_column("workers", sa.Column("settings_digest", sa.Text))
    op.add_column("workers", sa.Column("clock_offset_s", sa.Float))
    op.add_column("workers", sa.Column("gpus", Json))


def downgrade() -> None:
    for column in ("gpus", "clock_offset_s", "settings_digest"):
        op.drop_column("workers", column)
    op.drop_table("schema_floor")
    op.drop_table("installation")
