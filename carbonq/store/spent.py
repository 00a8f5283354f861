"""What budgets have spent: cells counted from the ledger, window by window, and their sums. Grid times."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any

from sqlalchemy import and_, delete, func, insert, select

from carbonq.budget import Book, Line, Spent
from carbonq.model import EntryKind, RateStatus
from carbonq.store.database import Tx
from carbonq.store.dialect import exact_sum, is_any_of, read_exact_sum
from carbonq.store.ledger import is_current
from carbonq.store.tables import budget_cells, budget_totals, clocks, engine_batches, entries

#: The gram column and status column of each book.
COLUMNS: Mapping[Book, tuple[str, str]] = {
    Book.IMPACT: ("emission_g", "moer_status"),
    Book.INVENTORY: ("inventory_g", "aer_status"),
}

#: What was counted, by window, by whose it is, and by book.
Counted = Mapping[datetime, Mapping[Line, Mapping[Book, Spent]]]


def count(tx: Tx, tenants: Collection[str], windows: Collection[datetime]) -> Counted:
    """Add up the current entries of items of some tenants in some windows, of the running clock's kind only."""
    made: dict[datetime, dict[Line, dict[Book, Spent]]] = {}
    if not tenants or not windows:
        return made
    kind = select(clocks.c.kind).where(clocks.c.clock_id == 1).scalar_subquery()
    is_same = and_(
        engine_batches.c.engine_batch_id == entries.c.engine_batch_id, engine_batches.c.part == entries.c.part
    )
    keys = [engine_batches.c.window_at, *(entries.c[name] for name in Line._fields)]
    keys += [entries.c[status] for _, status in COLUMNS.values()]
    sums = [exact_sum(tx, entries.c[grams]) for grams, _ in COLUMNS.values()]
    missing = [func.count() - func.count(entries.c[grams]) for grams, _ in COLUMNS.values()]
    statement = (
        select(*keys, *missing, *(piece for pieces in sums for piece in pieces))
        .select_from(engine_batches.join(entries, is_same))
        .where(
            engine_batches.c.window_at.in_(sorted(windows)),
            engine_batches.c.clock == kind,
            entries.c.kind == EntryKind.ITEM.value,
            is_any_of(tx, entries.c.tenant, sorted(tenants)),
            is_current(),
        )
        .group_by(*keys)
    )
    for row in tx.execute(statement):
        values = list(row)
        window_at, line, at = values[0], Line(*values[1:4]), 8
        cell = made.setdefault(window_at, {}).setdefault(line, {})
        for number, (book, pieces) in enumerate(zip(COLUMNS, sums, strict=True)):
            grams = read_exact_sum(values[at : at + len(pieces)]) or Decimal(0)
            at += len(pieces)
            is_provisional = values[4 + number] == RateStatus.PROVISIONAL.value
            one = Spent(grams, grams if is_provisional else Decimal(0), int(values[6 + number]))
            cell[book] = cell.get(book, Spent()).plus(one)
    return made


def cells(tx: Tx, budget_ids: Collection[str], windows: Collection[datetime]) -> dict[tuple[str, datetime], Spent]:
    """Return what is kept of some windows of some budgets."""
    mine = budget_cells.c
    statement = select(mine.budget_id, mine.window_at, mine.spent_g, mine.provisional_g, mine.unknown).where(
        is_any_of(tx, mine.budget_id, sorted(budget_ids)), mine.window_at.in_(sorted(windows))
    )
    return {(row[0], row[1]): Spent(*row[2:]) for row in tx.execute(statement)}


def put_cells(tx: Tx, found: Mapping[tuple[str, datetime], Spent]) -> None:
    """Keep what was counted of some windows in place of what was kept before; nothing at all is no row."""
    mine = budget_cells.c
    by_window: defaultdict[datetime, list[str]] = defaultdict(list)
    for budget_id, at in sorted(found):
        by_window[at].append(budget_id)
    for at, budget_ids in sorted(by_window.items()):
        tx.execute(delete(budget_cells).where(mine.window_at == at, is_any_of(tx, mine.budget_id, budget_ids)))
    rows = [
        {"budget_id": budget_id, "window_at": at, **_values(one)}
        for (budget_id, at), one in sorted(found.items())
        if one != Spent()
    ]
    if rows:
        tx.execute(insert(budget_cells), rows)


def totals(tx: Tx, budget_ids: Collection[str]) -> dict[str, tuple[datetime, Spent]]:
    """Return the kept sums of some budgets, with when the period began that each is of."""
    mine = budget_totals.c
    statement = select(mine.budget_id, mine.started_at, mine.spent_g, mine.provisional_g, mine.unknown)
    rows = tx.execute(statement.where(is_any_of(tx, mine.budget_id, sorted(budget_ids))))
    return {row[0]: (row[1], Spent(*row[2:])) for row in rows}


def put_totals(tx: Tx, started_at: datetime, found: Mapping[str, Spent]) -> None:
    """Keep the sums of budgets' cells, of the periods that began then."""
    if not found:
        return
    tx.execute(delete(budget_totals).where(is_any_of(tx, budget_totals.c.budget_id, sorted(found))))
    rows = [{"budget_id": name, "started_at": started_at, **_values(one)} for name, one in sorted(found.items())]
    tx.execute(insert(budget_totals), rows)


def forget(tx: Tx, budget_id: str, *, before: datetime | None = None) -> None:
    """Forget what is kept of a budget: all of it, or cells of windows before a time."""
    mine = budget_cells.c
    old = () if before is None else (mine.window_at < before,)
    tx.execute(delete(budget_cells).where(mine.budget_id == budget_id, *old))
    if before is None:
        tx.execute(delete(budget_totals).where(budget_totals.c.budget_id == budget_id))


def _values(one: Spent) -> dict[str, Any]:
    return {"spent_g": one.spent_g, "provisional_g": one.provisional_g, "unknown": one.unknown}
