"""Which provisional rates settled as which: pairs of rates with the energy that was booked by them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import and_, func, select

from carbonq.model import EntryReason, Rate, RateStatus
from carbonq.store import ledger
from carbonq.store.database import Tx
from carbonq.store.revisions import BOOKS
from carbonq.store.tables import engine_batches, entries


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
    before = entries.alias("before")
    is_before = and_(before.c.entry_id == entries.c.entry_id, before.c.revision == entries.c.revision - 1)
    is_same = and_(
        engine_batches.c.engine_batch_id == entries.c.engine_batch_id, engine_batches.c.part == entries.c.part
    )
    span = [engine_batches.c.window_at >= start_at] if start_at is not None else []
    span += [engine_batches.c.window_at < end_at] if end_at is not None else []
    span += [entries.c.tenant == tenant] if tenant is not None else []
    span += [engine_batches.c.clock == clock] if clock is not None else []
    span += [entries.c.recorded_at <= as_of] if as_of is not None else []
    # One pass for all books: each alone would read the same revisions again.
    keys = [
        side.c[name]
        for rate_id, status, _ in BOOKS.values()
        for side in (before, entries)
        for name in (rate_id, status)
    ]
    statement = (
        select(*keys, func.count(), func.coalesce(func.sum(entries.c.energy_uj), 0))
        .select_from(engine_batches.join(entries, is_same).join(before, is_before))
        .where(entries.c.reason == EntryReason.SETTLED.value, *span)
        .group_by(*keys)
    )
    sums: dict[tuple[str, str, str], list[int]] = {}
    for row in tx.execute(statement):
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
