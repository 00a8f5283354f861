"""How budgets stand: what they have spent, what is reserved of them, and what waits for them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime

from carbonq.budget import Budget, BudgetStatus, Level, status_of
from carbonq.services import budget_spent
from carbonq.store import budgets, reserved
from carbonq.store.database import Database
from carbonq.store.dialect import hold_still
from carbonq.store.reserved import Part


def statuses(db: Database, now: datetime, tenant: str | None = None) -> list[BudgetStatus]:
    """Return a tenant's budgets (None: everybody's) as they stand at grid time ``now``, by tenant, level and name.

    All figures are of one moment. Raises StoreUnavailable.
    """
    with db.read() as tx:
        hold_still(tx)
        mine = budgets.list_(tx, tenant)
        if not mine:
            return []
        spent = budget_spent.of(tx, mine, now)
        found = reserved.parts(tx, {one.tenant for one in mine})
    work = _by_budget(found)
    return [status_of(one, now, spent[one.budget_id], reserved.of(one, work(one), now)) for one in mine]


def _by_budget(found: Iterable[Part]) -> Callable[[Budget], Sequence[Part]]:
    """Return what gives the open work that concerns a budget: O(parts + budgets), with a thousand of each too."""
    by_name: defaultdict[tuple[str, Level, str | None], list[Part]] = defaultdict(list)
    by_holder: defaultdict[str | None, list[Part]] = defaultdict(list)
    for part in found:
        by_name[part.line.tenant, Level.PRODUCT_LINE, part.line.product_line].append(part)
        by_name[part.line.tenant, Level.WORKLOAD, part.line.workload].append(part)
        by_holder[part.held_by].append(part)

    def concerned(one: Budget) -> Sequence[Part]:
        # Of items only what is held back counts.
        return by_holder[one.budget_id] if one.level is Level.ITEM else by_name[one.tenant, one.level, one.name]

    return concerned
