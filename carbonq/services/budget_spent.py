"""Keep what budgets have spent: count the windows whose entries changed, and say what was spent at any moment."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal

from carbonq.budget import Book, Budget, Level, Spent
from carbonq.store import budgets, marks, spent
from carbonq.store.database import Database, Tx
from carbonq.store.dialect import serialise
from carbonq.store.spent import Counted

#: Windows counted in one transaction: two hours' worth, so that SQLite's one lock is not held for long.
MAX_WINDOWS = 24

#: After so many machine seconds a tick leaves the rest to the next one.
TICK_S = 2.0


def fold(db: Database, now: datetime, *, tick_s: float = TICK_S) -> bool:
    """Count marked windows anew, the oldest first; True once nothing is marked. ``now`` is grid time.

    Two at once only wait for each other. Killed anywhere, the marks it has not taken away are there for the next one.
    Raises StoreUnavailable.
    """
    until_s = time.monotonic() + tick_s
    while True:
        with db.read() as tx:
            if not marks.has_marks(tx, until=now) and not budgets.uncounted(tx):
                return True
        with db.write() as tx:
            serialise(tx, "spent marks")
            _fold_some(tx, now)
        if time.monotonic() >= until_s:
            return False


def _fold_some(tx: Tx, now: datetime) -> None:
    new = budgets.uncounted(tx)
    windows, mark_ids = marks.marked_windows(tx, until=now, limit=MAX_WINDOWS)
    by_start: defaultdict[datetime, list[Budget]] = defaultdict(list)
    for one in budgets.list_(tx):
        period = one.period_at(now)
        if period is not None:
            by_start[period[0]].append(one)
    kept = spent.totals(tx, [one.budget_id for some in by_start.values() for one in some])
    counted = spent.count(tx, {one.tenant for some in by_start.values() for one in some}, windows)
    for start, some in by_start.items():
        mine = [at for at in windows if at >= start]
        if mine:
            _renew(tx, [one for one in some if _is_due(one, start, kept)], start, mine, counted)
    marks.take_marks(tx, mark_ids)
    if new:
        budgets.set_counted(tx, {name for name, tenant in new.items() if not marks.has_untold(tx, tenant, until=now)})


def _is_due(budget: Budget, start: datetime, kept: Mapping[str, tuple[datetime, Spent]]) -> bool:
    """Say whether a budget's sums are of this period or an earlier one, and not of one that began meanwhile."""
    return budget.budget_id not in kept or kept[budget.budget_id][0] <= start


def _renew(tx: Tx, mine: Sequence[Budget], start: datetime, windows: Sequence[datetime], counted: Counted) -> None:
    """Put what was counted into the cells and sums of budgets whose period began at ``start``."""
    ids = [one.budget_id for one in mine]
    kept = spent.totals(tx, ids)
    for budget_id in ids:
        if budget_id in kept and kept[budget_id][0] < start:
            spent.forget(tx, budget_id)
            del kept[budget_id]
    before = spent.cells(tx, ids, windows)
    cell_of = _cells(counted)
    found = {(one.budget_id, at): cell_of(one, at) for one in mine for at in windows}
    changed = {key: cell for key, cell in found.items() if cell != before.get(key, Spent())}
    spent.put_cells(tx, changed)
    totals: dict[str, Spent] = {}
    for budget_id in ids:
        total = kept[budget_id][1] if budget_id in kept else Spent()
        for at in windows:
            if (budget_id, at) in changed:
                total = total.plus(changed[budget_id, at]).less(before.get((budget_id, at), Spent()))
        if budget_id not in kept or total != kept[budget_id][1]:
            totals[budget_id] = total
    spent.put_totals(tx, start, totals)


def _cells(counted: Counted) -> Callable[[Budget, datetime], Spent]:
    """Return what gives a budget's part of what was counted of a window: O(counted + looks), with many budgets too."""
    sums: dict[tuple[datetime, str, Level, str | None, Book], Spent] = {}
    for at, by_line in counted.items():
        for line, by_book in by_line.items():
            for level, name in ((Level.PRODUCT_LINE, line.product_line), (Level.WORKLOAD, line.workload)):
                for book, one in by_book.items():
                    key = (at, line.tenant, level, name, book)
                    sums[key] = sums.get(key, Spent()).plus(one)

    def cell_of(budget: Budget, at: datetime) -> Spent:
        return sums.get((at, budget.tenant, budget.level, budget.name, budget.book), Spent())

    return cell_of


def of(tx: Tx, mine: Sequence[Budget], now: datetime) -> dict[str, Spent]:
    """Return what budgets have spent in the periods that hold ``now``: the kept sums, and marked windows counted anew.

    Exact in a transaction whose reads all see the same moment. Item budgets have spent nothing: they have no period.
    """
    if not mine:
        return {}
    ids = [one.budget_id for one in mine]
    tenants = {one.tenant for one in mine}
    windows = {mark.window_at for mark in marks.marks(tx, tenants)}
    kept = spent.totals(tx, ids)
    counted = spent.count(tx, tenants, windows)
    before = spent.cells(tx, ids, windows) if windows else {}
    cell_of = _cells(counted)
    found: dict[str, Spent] = {}
    for one in mine:
        period = one.period_at(now)
        found[one.budget_id] = Spent()
        if period is None:
            continue
        start, end = period
        is_running = one.budget_id in kept and kept[one.budget_id][0] == start
        total = kept[one.budget_id][1] if is_running else Spent()
        for at in windows:
            if start <= at < end:
                total = total.plus(cell_of(one, at))
                total = total.less(before.get((one.budget_id, at), Spent()) if is_running else Spent())
        found[one.budget_id] = total
    return found


def at_least(tx: Tx, mine: Sequence[Budget], now: datetime) -> dict[str, Decimal]:
    """Return what budgets have spent without counting windows anew, where that was done once: for reservations.

    Entries that are not counted yet are in it as they were booked; one that was booked twice counts twice until then.
    """
    new = budgets.uncounted(tx)
    counted = {name: one.spent_g for name, one in of(tx, [one for one in mine if one.budget_id in new], now).items()}
    rest = [one for one in mine if one.budget_id not in counted]
    # Before the sums: a mark that is counted and taken away in between is counted twice rather than never.
    pending = marks.marks(tx, {one.tenant for one in rest}) if rest else []
    kept = spent.totals(tx, [one.budget_id for one in rest]) if rest else {}
    for one in rest:
        period = one.period_at(now)
        assert period is not None
        start, end = period
        found = [
            grams
            for mark in pending
            if start <= mark.window_at < end and one.covers(mark.line)
            if (grams := mark.grams(one.book)) is not None
        ]
        started_at, total = kept.get(one.budget_id, (start, Spent()))
        counted[one.budget_id] = sum(found, total.spent_g if started_at == start else Decimal(0))
    return counted
