"""The ledger's tables: bookings in, current entries and revisions, and whole engine batches out for the export."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from sqlalchemy import ColumnElement, Table, and_, delete, or_, select

from carbonq.booking import Booking
from carbonq.model import Signal
from carbonq.ratebook import Row
from carbonq.store.database import Tx
from carbonq.store.dialect import insert_columns, is_any_of, machine_now
from carbonq.store.tables import engine_batches, entries, facts, rates, regions, unsettled

#: Parts of engine batches taken at once; realtime ones hold one entry each.
_MAX_PARTS = 200


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
    _insert(tx, entries, [row for booking in bookings for row in booking.entries], stamp)
    _insert(tx, unsettled, [row for booking in bookings for row in booking.awaited])


def is_any_stored(tx: Tx, own: Sequence[Row]) -> bool:
    """Say whether any of these first revisions is stored as this recorder made it.

    Ids of entries come from their engine batch: what the reaper booked of the same one has the same id.
    """
    mine = {(row["entry_id"], row["recorded_by"]) for row in own}
    is_one = is_any_of(tx, entries.c.entry_id, sorted({entry_id for entry_id, _ in mine}))
    found = select(entries.c.entry_id, entries.c.recorded_by).where(is_one, entries.c.revision == 1)
    return any((row.entry_id, row.recorded_by) in mine for row in tx.execute(found))


def append_revisions(tx: Tx, new_rates: Sequence[Row], revisions: Sequence[Row]) -> None:
    """Append later revisions of entries and the rates they refer to; a revision that is there already stays."""
    _insert(tx, rates, _once(new_rates, "rate_id"))
    _insert(tx, entries, revisions)


def awaited_pairs(tx: Tx) -> list[tuple[Signal, str]]:
    """Return the (signal, zone) pairs that entries wait for, by hopping through the index."""
    pairs: list[tuple[Signal, str]] = []
    key = (unsettled.c.signal, unsettled.c.zone)
    after: tuple[str, str] = ("", "")
    while True:
        # Written out: SQLite does not use the index for a comparison of rows.
        beyond = or_(key[0] > after[0], and_(key[0] == after[0], key[1] > after[1]))
        row = tx.execute(select(*key).where(beyond).order_by(*key).limit(1)).one_or_none()
        if row is None:
            return pairs
        after = (row.signal, row.zone)
        pairs.append((Signal(row.signal), row.zone))


def awaited_windows(
    tx: Tx, signal: Signal, zone: str, *, after: datetime | None, before: datetime, limit: int
) -> list[datetime]:
    """Return windows between two times for which entries wait for a rate, oldest first."""
    at = unsettled.c.window_at
    terms = [unsettled.c.signal == signal.value, unsettled.c.zone == zone, at < before]
    if after is not None:
        terms.append(at > after)
    return list(tx.execute(select(at).where(*terms).distinct().order_by(at).limit(limit)).scalars())


def waiting_parts(
    tx: Tx, signal: Signal, zone: str, windows: Sequence[datetime], *, max_entries: int
) -> list[tuple[str, int]]:
    """Return (engine batch, part) that wait for any of these windows: one, or more up to ``max_entries`` entries."""
    terms = (unsettled.c.signal == signal.value, unsettled.c.zone == zone, unsettled.c.window_at.in_(windows))
    is_same = and_(
        engine_batches.c.engine_batch_id == unsettled.c.engine_batch_id, engine_batches.c.part == unsettled.c.part
    )
    found: dict[tuple[str, int], int] = {}
    rows = tx.execute(
        select(engine_batches.c.engine_batch_id, engine_batches.c.part, engine_batches.c["items"].label("count_"))
        .select_from(unsettled.join(engine_batches, is_same))
        .where(*terms)
        .limit(_MAX_PARTS)
    )
    for row in rows:
        if found and sum(found.values()) + row.count_ > max_entries:
            break
        found[row.engine_batch_id, row.part] = row.count_
    return list(found)


@dataclass(frozen=True, slots=True)
class WaitingPart:
    """One part of an engine batch that waits for rates: what it waits for, its PUE, and its current entries."""

    awaited: frozenset[tuple[Signal, str, datetime]]
    region: str
    pue: Decimal
    entries: list[Row]


def load_waiting(tx: Tx, parts: Sequence[tuple[str, int]]) -> dict[tuple[str, int], WaitingPart]:
    """Read the current entries of parts, and what they still wait for."""
    ids = sorted({engine_batch_id for engine_batch_id, _ in parts})
    awaited: dict[tuple[str, int], set[tuple[Signal, str, datetime]]] = {part: set() for part in parts}
    for row in tx.execute(select(unsettled).where(unsettled.c.engine_batch_id.in_(ids))):
        if (row.engine_batch_id, row.part) in awaited:
            awaited[row.engine_batch_id, row.part].add((Signal(row.signal), row.zone, row.window_at))
    current: dict[tuple[str, int], list[Row]] = {part: [] for part in parts}
    for row in tx.execute(select(entries).where(entries.c.engine_batch_id.in_(ids), is_current())).mappings():
        if (row["engine_batch_id"], row["part"]) in current:
            current[row["engine_batch_id"], row["part"]].append({str(name): value for name, value in row.items()})
    stated = select(engine_batches.c.engine_batch_id, engine_batches.c.part, engine_batches.c.region, facts.c.pue)
    stated = stated.join(facts, facts.c.fact_id == engine_batches.c.fact_id)
    found: dict[tuple[str, int], WaitingPart] = {}
    for row in tx.execute(stated.where(engine_batches.c.engine_batch_id.in_(ids))):
        part = (row.engine_batch_id, row.part)
        if part in current:
            found[part] = WaitingPart(frozenset(awaited[part]), row.region, row.pue, current[part])
    return found


def zones_of_rates(tx: Tx, wanted: Iterable[str]) -> dict[str, str]:
    """Return the zone of each stored rate id."""
    rows = tx.execute(select(rates.c.rate_id, rates.c.zone).where(rates.c.rate_id.in_(sorted(set(wanted)))))
    return {row.rate_id: row.zone for row in rows}


def zones_of_regions(tx: Tx) -> dict[str, str]:
    """Return the zone of each region that is or was configured."""
    return {row.region: row.zone for row in tx.execute(select(regions.c.region, regions.c.zone))}


def pues_of(tx: Tx, wanted: Iterable[str]) -> dict[str, Decimal]:
    """Return the PUE of each stored fact id."""
    rows = tx.execute(select(facts.c.fact_id, facts.c.pue).where(facts.c.fact_id.in_(sorted(set(wanted)))))
    return {row.fact_id: row.pue for row in rows}


def forget_awaited(tx: Tx, part: tuple[str, int], keys: Iterable[tuple[Signal, str, datetime]]) -> None:
    """Take rates off the work list of a part, once its entries have them."""
    for signal, zone, window_at in keys:
        tx.execute(
            delete(unsettled).where(
                unsettled.c.signal == signal.value,
                unsettled.c.zone == zone,
                unsettled.c.window_at == window_at,
                unsettled.c.engine_batch_id == part[0],
                unsettled.c.part == part[1],
            )
        )


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


def _processed(values: list[Any], process: Callable[[Any], Any]) -> list[Any]:
    # By identity: equal decimals may be written differently (1.2 and 1.20), and lists cannot be hashed.
    keys = list(map(id, values))
    done = {key: process(value) for key, value in dict(zip(keys, values, strict=True)).items()}
    return list(map(done.__getitem__, keys))
