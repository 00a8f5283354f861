"""Reserve of budgets what a plan places, in the transaction of the placements and in the order of deadlines.

What does not fit a budget that holds work back keeps the place it has, or waits for the budget where it has none. What
was reserved by a guess is reserved by the planned cell from then on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import ROUND_DOWN, Context, Decimal

from carbonq.budget import PG_PER_G, Book, Budget, Level, Line, covering, from_ug, to_ug
from carbonq.model import Signal
from carbonq.plan.outlook import Outlook
from carbonq.services import budget_spent, foreseen
from carbonq.services.foreseen import SIGNALS, Foreseen, Rates
from carbonq.services.outlook import load_outlook
from carbonq.services.work import World
from carbonq.store import budgets, held, placements, reserved
from carbonq.store.database import Database, Tx
from carbonq.store.held import Chunk
from carbonq.store.placements import Placed
from carbonq.store.reserved import Part

_DIGITS = Context(prec=2, rounding=ROUND_DOWN)


@dataclass(frozen=True, slots=True)
class Guard:
    """What a round of planning asks budgets with; ``found`` may be empty where only targets want to know."""

    found: Sequence[Budget]
    cells: Foreseen
    now: datetime

    def admit(self, tx: Tx, placed: Placed) -> Placed:
        """Return the placements that budgets have room for, with what is expected of each; hold the others back.

        O(open chunks of the tenants whose budgets hold work back) once, then O(placements).
        """
        if not placed:
            return placed
        there = {one.chunk_id: one for one in held.among(tx, placed.chunk_id)}
        rates = [
            self.cells.at(there[chunk_id].model, region, window_at) if chunk_id in there else foreseen.UNKNOWN
            for chunk_id, region, window_at in zip(placed.chunk_id, placed.region, placed.window_at, strict=True)
        ]
        placed.impact_pg[:] = [one[Book.IMPACT] for one in rates]
        placed.inventory_pg[:] = [one[Book.INVENTORY] for one in rates]
        lines = {chunk.line for chunk in there.values() if chunk.line is not None}
        mine = [one for one in self.found if any(one.covers(line) for line in lines)]
        rooms = Rooms(tx, [one for one in mine if one.is_holding], self.now)
        if rooms.budgets:
            placements.still_plannable(tx, placed.chunk_id)  # locks them in the order of every locker
        rows: list[int] = []
        waiting: dict[str, Budget] = {}
        for row, chunk_id in enumerate(placed.chunk_id):
            chunk = there.get(chunk_id)
            lacking = None if chunk is None else rooms.take(chunk, rates[row], placed.window_at[row])
            if lacking is None:
                rows.append(row)
            elif chunk is not None and not chunk.is_placed:
                waiting[chunk_id] = lacking
        if waiting:
            held.set_rates(tx, {name: one for name, one in zip(placed.chunk_id, rates, strict=True) if name in waiting})
            held.hold(tx, {chunk_id: (one.budget_id, until(one, self.now)) for chunk_id, one in waiting.items()})
        reserved.forget_counts(tx, [one.budget_id for one in mine])
        return placed if len(rows) == len(placed) else placed.take(rows)


def until(budget: Budget, now: datetime) -> datetime | None:
    """Return when a budget's next period begins; None where it has none."""
    period = budget.period_at(now)
    return None if period is None else period[1]


