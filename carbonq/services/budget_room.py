"""Whether budgets have room for a job: asked at submit, and reserved in the transaction that stores it.

Two submits at once cannot reserve past a cap together: each holds the budget's lock until it ends. What is reserved is
looked at before what is spent, so that an item that moves from one to the other is counted twice rather than never.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal

from carbonq import readable
from carbonq.budget import Action, Book, Budget, Level, Line, Reserved, covering, from_ug, to_ug
from carbonq.clock import Clock
from carbonq.errors import CarbonBudgetExceeded
from carbonq.model import Job, LatePolicy, Model, NewItem, NewJob, Region, Throughput
from carbonq.services import budget_item, budget_spent, foreseen
from carbonq.services.budget_item import Expected
from carbonq.services.foreseen import Foreseen, Rates
from carbonq.store import budgets, held, marks, reserved
from carbonq.store.database import Database, Tx
from carbonq.store.dialect import machine_now
from carbonq.units import plain

#: How long budgets, and outlooks, are remembered by a process that asks for them at each submit, in machine seconds.
LOOK_S, FORESEEN_S = 1.0, 10.0

#: How old a kept count of what is reserved may be, in machine seconds: what has ended since is still in it.
KEPT_S = 10.0


def is_wanted(tx: Tx) -> bool:
    """Say whether anybody asks what open work is expected to emit: a budget, or a contract target."""
    return marks.is_any(tx) or held.is_any_target(tx)


@dataclass(frozen=True, slots=True)
class Asked:
    """A job as far as budgets are concerned, with those of periods that hold for it; ``rates`` are picograms a token.

    ``shortest`` and ``longest`` are of its items. ``waits`` is a sentence where one of them fits no window that is
    foreseen.
    """

    line: Line
    tokens: int
    rates: Rates
    shortest: Expected
    longest: Expected
    deadline_at: datetime
    late_policy: LatePolicy
    budgets: tuple[Budget, ...] = ()
    waits: str | None = None

    def ug(self, book: Book) -> int | None:
        """Return what all of it is expected to emit, in micrograms; None where no rate is known."""
        rate = self.rates[book]
        return None if rate is None else to_ug(self.tokens, rate)

    def noted(self, job: Job) -> Job:
        """Return the job with what is expected of it."""
        impact, inventory = (self.rates[book] for book in (Book.IMPACT, Book.INVENTORY))
        return replace(job, impact_pg_per_token=impact, inventory_pg_per_token=inventory)


class Gate:
    """What submits of one process ask of budgets. Where nobody has set one it costs a look at the clock."""

    def __init__(
        self,
        db: Database,
        clock: Clock,
        models: Mapping[str, Model],
        *,
        max_stale_s: float,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin without having looked; ``max_stale_s`` is grid seconds."""
        self._db, self._clock, self._models, self._max_stale_s = db, clock, models, max_stale_s
        self._monotonic = monotonic
        self._looked_s = self._foreseen_s = float("-inf")
        self._all: Mapping[str, Sequence[Budget]] = {}
        self._is_wanted = False
        self._foreseen: Foreseen | None = None

    def ask(
        self,
        request: NewJob,
        items: Sequence[NewItem],
        regions: Sequence[Region],
        learned: Mapping[tuple[str, str], Throughput],
    ) -> Asked | None:
        """Return what budgets are to be asked of a job; None where nobody wants to know what it will emit.

        Raises CarbonBudgetExceeded where an item is foreseen to emit more than a budget of items that refuses, and
        StoreUnavailable.
        """
        self._look()
        if not self._is_wanted:
            return None
        line = Line(request.tenant, request.product_line, request.workload)
        found = covering(self._all.get(request.tenant, ()), line)
        cells = self._outlook(regions, learned)
        rates = cells.best(request.model, request.regions, request.deadline_at)
        waits: str | None = None
        for one in found:
            if one.level is Level.ITEM and one.action is not Action.WARN:
                waits = _look_at_items(one, items, rates[one.book]) or waits
        return Asked(
            line,
            sum(item.est_tokens for item in items),
            rates,
            budget_item.expected(min(items, key=_tokens), request, cells, self._models, self._clock.now()),
            budget_item.expected(max(items, key=_tokens), request, cells, self._models, self._clock.now()),
            request.deadline_at,
            request.late_policy,
            tuple(one for one in found if one.level is not Level.ITEM),
            waits,
        )

    def _look(self) -> None:
        now_s = self._monotonic()
        if now_s - self._looked_s < LOOK_S:
            return
        by_tenant: defaultdict[str, list[Budget]] = defaultdict(list)
        with self._db.read() as tx:
            self._is_wanted = is_wanted(tx)
            for one in budgets.list_(tx) if self._is_wanted else ():
                by_tenant[one.tenant].append(one)
        self._all, self._looked_s = by_tenant, now_s

    def _outlook(self, regions: Sequence[Region], learned: Mapping[tuple[str, str], Throughput]) -> Foreseen:
        now_s = self._monotonic()
        made = self._foreseen
        if made is None or now_s - self._foreseen_s >= FORESEEN_S:
            books = foreseen.books_of(one for some in self._all.values() for one in some)
            made = self._foreseen = foreseen.load(
                self._db,
                regions,
                self._models,
                learned,
                now=self._clock.now(),
                max_stale_s=self._max_stale_s,
                books=books,
            )
            self._foreseen_s = now_s
        return made


