"""Carbon budgets: what they are made of, and the rules of spending. Pure.

A budget caps the grams of one book (impact by default) over a period of grid time: a product line's month, a workload's
day, or a single item. Grams are gCO2e. Burn rate = (spent / cap) / (elapsed share of the period): at 1.0 the budget
lasts exactly as long as its period.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from enum import StrEnum


class Level(StrEnum):
    """What a budget is for, and so how long its period is: a month, a day, or one item."""

    PRODUCT_LINE = "product_line"
    WORKLOAD = "workload"
    ITEM = "item"


class Period(StrEnum):
    """How long a budget lasts, in UTC grid time; ``item``: each item by itself."""

    MONTH = "month"
    DAY = "day"
    ITEM = "item"


class Book(StrEnum):
    """Which of the two books a budget counts: marginal impact, or location-based inventory. Never both."""

    IMPACT = "impact"
    INVENTORY = "inventory"


class Action(StrEnum):
    """What happens to work that does not fit: it runs and is told of, waits, goes to a smaller model, or is refused."""

    WARN = "warn"
    QUEUE = "queue"
    DOWNGRADE = "downgrade"
    REJECT = "reject"


#: The period of each level.
PERIODS = {Level.PRODUCT_LINE: Period.MONTH, Level.WORKLOAD: Period.DAY, Level.ITEM: Period.ITEM}

#: ``name`` of an item budget that holds for all of a tenant's work.
ALL = "*"


@dataclass(frozen=True, slots=True)
class Budget:
    """What an owner has set. ``name`` is the product line or workload; of an item budget a workload, or ``ALL``."""

    budget_id: str
    tenant: str
    level: Level
    name: str
    book: Book
    action: Action
    cap_g: Decimal
    created_at: datetime
    updated_at: datetime

    @property
    def period(self) -> Period:
        """The period that the level has."""
        return PERIODS[self.level]


@dataclass(frozen=True, slots=True)
class BudgetStatus:
    """A budget as it stands in its running period; ``started_at`` and ``ends_at`` are grid times, None for items.

    ``spent_g`` is the ledger's; ``provisional_g`` the part of it that is not settled; ``reserved_g`` what accepted work
    that has not ended is expected to emit. ``unknown_entries`` have no rate yet and are in no sum. ``burn_rate`` and
    ``exhausted_at`` (grid time, at the present rate) are None where they cannot be told. ``waiting_chunks`` are held
    back by it.
    """

    budget: Budget
    started_at: datetime | None
    ends_at: datetime | None
    spent_g: Decimal
    provisional_g: Decimal
    reserved_g: Decimal
    unknown_entries: int
    elapsed_share: float | None
    burn_rate: float | None
    exhausted_at: datetime | None
    waiting_chunks: int = 0

    @property
    def left_g(self) -> Decimal:
        """What may still be reserved; below zero where more was spent than the cap."""
        return self.budget.cap_g - self.spent_g - self.reserved_g