class Rooms:
    """What budgets that hold work back have left, by period; each is locked until the transaction ends."""

    def __init__(self, tx: Tx, found: Iterable[Budget], now: datetime, *, is_locked: bool = True) -> None:
        """Lock them in the order of their ids, and look: at what is reserved first, then at what is spent.

        ``is_locked`` False: only look, for nothing will be taken.
        """
        self._tx, self._now = tx, now
        wanted = sorted(one.budget_id for one in found)
        for budget_id in wanted if is_locked else ():
            budgets.lock(tx, budget_id)
        # Anew: one may have been changed or removed since.
        there = set(wanted)
        self.budgets = [one for one in budgets.list_(tx) if one.budget_id in there and one.is_holding] if there else []
        tenants = {one.tenant for one in self.budgets}
        self._parts: list[Part] = reserved.parts(tx, tenants) if tenants else []
        self._left: dict[tuple[str, datetime], Decimal] = {}
        self._covering: dict[Line, list[Budget]] = {}

    def left(self, budget: Budget, at: datetime) -> Decimal:
        """Return what is left in the period that holds a grid time; what ran before now is never a later one's."""
        at = max(at, self._now)
        start = _start(budget, at)
        key = (budget.budget_id, start)
        if key not in self._left:
            taken = reserved.of(budget, self._parts, self._now, at=at).grams
            is_running = start == _start(budget, self._now)
            spent_g = Decimal(0)
            if is_running:
                spent_g = budget_spent.at_least(self._tx, [budget], self._now)[budget.budget_id]
            self._left[key] = budget.cap_g - spent_g - taken
        return self._left[key]

    def take(self, chunk: Chunk, rates: Rates, window_at: datetime) -> Budget | None:
        """Take what a chunk will emit in a window out of its budgets; the first one that lacks room, and nothing taken.

        What is reserved for it already counts. One of unknown emission fits where anything is left.
        """
        if chunk.line is None:
            return None  # it holds others' work too
        mine = self._covering.get(chunk.line)
        if mine is None:
            mine = self._covering[chunk.line] = covering(self.budgets, chunk.line)
        for one in mine:
            if not self._fits(one, chunk, rates[one.book], window_at):
                return one
        for one in mine:
            if one.level is not Level.ITEM:
                self._move(one, chunk, rates[one.book], window_at)
        return None

    def take_part(self, chunk: Chunk, rates: Rates, at: datetime) -> int:
        """Take what its budgets have room for of a held chunk's tokens, and return how many; 0 where that is a crumb.

        A crumb is less than the longest item, a tenth of the chunk, or a tenth of what the whole cap would take: room
        comes back in small pieces, and a chunk for each would leave the slots half empty.
        """
        found = chunk.tokens
        for one in covering(self.budgets, chunk.line) if chunk.line is not None else ():
            rate = rates[one.book]
            if one.level is Level.ITEM or not rate:
                continue
            in_tokens = Decimal(PG_PER_G) / rate
            left = int(max(self.left(one, at), Decimal(0)) * in_tokens)
            least = max(chunk.longest_item or 1, min(chunk.tokens, int(one.cap_g * in_tokens)) / 10)
            found = min(found, 0 if left < least else left)
        is_part = 0 < found < chunk.tokens
        return found if is_part and self.take(chunk._replace(tokens=found), rates, at) is None else 0

    def _fits(self, budget: Budget, chunk: Chunk, rate: int | None, window_at: datetime) -> bool:
        if budget.level is Level.ITEM:
            return rate is None or from_ug(to_ug(chunk.longest_item or 0, rate)) <= budget.cap_g
        had = self._had(budget, chunk, window_at)
        if rate is None:
            return had is not None or self.left(budget, window_at) > 0
        more = from_ug(to_ug(chunk.tokens, rate)) - (had or 0)
        return more <= 0 or more <= self.left(budget, window_at)

    def _had(self, budget: Budget, chunk: Chunk, window_at: datetime) -> Decimal | None:
        """Return what is reserved for a chunk in the period of a window; None where nothing is."""
        if chunk.held_by is not None or self._period(budget, chunk) != _start(budget, max(window_at, self._now)):
            return None
        rate = chunk.rates[budget.book]
        return Decimal(0) if rate is None else from_ug(to_ug(chunk.tokens, rate))

    def _period(self, budget: Budget, chunk: Chunk) -> datetime:
        at = chunk.window_at if chunk.is_placed and chunk.window_at is not None else self._now
        return _start(budget, max(at, self._now))

    def _move(self, budget: Budget, chunk: Chunk, rate: int | None, window_at: datetime) -> None:
        """Reserve for a chunk in the period of a window, and no more where it was."""
        before = chunk.rates[budget.book]
        if chunk.held_by is None and before is not None:
            at = chunk.window_at if chunk.is_placed and chunk.window_at is not None else self._now
            left = self.left(budget, at)
            self._left[budget.budget_id, self._period(budget, chunk)] = left + from_ug(to_ug(chunk.tokens, before))
        if rate is not None:
            left = self.left(budget, window_at)
            start = _start(budget, max(window_at, self._now))
            self._left[budget.budget_id, start] = left - from_ug(to_ug(chunk.tokens, rate))


def _start(budget: Budget, at: datetime) -> datetime:
    period = budget.period_at(at)
    assert period is not None
    return period[0]


def guard(db: Database, world: World, outlook: Outlook, signal: Signal, max_stale_s: float) -> Guard | None:
    """Return what a round of planning asks budgets with; None where nobody wants to know. Raises StoreUnavailable.

    The plan's own outlook tells of the book it decides by; another is only read where a budget counts the other book.
    """
    if not world.is_expected_wanted:
        return None
    with db.read() as tx:
        found = budgets.list_(tx)
    outlooks = {book: outlook for book, one in SIGNALS.items() if one is signal}
    for book in sorted(foreseen.books_of(found)):
        if book not in outlooks:
            outlooks[book] = load_outlook(
                db, world.active, world.now, outlook.windows, max_stale_s, signal=SIGNALS[book]
            )
    return Guard(found, Foreseen(world.active, world.models, world.learned, outlooks), world.now)


def item_caps(tx: Tx, signal: Signal) -> dict[str, Decimal]:
    """Return the grams that budgets of items leave to each chunk, for the planner to look for cells clean enough.

    All items of a chunk run at one rate: its longest fits its cap where the chunk emits no more than the cap times the
    chunk's tokens over the item's. Rounded down to two digits, so that chunks stay few kinds. Only of the book that the
    plan decides by.
    """
    mine = [one for one in budgets.list_(tx) if one.level is Level.ITEM and one.is_holding]
    mine = [one for one in mine if SIGNALS[one.book] is signal]
    if not mine:
        return {}
    found: dict[str, Decimal] = {}
    for chunk_id, line, tokens, longest in held.item_sizes(tx, {one.tenant for one in mine}):
        caps = [one.cap_g for one in mine if one.covers(line)]
        if caps:
            found[chunk_id] = _DIGITS.plus(min(caps) * tokens / max(longest, 1))
    return found