def _tokens(item: NewItem) -> int:
    return item.est_tokens


def _look_at_items(budget: Budget, items: Sequence[NewItem], rate: int | None) -> str | None:
    """Refuse a job with an item that is over a budget of items; where that holds work back, say that it waits."""
    longest = max(items, key=_tokens)
    if rate is None or (needs_g := from_ug(to_ug(longest.est_tokens, rate))) <= budget.cap_g:
        return None
    figures = (
        f"item {longest.idx + 1} ({longest.custom_id!r}) is expected to emit {_grams(needs_g)} at the best that is "
        f"foreseen until its deadline, and {_named(budget)} allows {plain(budget.cap_g)} gCO2e an item"
    )
    if budget.is_holding:
        return f"{figures}: it waits for a cleaner window, however late that is"
    raise CarbonBudgetExceeded(
        f"{figures}: shorten it, give it more time or more regions, or have the cap raised (`carbonq budget set`)",
        budget_id=budget.budget_id,
        cap_g=budget.cap_g,
        spent_g=Decimal(0),
        reserved_g=Decimal(0),
        adds_g=needs_g,
        ends_at=None,
        line=longest.idx + 1,
    )


@dataclass(frozen=True, slots=True)
class Room:
    """How a budget stands, with what is to be kept of its count."""

    budget: Budget
    spent_g: Decimal
    count: reserved.Kept
    ends_at: datetime

    @property
    def left_g(self) -> Decimal:
        """What may still be reserved."""
        return self.budget.cap_g - self.spent_g - self.count.reserved.grams


def check(tx: Tx, asked: Asked, now: datetime) -> str | None:
    """Ask whether budgets have room for a job that is stored later; return a sentence where it will have to wait.

    The sentence is for work that cannot be let go before its deadline, as far as can be told. Raises
    CarbonBudgetExceeded where ``reserve`` would, for such work that is not to run late, and where even the shortest
    item needs more than a whole cap: it would wait for ever.
    """
    waits = asked.waits
    for room in _rooms(tx, [(one, asked.ug(one.book)) for one in asked.budgets if one.action is not Action.WARN], now):
        if (needs_g := asked.shortest.over(room.budget)) is not None:
            raise _refusal_of_item(room, asked.shortest.item, needs_g)
        if room.budget.action is Action.REJECT:
            _refuse(room, asked.ug(room.budget.book))
        else:
            waits = waits or _never(room.budget, asked.longest) or _wait(room, asked)
    return waits


def reserve(tx: Tx, asked: Sequence[Asked], now: datetime) -> None:
    """Reserve of the budgets that refuse, before the jobs' rows are stored in this transaction; all of them or none.

    The budgets are read anew: a cap may have changed since. Raises CarbonBudgetExceeded before anything is written.
    """
    wanted: dict[str, list[Asked]] = {}
    for one in asked:
        for budget in one.budgets:
            if budget.action is not Action.WARN:
                wanted.setdefault(budget.budget_id, []).append(one)
    if not wanted:
        return
    for budget_id in sorted(wanted):  # one order everywhere: no deadlock
        budgets.lock(tx, budget_id)
    there = [one for one in budgets.list_(tx) if one.budget_id in wanted and one.level is not Level.ITEM]
    more: dict[str, Reserved] = {}
    known: dict[str, int | None] = {}
    for one in there:
        expected = [asked.ug(one.book) for asked in wanted[one.budget_id]]
        adds = sum(ug for ug in expected if ug is not None)
        known[one.budget_id] = None if all(ug is None for ug in expected) else adds
        unknown = sum(ug is None for ug in expected)
        more[one.budget_id] = Reserved(waiting_ug=adds) if one.is_holding else Reserved(adds, unknown)
    rooms = _rooms(tx, [(one, known[one.budget_id]) for one in there], now)
    for room in rooms:
        if room.budget.action is Action.REJECT:
            _refuse(room, known[room.budget.budget_id])
    for room in rooms:
        kept = room.count.reserved.plus(more[room.budget.budget_id])
        reserved.keep(tx, room.budget.budget_id, room.count._replace(reserved=kept))


