"""How budgets stand: what they have spent, what is reserved of them, and what waits for them."""

from __future__ import annotations

from datetime import datetime

from carbonq.budget import BudgetStatus, status_of
from carbonq.services import budget_spent
from carbonq.store import budgets, reserved
from carbonq.store.database import Database
from carbonq.store.dialect import hold_still


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
    by_tenant = {name: [part for part in found if part.line.tenant == name] for name in {one.tenant for one in mine}}
    return [status_of(one, now, spent[one.budget_id], reserved.of(one, by_tenant[one.tenant], now)) for one in mine]
