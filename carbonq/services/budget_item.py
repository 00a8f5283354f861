"""What a single item is expected to emit at least; one that needs more than a whole cap never runs under it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from carbonq import estimate, tiers
from carbonq.budget import Action, Book, Budget, from_ug, to_ug
from carbonq.model import LatePolicy, Model, NewItem, NewJob
from carbonq.services.foreseen import HORIZON, Foreseen, Rates
from carbonq.units import WINDOW


@dataclass(frozen=True, slots=True)
class Expected:
    """An item with the micrograms that it is expected to emit, by book; None where no rate is known.

    ``asked`` is on the model asked for, ``lowest`` on that or the next smaller one, whichever emits less.
    """

    item: NewItem
    asked: Mapping[Book, int | None]
    lowest: Mapping[Book, int | None]

    def over(self, budget: Budget) -> Decimal | None:
        """Return the grams that it needs where these are more than the whole cap of a budget; else None."""
        found = (self.lowest if budget.action is Action.DOWNGRADE else self.asked)[budget.book]
        return None if found is None or from_ug(found) <= budget.cap_g else from_ug(found)


def expected(item: NewItem, request: NewJob, cells: Foreseen, models: Mapping[str, Model], now: datetime) -> Expected:
    """Return the least that an item can be expected to emit in any cell it may run in.

    These begin before the deadline; for a job that may run late they are all that is foreseen.
    """
    until = request.deadline_at
    if request.late_policy is LatePolicy.FINISH_LATE:
        until = max(until, now + HORIZON * WINDOW)
    asked = _ug(item, cells.best(request.model, request.regions, until))
    model = models.get(request.model)
    smaller = tiers.smaller_of(model, models, asked=request.may_downgrade)
    if model is None or smaller is None or not tiers.fits(item.est_tokens, model, smaller):
        return Expected(item, asked, asked)
    if not estimate.allowed_regions(cells.regions, request.regions, smaller.name):
        return Expected(item, asked, asked)
    found = _ug(item, cells.best(smaller.name, request.regions, until))
    return Expected(item, asked, {book: _lower(asked[book], found[book]) for book in Book})


def _ug(item: NewItem, rates: Rates) -> Mapping[Book, int | None]:
    return {book: None if rate is None else to_ug(item.est_tokens, rate) for book, rate in rates.items()}


def _lower(one: int | None, other: int | None) -> int | None:
    """Return the lower of two; None where one is not known, for that may be lower still."""
    return None if one is None or other is None else min(one, other)
