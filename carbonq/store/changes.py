"""Sum up what was recorded of the ledger after a moment: revisions less what they supersede, exactly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from sqlalchemy import Text, and_, cast, func, select

from carbonq.store.database import Tx
from carbonq.store.dialect import as_text, exact_sum, read_exact_sum
from carbonq.store.tables import engine_batches, entries

GRAMS: tuple[str, ...] = ("emission_g", "inventory_g", "embodied_g", "transfer_g", "baseline_g", "saved_g")


@dataclass(frozen=True, slots=True)
class Change:
    """Differences of sums, of one month of windows (``YYYY-MM``) and revisions that are alike in the rest.

    ``grams`` by column; None where neither the revisions nor what they supersede have the figure.
    """

    month: str
    clock: str
    kind: str
    quality: str
    reason: str
    restatement_id: str | None
    revisions: int
    energy_uj: int
    grams: Mapping[str, Decimal | None]


def since(
    tx: Tx, at: datetime, *, start_at: datetime | None, end_at: datetime, tenant: str | None = None
) -> list[Change]:
    """Return what was recorded after ``at`` (machine time) of windows ``[start_at, end_at)``, by month and reason."""
    before = entries.alias("before")
    month = func.substr(cast(as_text(tx, engine_batches.c.window_at), Text), 1, 7)
    key = (
        month.label("month"),
        engine_batches.c.clock,
        entries.c.kind,
        engine_batches.c.quality,
        entries.c.reason,
        entries.c.restatement_id,
    )
    terms = [entries.c.recorded_at > at, engine_batches.c.window_at < end_at]
    if start_at is not None:
        terms.append(engine_batches.c.window_at >= start_at)
    if tenant is not None:
        terms.append(entries.c.tenant == tenant)
    is_same = and_(
        engine_batches.c.engine_batch_id == entries.c.engine_batch_id, engine_batches.c.part == entries.c.part
    )
    is_before = and_(before.c.entry_id == entries.c.entry_id, before.c.revision == entries.c.revision - 1)
    sums = [exact_sum(tx, table.c[name]) for name in GRAMS for table in (entries, before)]
    energies = [func.coalesce(func.sum(table.c.energy_uj), 0) for table in (entries, before)]
    columns: list[Any] = [piece for pieces in sums for piece in pieces]
    source = engine_batches.join(entries, is_same).outerjoin(before, is_before)
    statement = select(*key, func.count(), *energies, *columns).select_from(source).where(*terms).group_by(*key)
    found = [_change(list(row), [len(pieces) for pieces in sums]) for row in tx.execute(statement)]
    return sorted(found, key=lambda one: (one.month, one.kind, one.reason, one.restatement_id or "", one.quality))


def _change(row: list[Any], widths: list[int]) -> Change:
    at = 9
    values: list[Decimal | None] = []
    for width in widths:
        values.append(read_exact_sum(row[at : at + width]))
        at += width
    grams = {name: _minus(values[2 * n], values[2 * n + 1]) for n, name in enumerate(GRAMS)}
    month, clock, kind, quality, reason, restatement_id, count, energy_uj, before_uj = row[:9]
    energy_uj = int(energy_uj) - int(before_uj)
    return Change(month, clock, kind, quality, reason, restatement_id, count, energy_uj, grams)


def _minus(after: Decimal | None, before: Decimal | None) -> Decimal | None:
    if after is None and before is None:
        return None
    return (after or Decimal(0)) - (before or Decimal(0))
