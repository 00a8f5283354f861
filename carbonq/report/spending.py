"""Actual against budget: product lines by month, workloads by day, from the ledger itself. Pure.

Budgets are taken as they are set now, whatever they were in the month. Only items count, by what their jobs named.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal

from carbonq.budget import Book, Budget, Level
from carbonq.report.document import BudgetRow, Grams
from carbonq.report.gather import Owner, Statuses
from carbonq.report.sums import Books, Sums

_Days = dict[str, Books]


def product_lines(
    sums: Iterable[tuple[tuple[Owner, Statuses], Sums]], budgets: Iterable[Budget]
) -> tuple[BudgetRow, ...]:
    """Return each product line's month beside its budget; those without work but with a budget too."""
    return _rows(sums, [one for one in budgets if one.level is Level.PRODUCT_LINE])


def workloads(sums: Iterable[tuple[tuple[Owner, Statuses], Sums]], budgets: Iterable[Budget]) -> tuple[BudgetRow, ...]:
    """Return each workload's days beside its budget for one; those without work but with a budget too."""
    return _rows(sums, [one for one in budgets if one.level is Level.WORKLOAD])


def _rows(sums: Iterable[tuple[tuple[Owner, Statuses], Sums]], budgets: list[Budget]) -> tuple[BudgetRow, ...]:
    found: dict[tuple[str | None, str | None], _Days] = {}
    for (owner, statuses), some in sums:
        days = found.setdefault((owner.tenant, owner.name), {})
        days.setdefault(owner.day, Books()).add(*statuses, some)
    caps: Mapping[tuple[str | None, str | None], Budget] = {(one.tenant, one.name): one for one in budgets}
    keys = sorted(found.keys() | caps.keys(), key=lambda key: tuple((value is None, value or "") for value in key))
    return tuple(_row(key, found.get(key, {}), caps.get(key)) for key in keys)


def _row(key: tuple[str | None, str | None], days: _Days, budget: Budget | None) -> BudgetRow:
    whole = Books()
    for books in days.values():
        whole.include(books)
    book = Book.IMPACT if budget is None else budget.book
    by_day = {day: known for day, books in days.items() if (known := _of(book, books).known_g) is not None}
    worst = max(by_day, key=lambda day: (by_day[day], day), default=None)
    sums, spent_g, share, days_over = whole.sums, None, None, None
    if budget is not None:
        # Where nothing ran, nothing was spent: that is known.
        spent_g = _of(book, whole).known_g if days else Decimal(0)
        if budget.level is Level.PRODUCT_LINE:
            share = None if spent_g is None or not budget.cap_g else float(spent_g / budget.cap_g)
        else:
            days_over = sum(known > budget.cap_g for known in by_day.values())
    return BudgetRow(
        tenant=key[0],
        name=key[1],
        items=sums.items,
        tokens=sums.tokens,
        energy_uj=sums.energy_uj,
        impact=whole.impact,
        inventory=whole.inventory,
        book=None if budget is None else budget.book.value,
        action=None if budget is None else budget.action.value,
        cap_g=None if budget is None else budget.cap_g,
        spent_g=spent_g,
        used_share=share,
        days=len(days),
        days_over=days_over,
        worst_day=worst,
        worst_day_g=None if worst is None else by_day[worst],
    )


def _of(book: Book, books: Books) -> Grams:
    return books.impact if book is Book.IMPACT else books.inventory
