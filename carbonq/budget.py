"""Carbon budgets: what they are made of, and the rules of spending. Pure.

A budget caps the grams of one book (impact by default) over a period of grid time: a product line's month, a workload's
day, or a single item. Grams are gCO2e. Burn rate = (spent / cap) / (elapsed share of the period): at 1.0 the budget
lasts exactly as long as its period.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import NamedTuple


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

#: The actions that hold accepted work back until there is room.
HOLDING = frozenset({Action.QUEUE, Action.DOWNGRADE})

#: Picograms in a gram, and micrograms: what is expected is kept as whole picograms a token and summed as micrograms.
PG_PER_G, UG_PER_G = 10**12, 10**6
PG_PER_UG = PG_PER_G // UG_PER_G


class Line(NamedTuple):
    """Whose work it is, as far as budgets tell work apart."""

    tenant: str
    product_line: str | None
    workload: str | None


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

    @property
    def is_holding(self) -> bool:
        """Say whether accepted work waits where it does not fit."""
        return self.action in HOLDING

    def covers(self, line: Line) -> bool:
        """Say whether the budget is for work of a line."""
        if self.tenant != line.tenant:
            return False
        if self.level is Level.PRODUCT_LINE:
            return self.name == line.product_line
        return self.name == line.workload or (self.level is Level.ITEM and self.name == ALL)

    def period_at(self, at: datetime) -> tuple[datetime, datetime] | None:
        """Return when the period that holds a grid time begins and ends, UTC; None for items."""
        day = at.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        if self.period is Period.DAY:
            return day, day + timedelta(days=1)
        if self.period is Period.MONTH:
            first = day.replace(day=1)
            return first, (first + timedelta(days=32)).replace(day=1)
        return None


@dataclass(frozen=True, slots=True)
class BudgetStatus:
    """A budget as it stands in its running period; ``started_at`` and ``ends_at`` are grid times, None for items.

    ``spent_g`` is the ledger's; ``provisional_g`` the part of it that is not settled; ``reserved_g`` what accepted work
    that has not ended is expected to emit. ``unknown_entries`` have no rate yet and are in no sum. ``burn_rate`` and
    ``exhausted_at`` (grid time, at the present rate) are None where they cannot be told. ``waiting_chunks`` are held
    back by it. ``unknown_reserved`` counts chunks (and jobs not cut yet) of which no rate is known: what they will emit
    is in no sum. Of a budget of items only ``waiting_chunks`` means anything: it has no period to sum over.
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
    unknown_reserved: int = 0

    @property
    def left_g(self) -> Decimal:
        """What may still be reserved; below zero where more was spent than the cap."""
        return self.budget.cap_g - self.spent_g - self.reserved_g


def covering(budgets: Iterable[Budget], line: Line) -> list[Budget]:
    """Return the budgets that hold for work of a line, in the order of their ids: that in which they are locked."""
    return sorted((one for one in budgets if one.covers(line)), key=lambda one: one.budget_id)


@dataclass(frozen=True, slots=True)
class Spent:
    """What the ledger says of a period: grams, the provisional part of them, and entries without a rate."""

    spent_g: Decimal = Decimal(0)
    provisional_g: Decimal = Decimal(0)
    unknown: int = 0

    def plus(self, other: Spent) -> Spent:
        """Return both together."""
        return Spent(
            self.spent_g + other.spent_g, self.provisional_g + other.provisional_g, self.unknown + other.unknown
        )

    def less(self, other: Spent) -> Spent:
        """Return this without a part of it."""
        return Spent(
            self.spent_g - other.spent_g, self.provisional_g - other.provisional_g, self.unknown - other.unknown
        )


@dataclass(frozen=True, slots=True)
class Reserved:
    """What accepted work is expected to emit, in whole micrograms; ``unknown`` pieces have no known rate.

    ``waiting`` chunks are held back by the budget; what they need, ``waiting_ug``, is not in ``ug``.
    """

    ug: int = 0
    unknown: int = 0
    waiting: int = 0
    waiting_ug: int = 0

    def plus(self, other: Reserved) -> Reserved:
        """Return both together."""
        return Reserved(
            self.ug + other.ug,
            self.unknown + other.unknown,
            self.waiting + other.waiting,
            self.waiting_ug + other.waiting_ug,
        )

    @property
    def grams(self) -> Decimal:
        """Return the micrograms as grams."""
        return from_ug(self.ug)


def from_ug(micrograms: int) -> Decimal:
    """Return micrograms as grams, exactly."""
    return Decimal(micrograms) / UG_PER_G


def to_ug(tokens: int, pg_per_token: int) -> int:
    """Return what some tokens are expected to emit, in micrograms rounded up: never less than it is."""
    return -(-tokens * pg_per_token // PG_PER_UG)


def burn_rate(spent_g: Decimal, cap_g: Decimal, elapsed_share: float) -> float | None:
    """Return (spent / cap) / (elapsed share of the period); None at its very beginning."""
    return float(spent_g / cap_g) / elapsed_share if elapsed_share > 0 else None


def exhausted_at(spent_g: Decimal, cap_g: Decimal, start: datetime, end: datetime, now: datetime) -> datetime | None:
    """Return when the cap is spent at the rate so far; None where nothing was, or it lasts for the whole period."""
    elapsed = now - start
    if spent_g <= 0 or elapsed <= timedelta(0):
        return None
    needed_s = elapsed.total_seconds() * float(cap_g / spent_g)
    return start + timedelta(seconds=needed_s) if needed_s < (end - start).total_seconds() else None


def status_of(budget: Budget, now: datetime, spent: Spent, reserved: Reserved) -> BudgetStatus:
    """Return how a budget stands at a grid time."""
    period = budget.period_at(now)
    share = rate = at = None
    if period is not None:
        start, end = period
        share = (now - start) / (end - start)
        rate = burn_rate(spent.spent_g, budget.cap_g, share)
        at = exhausted_at(spent.spent_g, budget.cap_g, start, end, now)
    return BudgetStatus(
        budget=budget,
        started_at=None if period is None else period[0],
        ends_at=None if period is None else period[1],
        spent_g=spent.spent_g,
        provisional_g=spent.provisional_g,
        reserved_g=reserved.grams,
        unknown_entries=spent.unknown,
        elapsed_share=share,
        burn_rate=rate,
        exhausted_at=at,
        waiting_chunks=reserved.waiting,
        unknown_reserved=reserved.unknown,
    )
