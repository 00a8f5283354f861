"""The ledger's tables: bookings in, current entries and revisions, and whole engine batches out for the export."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import chain
from typing import Any

from sqlalchemy import Table, and_, delete, or_, select, tuple_
from sqlalchemy.dialects import postgresql, sqlite

from carbonq.booking import Booking
from carbonq.model import Signal
from carbonq.ratebook import Row
from carbonq.store.database import Tx
from carbonq.store.tables import engine_batches, entries, facts, rates, unsettled


def insert_booking(tx: Tx, booking: Booking) -> None:
    """Store a booking; one that is stored already stays as it is, so that a replayed spool is harmless."""
    insert_bookings(tx, [booking])


def insert_bookings(tx: Tx, bookings: Sequence[Booking]) -> None:
    """Store many bookings in few statements; idempotent like ``insert_booking``."""
    _insert(tx, facts, _once((row for booking in bookings for row in booking.facts), "fact_id"))
    _insert(tx, rates, _once((row for booking in bookings for row in booking.rates), "rate_id"))
    _insert(tx, engine_batches, [row for booking in bookings for row in booking.engine_batches])
    _insert(tx, entries, [row for booking in bookings for row in booking.entries])
    _insert(tx, unsettled, [row for booking in bookings for row in booking.awaited])


def _once(rows: Iterable[Row], key: str) -> list[Row]:
    return list({row[key]: row for row in rows}.values())


def _insert(tx: Tx, table: Table, rows: Sequence[Row]) -> None:
    """Insert rows, leaving alone those whose primary key is there."""
    if not rows:
        return
    if tx.dialect.name == "postgresql":
        tx.execute(postgresql.insert(table).on_conflict_do_nothing(), rows)
        return
    # The ledger's rows are wide and many: one conversion for each distinct time, and no parameter dictionaries,
    # triple the rate of an ordinary executemany.
    names = list(rows[0])
    columns = [[row[name] for row in rows] for name in names]
    for index, name in enumerate(names):
        process = table.c[name].type.dialect_impl(tx.dialect).bind_processor(tx.dialect)
        if process is not None:
            columns[index] = _processed(columns[index], process)
    marks = ", ".join("?" * len(names))
    quoted = ", ".join(f'"{name}"' for name in names)
    statement = f"INSERT INTO {table.name} ({quoted}) VALUES ({marks}) ON CONFLICT DO NOTHING"
    tx.exec_driver_sql(statement, list(zip(*columns, strict=True)))


def _processed(values: list[Any], process: Callable[[Any], Any]) -> list[Any]:
    # By identity: equal decimals may be written differently (1.2 and 1.20), and lists cannot be hashed.
    keys = list(map(id, values))
    done = {key: process(value) for key, value in dict(zip(keys, values, strict=True)).items()}
    return list(map(done.__getitem__, keys))