def _rooms(tx: Tx, asked: Sequence[tuple[Budget, int | None]], now: datetime) -> list[Room]:
    """Return how budgets stand that are asked for some micrograms each (None: not known).

    By the kept counts where these are fresh and have room, else counted anew. What is reserved is read before what is
    spent.
    """
    if not asked:
        return []
    machine, mine = machine_now(tx), [one for one, _ in asked]
    kept = reserved.kept(tx, [one.budget_id for one in mine])
    spent = budget_spent.at_least(tx, mine, now)
    rooms: list[Room] = []
    for budget, adds in asked:
        period, count = budget.period_at(now), kept.get(budget.budget_id)
        assert period is not None
        start, ends_at = period
        room: Room | None = None
        if count is not None and count.started_at == start and (machine - count.counted_at).total_seconds() < KEPT_S:
            room = Room(budget, spent[budget.budget_id], count, ends_at)
        if room is None or from_ug((adds or 0) + room.count.reserved.waiting_ug) > room.left_g:
            counted = reserved.of(budget, reserved.parts(tx, [budget.tenant]), now)
            # Anew, too: what has moved from one to the other since is counted twice rather than never.
            spent_g = budget_spent.at_least(tx, [budget], now)[budget.budget_id]
            room = Room(budget, spent_g, reserved.Kept(start, machine, counted), ends_at)
        rooms.append(room)
    return rooms


def _refuse(room: Room, adds_ug: int | None) -> None:
    """Raise CarbonBudgetExceeded where a job does not fit; one of unknown emission fits while anything is left."""
    if room.left_g > 0 if adds_ug is None else from_ug(adds_ug) <= room.left_g:
        return
    raise _refusal(room, adds_ug, "send less, or come back then")


def _wait(room: Room, asked: Asked) -> str | None:
    """Return a sentence where a job would have to wait past its deadline; raise where it is not to run late."""
    adds = asked.ug(room.budget.book)
    ahead_g = from_ug(room.count.reserved.waiting_ug)
    has_room = room.left_g - ahead_g > 0 if adds is None else from_ug(adds) + ahead_g <= room.left_g
    if has_room or asked.deadline_at >= room.ends_at:
        return None
    if asked.late_policy is LatePolicy.EXPIRE and room.budget.action is Action.QUEUE:
        raise _refusal(room, adds, "it would wait for the next period and expire before it: give it until then")
    waits = "waits for room"
    if room.budget.action is Action.DOWNGRADE:
        waits = "goes to a smaller model where that fits, or waits for room"
    return (
        f"{_figures(room, adds)}; what does not fit {waits} or the next period, {_time(room.ends_at)}, "
        "which is after the deadline: a budget's cap comes before a deadline"
    )


def _refusal(room: Room, adds_ug: int | None, then: str) -> CarbonBudgetExceeded:
    return CarbonBudgetExceeded(
        f"{_figures(room, adds_ug)}; its period ends {_time(room.ends_at)}: {then}, or have the cap raised "
        "(`carbonq budget set`)",
        budget_id=room.budget.budget_id,
        cap_g=room.budget.cap_g,
        spent_g=room.spent_g,
        reserved_g=room.count.reserved.grams,
        adds_g=None if adds_ug is None else from_ug(adds_ug),
        ends_at=room.ends_at,
    )


def _refusal_of_item(room: Room, item: NewItem, needs_g: Decimal) -> CarbonBudgetExceeded:
    return CarbonBudgetExceeded(
        f"{_over(room.budget, item, needs_g)}, and no item of the job is shorter: none could ever run. Shorten them, "
        "give them more regions, or have the cap raised (`carbonq budget set`)",
        budget_id=room.budget.budget_id,
        cap_g=room.budget.cap_g,
        spent_g=room.spent_g,
        reserved_g=room.count.reserved.grams,
        adds_g=needs_g,
        ends_at=None,
        line=item.idx + 1,
    )


def _never(budget: Budget, longest: Expected) -> str | None:
    """Return a sentence where a job's longest item cannot run while the cap stands."""
    needs_g = longest.over(budget)
    if needs_g is None:
        return None
    return f"{_over(budget, longest.item, needs_g)}: it cannot run before that is raised, nor what shares its chunk"


def _over(budget: Budget, item: NewItem, needs_g: Decimal) -> str:
    return (
        f"item {item.idx + 1} ({item.custom_id!r}) is expected to emit {_grams(needs_g)} at the best that is foreseen, "
        f"and the whole cap of {_named(budget)} is {plain(budget.cap_g)} gCO2e a {budget.period.value}"
    )


def _figures(room: Room, adds_ug: int | None) -> str:
    adds = "what this adds is not known" if adds_ug is None else f"this adds about {_grams(from_ug(adds_ug))}"
    return (
        f"{_named(room.budget)} has a cap of {plain(room.budget.cap_g)} gCO2e, {_grams(room.spent_g)} are spent and "
        f"{_grams(room.count.reserved.grams)} reserved, and {adds}"
    )


def _named(budget: Budget) -> str:
    return f"the budget of {budget.level.value.replace('_', ' ')} {budget.name!r}"


def _grams(value: Decimal) -> str:
    return readable.grams(float(value))


def _time(at: datetime) -> str:
    return f"{at:%Y-%m-%dT%H:%MZ}"
