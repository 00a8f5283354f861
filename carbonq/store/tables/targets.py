"""Tables of contract targets: the promises, what ran and what is accepted toward them, and what was told of them."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Boolean, Column, Index, Table, Text, UniqueConstraint

from carbonq.store.dialect import BigKey, ExactDecimal, UtcDateTime
from carbonq.store.tables.metadata import metadata

targets = Table(
    "targets",
    metadata,
    Column("target_id", Text, primary_key=True),
    Column("tenant", Text, nullable=False),
    Column("model", Text, nullable=False),  # *: all
    Column("book", Text, nullable=False),
    Column("g_per_1k_tokens", ExactDecimal, nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    Column("updated_at", UtcDateTime, nullable=False),
    UniqueConstraint("tenant", "model"),
)


def _sums() -> tuple[Column[Any], ...]:
    """Return the sums by book; ``tokens`` are of entries that have a rate, ``unknown`` counts those that have none."""
    return tuple(
        column
        for book in ("emission", "inventory")
        for column in (
            Column(f"{book}_g", ExactDecimal, nullable=False),
            Column(f"{book}_provisional_g", ExactDecimal, nullable=False),
            Column(f"{book}_tokens", BigInteger, nullable=False),
            Column(f"{book}_unknown", BigInteger, nullable=False),
            Column(f"{book}_unknown_tokens", BigInteger, nullable=False),
        )
    )


target_hours = Table(  # sums of current item entries, of tenants with targets; the ledger itself says the same
    "target_hours",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("hour_at", UtcDateTime, primary_key=True),
    Column("model", Text, primary_key=True),  # the one that ran
    *_sums(),
    Index("ix_target_hours_hour_at", "hour_at"),
)

target_days = Table(  # sums of the hours of each UTC day: what looks read
    "target_days",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("day_at", UtcDateTime, primary_key=True),
    Column("model", Text, primary_key=True),
    *_sums(),
    Index("ix_target_days_day_at", "day_at"),
)

target_marks = Table(  # hours whose sums are to be taken anew; triggers on engine_batches and entries write here
    "target_marks",
    metadata,
    Column("mark_id", BigKey, primary_key=True),
    Column("hour_at", UtcDateTime, nullable=False),
    Column("is_taken", Boolean, nullable=False),  # somebody reads the hour: what is written from now on needs another
    Index("ix_target_marks_hour_at", "hour_at"),
)

target_ahead = Table(  # accepted work of tenants with targets that has not ended, as it was counted last; estimated
    "target_ahead",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("model", Text, primary_key=True),
    Column("tokens", BigInteger, nullable=False),
    Column("emission_tokens", BigInteger, nullable=False),  # of ``tokens`` those whose emission is foreseen
    Column("emission_g", ExactDecimal, nullable=False),
    Column("inventory_tokens", BigInteger, nullable=False),
    Column("inventory_g", ExactDecimal, nullable=False),
)

target_alarms = Table(  # what was told of each month; grid times
    "target_alarms",
    metadata,
    Column("target_id", Text, primary_key=True),
    Column("month_at", UtcDateTime, primary_key=True),
    Column("kind", Text, primary_key=True),
    Column("at", UtcDateTime, nullable=False),
)
