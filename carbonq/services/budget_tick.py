"""Before each plan: count what was spent, say what new work will emit, and let go what budgets have room for again.

Chunks are let go in the order of their deadlines and reserved for in the same transaction, by the best cell that is
foreseen. Where the planner then finds only a dirtier one they wait until there is room for that, or the next window is
there to try anew. What fits neither way may go to a smaller model: whole, or the part that fits there; only what may
not is cut to what fits on the model asked for. All times are grid times.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from carbonq import tiers
from carbonq.budget import Action, Book, Budget, BudgetStatus, covering
from carbonq.chunking import shortest
from carbonq.clock import Clock
from carbonq.model import DowngradeReason, Model, NewChunk, Region
from carbonq.services import budget, budget_spent, foreseen
from carbonq.services.budget_plan import Rooms, until
from carbonq.services.downgrade import downgrade, downgrade_parts
from carbonq.services.foreseen import Foreseen, Rates
from carbonq.store import budgets, chunks, held, items, leases, marks, placements, regions, reserved, throughputs
from carbonq.store.database import Database, Tx
from carbonq.store.held import Chunk
from carbonq.units import window_index

#: Chunks of each budget looked at in one tick, the most urgent first.
MAX_CHUNKS = 1_000

#: How budgets stand is told at most once in so many machine seconds: it counts all open work.
STATUS_S = 5.0

#: An outlook is read anew with the next window, and after so many machine seconds.
FORESEEN_S = 30.0


@dataclass(frozen=True, slots=True)
class _Verdict:
    """What becomes of chunks that wait: who goes, whole or so many tokens, some on a smaller model; who waits."""

    rates: dict[str, Rates] = field(default_factory=dict[str, Rates])
    free: list[str] = field(default_factory=list[str])
    smaller: list[str] = field(default_factory=list[str])
    smaller_parts: dict[str, int] = field(default_factory=dict[str, int])
    parts: dict[str, int] = field(default_factory=dict[str, int])
    waiting: dict[str, Budget] = field(default_factory=dict[str, Budget])

    @property
    def is_anything(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.free or self.smaller or self.smaller_parts or self.parts or self.waiting)


class Keeper:
    """Looks after budgets; one for each process that plans, called by one thread."""

    def __init__(
        self,
        db: Database,
        clock: Clock,
        *,
        models: Mapping[str, Model],
        max_stale_s: float,
        worker_alive_s: float,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Remember nothing yet; ``max_stale_s`` is grid seconds, ``worker_alive_s`` machine seconds."""
        self._db, self._clock, self._models = db, clock, models
        self._max_stale_s, self._worker_alive_s, self._monotonic = max_stale_s, worker_alive_s, monotonic
        self._foreseen: tuple[float, int, frozenset[Book], Foreseen] | None = None
        self._told_s = float("-inf")
        #: The window in which a chunk was let go by a guess: by guesses it is not let go twice in one.
        self._tried: dict[str, int] = {}
        #: The window in which a chunk could not go to the smaller model: in it it is cut on the one asked for.
        self._kept: dict[str, int] = {}

    def tick(self) -> list[BudgetStatus]:
        """Do what is to be done, and return how all budgets stand, every few seconds; else nothing. Idempotent.

        Raises StoreUnavailable.
        """
        with self._db.read() as tx:
            has_budgets, has_held, has_targets = marks.is_any(tx), held.is_any(tx), held.is_any_target(tx)
            there = regions.load_all(tx, worker_alive_s=self._worker_alive_s) if has_budgets or has_targets else []
        now = self._clock.now()
        if has_budgets:
            budget_spent.fold(self._db, now)
        if has_budgets or has_targets:
            has_held = self._foretell(there, now) or has_held
        if has_held:
            self._let_go(there, now)
        if not has_budgets or self._monotonic() - self._told_s < STATUS_S:
            return []
        self._told_s = self._monotonic()
        return budget.statuses(self._db, now)

    def _outlook(self, there: Sequence[Region], now: datetime) -> Foreseen:
        with self._db.read() as tx:
            books = foreseen.books_of(budgets.list_(tx))
            learned = throughputs.get_all(tx)
        now_s, window = self._monotonic(), window_index(now)
        known = self._foreseen
        if known is not None and known[1:3] == (window, books) and now_s - known[0] < FORESEEN_S:
            return known[3]
        made = foreseen.load(
            self._db, there, self._models, learned, now=now, max_stale_s=self._max_stale_s, books=books
        )
        self._foreseen = (now_s, window, books, made)
        return made

    def _foretell(self, there: Sequence[Region], now: datetime) -> bool:
        """Say what chunks will emit where nobody has: older ones, those of another model, after an outage.

        What has no place and is known now is asked like new work: it is held for the budgets that hold work back, and
        True returned.
        """
        cells = self._outlook(there, now)
        with self._db.read() as tx:
            found = held.without_rate(tx, cells.books, limit=MAX_CHUNKS) if cells.books else []
            owned = budgets.list_(tx)
        rates = {one.chunk_id: _rates(one, cells) for one in found}
        known = [one for one in found if any(rate is not None for rate in rates[one.chunk_id].values())]
        if not known:
            return False
        waiting: dict[str, Budget] = {}
        for one in known:
            mine = covering(owned, one.line) if one.line is not None and not one.is_placed else []
            holding = next((budget for budget in mine if budget.is_holding), None)
            if holding is not None and one.held_by is None:
                waiting[one.chunk_id] = holding
        with self._db.write() as tx:
            placements.still_plannable(tx, [one.chunk_id for one in known])
            held.set_rates(tx, {one.chunk_id: rates[one.chunk_id] for one in known})
            held.hold(tx, {name: (one.budget_id, until(one, now)) for name, one in waiting.items()})
            reserved.forget_counts(tx, [one.budget_id for one in owned])
        return bool(waiting)

    def _let_go(self, there: Sequence[Region], now: datetime) -> None:
        cells = self._outlook(there, now)
        with self._db.read() as tx:  # most ticks have nothing to do, and take no lock
            look = self._judge(tx, cells, now, is_locked=False)
        if not look.is_anything:
            return
        with self._db.write() as tx:
            verdict = self._judge(tx, cells, now, is_locked=True)
            held.set_rates(tx, verdict.rates)
            moved, kept = self._move(tx, verdict, cells, there=there, now=now)
            cut = _cut_off(tx, verdict.parts, now)
            held.let_go(tx, [*verdict.free, *moved])
            held.hold(tx, {name: (one.budget_id, until(one, now)) for name, one in verdict.waiting.items()})
            reserved.forget_counts(tx, [one.budget_id for one in budgets.list_(tx)])
        window = window_index(now)
        self._tried = {name: at for name, at in self._tried.items() if at == window}
        self._tried |= dict.fromkeys([*verdict.free, *moved, *cut], window)
        self._kept = {name: at for name, at in self._kept.items() if at == window} | dict.fromkeys(kept, window)

    def _judge(self, tx: Tx, cells: Foreseen, now: datetime, *, is_locked: bool) -> _Verdict:
        """Say what becomes of the chunks that wait, the most urgent first; ``is_locked``: nobody else judges them."""
        waiting = held.waiting(tx, each=MAX_CHUNKS)
        lines = {one.line for one in waiting if one.line is not None}
        holding = [one for one in budgets.list_(tx) if one.is_holding and any(one.covers(line) for line in lines)]
        rooms = Rooms(tx, holding, now, is_locked=is_locked)
        if is_locked:
            idle = placements.still_plannable(tx, [one.chunk_id for one in waiting])
            waiting = [one for one in waiting if one.chunk_id in idle]
        verdict, window = _Verdict(), window_index(now)
        for chunk in waiting:
            # Tried in this window already: the planner found no cell as good as the best, and said what it found.
            is_tried = self._tried.get(chunk.chunk_id) == window
            rates = chunk.rates if is_tried else cells.best(chunk.model, chunk.regions, chunk.deadline_at)
            lacking = rooms.take(chunk, rates, now)
            if lacking is None:
                verdict.free.append(chunk.chunk_id)
                verdict.rates[chunk.chunk_id] = rates
                continue
            on_smaller = self._on_smaller(chunk, cells) if lacking.action is Action.DOWNGRADE else None
            if on_smaller is not None and self._kept.get(chunk.chunk_id) != window:
                if rooms.take(chunk, on_smaller, now) is None:
                    verdict.smaller.append(chunk.chunk_id)
                elif not is_tried and (tokens := rooms.take_part(chunk, on_smaller, now)):
                    verdict.smaller_parts[chunk.chunk_id] = tokens
            elif not is_tried and (tokens := rooms.take_part(chunk, rates, now)):
                verdict.parts[chunk.chunk_id] = tokens
                verdict.rates[chunk.chunk_id] = rates
            if chunk.held_by != lacking.budget_id or chunk.held_until != until(lacking, now):
                verdict.waiting[chunk.chunk_id] = lacking
        return verdict

    def _on_smaller(self, chunk: Chunk, cells: Foreseen) -> Rates | None:
        """Return what a chunk's tokens are expected to emit on the next smaller model; None where it may not go there.

        Nor does it where nothing is known of that, or more is expected than on the model asked for: no budget is
        helped. Where as much is expected, as before anything was learned of it, the owner's word counts.
        """
        smaller = tiers.smaller_of(self._models.get(chunk.model), self._models, asked=chunk.may_downgrade)
        if smaller is None or chunk.is_downgraded:
            return None
        rates = cells.best(smaller.name, chunk.regions, chunk.deadline_at)
        asked = cells.best(chunk.model, chunk.regions, chunk.deadline_at)
        known = [(rate, of_asked) for book, rate in rates.items() if rate is not None and (of_asked := asked[book])]
        return rates if known and all(rate <= of_asked for rate, of_asked in known) else None

    def _move(
        self, tx: Tx, verdict: _Verdict, cells: Foreseen, *, there: Sequence[Region], now: datetime
    ) -> tuple[list[str], set[str]]:
        """Move chunks and parts to the next smaller model; return those that are on it now, and who could not go."""
        if not verdict.smaller and not verdict.smaller_parts:
            return [], set()
        given: dict[str, Any] = {
            "models": self._models,
            "regions": there,
            "now": now,
            "factor": self._clock.factor,
            "reason": DowngradeReason.BUDGET,
        }
        whole = downgrade(tx, verdict.smaller, **given)
        parts = downgrade_parts(tx, verdict.smaller_parts, **given)
        moved = sorted({*whole, *parts.values()})
        after = held.among(tx, moved)
        held.set_rates(tx, {one.chunk_id: cells.best(one.model, one.regions, one.deadline_at) for one in after})
        for name in whole:
            verdict.waiting.pop(name, None)
        return moved, ({*verdict.smaller} - whole) | ({*verdict.smaller_parts} - parts.keys())


def _rates(chunk: Chunk, cells: Foreseen) -> Rates:
    if chunk.is_placed and chunk.region is not None and chunk.window_at is not None:
        return cells.at(chunk.model, chunk.region, chunk.window_at)
    return cells.best(chunk.model, chunk.regions, chunk.deadline_at)


def _cut_off(tx: Tx, parts: Mapping[str, int], now: datetime) -> list[str]:
    """Cut items of at most so many tokens off held chunks, the shortest first, and return the new chunks: not held.

    A chunk is the only unit that is placed: one that is larger than its budget would wait for ever.
    """
    made: list[NewChunk] = []
    for chunk_id, tokens in parts.items():
        taken = shortest(items.of_chunk(tx, chunk_id), tokens)
        if taken:
            made.append(leases.part_of(chunks.get(tx, chunk_id), taken))
    chunks.insert_many(tx, made, created_at=now)
    chunks.shrink(tx, [str(one.parent_chunk_id) for one in made], at=now)
    return [one.chunk_id for one in made]
