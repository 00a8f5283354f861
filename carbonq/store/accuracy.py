"""Which provisional rates settled as which: pairs of rates with the energy that was booked by them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Select, and_, bindparam, func, select

from carbonq.model import EntryReason, Rate, RateStatus
from carbonq.store import compute, ledger
from carbonq.store.database import Tx
from carbonq.store.revisions import BOOKS
from carbonq.store.tables import engine_batches, entries
from carbonq.units import WINDOW

#: What one query covers: what it groups by is sorted in memory.
STEP = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Pair:
    """A provisional rate and the one that took its place in ``entries`` revisions, with their energy in uJ."""

    book: str
    provisional: Rate
    settled: Rate
    entries: int
    energy_uj: int


def pairs(
    tx: Tx,
    *,
    start_at: datetime | None,
    end_at: datetime | None,
    tenant: str | None = None,
    clock: str | None = None,
    as_of: datetime | None = None,
) -> list[Pair]:
    """Return what settled of windows ``[start_at, end_at)`` of entries; None means no bound.

    ``tenant`` None: of all; ``clock`` None: whatever clock they ran on; ``as_of`` is machine time: what had settled
    until then.
    """
    statement = _statement(tx, tenant, clock, as_of)
    sums: dict[tuple[str, str, str], list[int]] = {}
    for first, last in _steps(tx, start_at, end_at):
        for row in tx.execute(statement, {"start_at": first, "end_at": last}):
            values: list[Any] = list(row)
            for number, book in enumerate(BOOKS):
                old, old_status, new, new_status = values[4 * number : 4 * number + 4]
                if (old_status, new_status) == (RateStatus.PROVISIONAL.value, RateStatus.SETTLED.value):
                    known = sums.setdefault((book, old, new), [0, 0])
                    known[0] += int(values[-2])
                    known[1] += int(values[-1])
    rates = ledger.rates_of(tx, {rate_id for key in sums for rate_id in key[1:]})
    return [
        Pair(book, rates[old], rates[new], count, energy) for (book, old, new), (count, energy) in sorted(sums.items())
    ]


def _statement(tx: Tx, tenant: str | None, clock: str | None, as_of: datetime | None) -> Select[Any]:
    """Return what settled by the rates of all books: each book alone would read the same revisions again."""
    before = entries.alias("before")
    is_before = and_(before.c.entry_id == entries.c.entry_id, before.c.revision == entries.c.revision - 1)
    is_same = and_(
        engine_batches.c.engine_batch_id == entries.c.engine_batch_id, engine_batches.c.part == entries.c.part
    )
    kind = engine_batches.c.window_at.type
    terms = [
        engine_batches.c.window_at >= bindparam("start_at", type_=kind),
        engine_batches.c.window_at < bindparam("end_at", type_=kind),
        entries.c.reason == EntryReason.SETTLED.value,
    ]
    terms += [compute.unindexed(tx, entries.c.tenant) == tenant] if tenant is not None else []
    terms += [engine_batches.c.clock == clock] if clock is not None else []
    terms += [entries.c.recorded_at <= as_of] if as_of is not None else []
    keys = [
        side.c[name]
        for rate_id, status, _ in BOOKS.values()
        for side in (before, entries)
        for name in (rate_id, status)
    ]
    return (
        select(*keys, func.count(), func.coalesce(func.sum(entries.c.energy_uj), 0))
        .select_from(engine_batches.join(entries, is_same).join(before, is_before))
        .where(*terms)
        .group_by(*keys)
    )


def _steps(tx: Tx, start_at: datetime | None, end_at: datetime | None) -> Iterator[tuple[datetime, datetime]]:
    """Cut a span of windows into days; where it has no bound, to the first or last window there is."""
    windows = engine_batches.c.window_at
    if start_at is None:
        start_at = tx.execute(select(func.min(windows))).scalar()
    if end_at is None:
        last = tx.execute(select(func.max(windows))).scalar()
        end_at = None if last is None else last + WINDOW
    while start_at is not None and end_at is not None and start_at < end_at:
        yield start_at, min(start_at + STEP, end_at)
        start_at += STEP
