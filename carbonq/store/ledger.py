"""The ledger's tables: bookings in, current entries and revisions, and whole engine batches out for the export."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Table, select

from carbonq.booking import Booking, Entries
from carbonq.model import Rate, RateKind, Signal
from carbonq.ratebook import Row
from carbonq.store import marks
from carbonq.store.database import Tx
from carbonq.store.dialect import insert_columns, is_any_of, machine_now
from carbonq.store.tables import engine_batches, entries, facts, rates, regions, unsettled
from carbonq.units import grams_text


def insert_booking(tx: Tx, booking: Booking) -> None:
    """Store a booking; one that is stored already stays as it is, so that a replayed spool is harmless."""
    insert_bookings(tx, [booking])


def record_bookings(tx: Tx, bookings: Sequence[Booking]) -> None:
    """Store bookings as recorded now, by the database's clock.

    A process may have been frozen, or the database away, since they were booked: a report as of a time in between must
    not change any more.
    """
    if bookings:
        insert_bookings(tx, bookings, recorded_at=machine_now(tx))


def insert_bookings(tx: Tx, bookings: Sequence[Booking], *, recorded_at: datetime | None = None) -> None:
    """Store many bookings in few statements; idempotent like ``insert_booking``.

    They are recorded when they say, or at ``recorded_at`` (machine time).
    """
    stamp = {} if recorded_at is None else {"recorded_at": recorded_at}
    _insert(tx, facts, _once((row for booking in bookings for row in booking.facts), "fact_id"))
    _insert(tx, rates, _once((row for booking in bookings for row in booking.rates), "rate_id"))
    _insert(tx, engine_batches, [row for booking in bookings for row in booking.engine_batches])
    _insert_entries(tx, [booking.entries for booking in bookings], stamp)
    _insert(tx, unsettled, [row for booking in bookings for row in booking.awaited])
    marks.mark_booked(tx, bookings)


def is_any_stored(tx: Tx, own: Sequence[Row]) -> bool:
    """Say whether any of these first revisions is stored as this recorder made it.

    Ids of entries come from their engine batch: what the reaper booked of the same one has the same id.
    """
    mine = {(row["entry_id"], row["recorded_by"]) for row in own}
    is_one = is_any_of(tx, entries.c.entry_id, sorted({entry_id for entry_id, _ in mine}))
    found = select(entries.c.entry_id, entries.c.recorded_by).where(is_one, entries.c.revision == 1)
    return any((row.entry_id, row.recorded_by) in mine for row in tx.execute(found))


def append_revisions(tx: Tx, new_rates: Sequence[Row], revisions: Sequence[Row]) -> None:
    """Append single later revisions and the rates they refer to; many at once: ``store/revisions.py``.

    A revision that is there already stays.
    """
    insert_rates(tx, new_rates)
    _insert(tx, entries, revisions)
    marks.mark_rows(tx, revisions)


def insert_rates(tx: Tx, new: Sequence[Row]) -> None:
    """Store rates that revisions are to refer to; those that are there stay."""
    _insert(tx, rates, _once(new, "rate_id"))


def rates_of(tx: Tx, wanted: Iterable[str]) -> dict[str, Rate]:
    """Return stored rates by id."""
    found: dict[str, Rate] = {}
    for row in tx.execute(select(rates).where(is_any_of(tx, rates.c.rate_id, sorted(set(wanted))))).mappings():
        values: dict[str, Any] = {str(name): value for name, value in row.items()}
        values["signal"], values["kind"] = Signal(row["signal"]), RateKind(row["kind"])
        found[row["rate_id"]] = Rate(**values)
    return found


def zones_of_regions(tx: Tx) -> dict[str, str]:
    """Return the zone of each region that is or was configured."""
    return {row.region: row.zone for row in tx.execute(select(regions.c.region, regions.c.zone))}


def is_current(*, as_of: datetime | None = None) -> ColumnElement[bool]:
    """Return the condition that an entry has no later revision, or had none at a machine time."""
    newer = entries.alias("newer")
    terms = [newer.c.entry_id == entries.c.entry_id, newer.c.revision == entries.c.revision + 1]
    if as_of is not None:
        terms.append(newer.c.recorded_at <= as_of)
    return ~(select(newer.c.revision).where(*terms).exists())


def _once(rows: Iterable[Row], key: str) -> list[Row]:
    # In one order everywhere: two transactions that add the same new rows in different orders lock each other out.
    return [row for _, row in sorted({row[key]: row for row in rows}.items())]


def _insert_entries(tx: Tx, booked: Sequence[Sequence[Row]], stamp: Row) -> None:
    """Insert bookings' entries by column, without a row for each; rows that came from a spool as rows."""
    _insert(tx, entries, [row for some in booked if not isinstance(some, Entries) for row in some], stamp)
    blocks = [block for some in booked if isinstance(some, Entries) for block in some.blocks if block.count]
    if not blocks:
        return
    columns: dict[str, list[Any]] = {}
    for name, column in entries.c.items():
        process = column.type.dialect_impl(tx.dialect).bind_processor(tx.dialect)
        written = columns[name] = list[Any]()
        for block in blocks:
            if name in block.quanta:
                written += [None if count is None else grams_text(count) for count in block.quanta[name]]
            elif name in stamp or name in block.shared:
                value = stamp[name] if name in stamp else block.shared[name]
                written += [value if process is None else process(value)] * block.count
            else:
                values = block.own[name]
                written += values if process is None else _processed(values, process)
    insert_columns(tx, entries, columns, skip_existing=True)


def _insert(tx: Tx, table: Table, rows: Sequence[Row], stamp: Row | None = None) -> None:
    """Insert rows, leaving alone those whose primary key is there; columns of ``stamp`` are the same in all."""
    if not rows:
        return
    # The ledger's rows are wide and many: by column there is one conversion for each distinct value.
    columns: dict[str, list[Any]] = {}
    for name in rows[0]:
        values = [stamp[name]] * len(rows) if stamp and name in stamp else [row[name] for row in rows]
        process = table.c[name].type.dialect_impl(tx.dialect).bind_processor(tx.dialect)
        columns[name] = values if process is None else _processed(values, process)
    insert_columns(tx, table, columns, skip_existing=True)


def _processed(values: Sequence[Any], process: Callable[[Any], Any]) -> list[Any]:
    # By identity: equal decimals may be written differently (1.2 and 1.20), and lists cannot be hashed.
    keys = list(map(id, values))
    done = {key: process(value) for key, value in dict(zip(keys, values, strict=True)).items()}
    return list(map(done.__getitem__, keys))
