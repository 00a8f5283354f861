"""What the tests of budgets share: budgets that are set, entries that are booked, a fresh sum over the ledger."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from carbonq.budget import Action, Book, Budget, Level
from carbonq.clock import ClockKind, GridClock
from carbonq.store import budgets, clocks, figures
from carbonq.store.database import Database
from carbonq.store.figures import Scope
from tests.unit.bookings import W0

MONTH = datetime(2026, 3, 1, tzinfo=UTC)
DAY = datetime(2026, 3, 2, tzinfo=UTC)


def set_clock(db: Database, kind: ClockKind = ClockKind.REAL) -> None:
    with db.write() as tx:
        clocks.ensure(tx, GridClock(MONTH, MONTH, 1.0, kind))


def budget(**changes: Any) -> Budget:
    values: dict[str, Any] = {
        "budget_id": "bgt_1",
        "tenant": "acme",
        "level": Level.PRODUCT_LINE,
        "name": "search",
        "book": Book.IMPACT,
        "action": Action.REJECT,
        "cap_g": Decimal(1),
        "created_at": W0,
        "updated_at": W0,
    }
    return Budget(**values | changes)


def put(db: Database, **changes: Any) -> Budget:
    with db.write() as tx:
        return budgets.put(tx, budget(**changes))


def ledger_g(db: Database, scope: Scope, column: str = "emission_g", status: str | None = None) -> Decimal:
    """The current entries of items in scope, added up anew."""
    with db.read() as tx:
        found = figures.groups(tx, scope)
    known = [one for one in found if one.kind == "item" and status in (None, one.moer_status)]
    return sum((getattr(one, column) or Decimal(0) for one in known), Decimal(0))
