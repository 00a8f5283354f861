"""Place every waiting chunk, and move placed ones where that pays: read, plan, write.

Runs on the slow control queue every few seconds and at once after chunks were made. It rests while nothing it depends
on has changed; few new chunks beside many are placed around these (``beside.py``). The solver runs outside
any transaction; what was dispatched meanwhile is left alone.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial

import numpy as np
import numpy.typing as npt

from carbonq import ids
from carbonq.clock import Clock
from carbonq.model import Model, Signal, Treatment
from carbonq.plan import capacity, planner
from carbonq.plan.demand import Assignment, Terms
from carbonq.plan.outlook import Outlook
from carbonq.plan.solver import incremental
from carbonq.services import beside, budget_plan, budget_room, chosen, shadow, trigger
from carbonq.services.beside import Beside
from carbonq.services.budget_plan import Guard
from carbonq.services.chosen import Chosen
from carbonq.services.outlook import load_outlook
from carbonq.services.trigger import Look
from carbonq.services.work import Work, World
from carbonq.store import placements, waiting
from carbonq.store.database import Database, Tx
from carbonq.store.placements import BESIDE, NewPlan, Placed
from carbonq.units import WINDOW_S, window_index

IntArray = npt.NDArray[np.int64]

#: What is done where chunks were placed, in the same transaction.
OnPlaced = Callable[[Tx], None]

#: The shortest and longest horizon in windows: three hours, a week. Later deadlines are planned when they come nearer.
MIN_HORIZON, MAX_HORIZON = 36, 2016

#: Chunks placed in one transaction: SQLite's write lock must not be held for longer than others should wait.
PAGE = 20_000

#: A latest safe start is written anew when it is off by more than this share of the chunk's duration, or a second.
LATEST_TOLERANCE = 0.05


@dataclass(frozen=True, slots=True)
class PlanSummary:
    """What a round of planning did; ``plan_id`` None: nothing to plan, or nothing had changed.

    ``chunks`` were planned, ``at_once`` run at once in their home region, ``shadows`` were planned beside.
    """

    plan_id: str | None = None
    chunks: int = 0
    placed: int = 0
    moved: int = 0
    late: int = 0
    unplaced: int = 0
    is_overlay: bool = False
    objective_g: float | None = None
    lower_bound_g: float | None = None
    duration_s: float = 0.0
    gap: float | None = None
    trigger: str | None = None
    at_once: int = 0
    shadows: int = 0


@dataclass(frozen=True, slots=True)
class _State:
    """What is read at the beginning. ``beside`` is what others hold where only few new chunks are looked at."""

    work: Work
    look: Look
    shadows: shadow.Shadows
    beside: Beside | None = None

    @property
    def world(self) -> World:
        return self.work.world


def plan_waiting(
    db: Database,
    clock: Clock,
    *,
    models: Mapping[str, Model] | None = None,
    margin: float = 0.03,
    price_weight_g: float = 0.0,
    worker_alive_s: float = 15.0,
    max_stale_s: float = 7200.0,
    is_forced: bool = False,
    on_placed: OnPlaced = lambda _: None,
) -> PlanSummary:
    """Plan all chunks that are waiting or placed with no ticket out. Idempotent; safe beside a dispatcher.

    ``margin`` is the relative gain below which nothing moves; ``price_weight_g`` the grams that one unit of price
    weighs; ``max_stale_s`` is grid seconds, ``worker_alive_s`` machine seconds. Of ``models`` that are not given only
    what was learned is known. ``on_placed`` is called in each transaction that places chunks, before the dispatcher can
    see them. Raises StoreUnavailable.
    """
    started = time.monotonic()
    state = _read(db, clock, models or {}, worker_alive_s, is_forced=is_forced)
    if state is None:
        return PlanSummary()
    terms = partial(_terms, margin=margin, price_weight_g=price_weight_g)
    guard_of = partial(budget_plan.guard, db, max_stale_s=max_stale_s)
    if state.beside is not None:
        outlook_of = partial(load_outlook, db, max_stale_s=max_stale_s)
        result = _add(state, state.beside, outlook_of=outlook_of, guard_of=guard_of, terms=terms, started=started)
        if result is not None:
            return _write(db, state, result, on_placed)
        state = _read(db, clock, models or {}, worker_alive_s, is_forced=is_forced, is_whole=True)
        if state is None:
            return PlanSummary()
    work, world = state.work, state.world
    why = state.look.trigger or "asked for"
    if not (len(work.waiting) or state.shadows):
        return PlanSummary()
    at_once = work.at_once()
    due, free = work.split(at_once)
    active = world.active
    if not active:
        return PlanSummary(chunks=len(free), unplaced=len(free))
    windows = _horizon(work, free, state.shadows)
    outlook = load_outlook(db, active, world.now, windows, max_stale_s, signal=state.look.signal)
    homeward = chosen.homeward(work, at_once, outlook)
    lanes = capacity.build(
        active,
        now=world.now,
        windows=windows,
        running_s=world.running_s(),
        due_s=chosen.due_s(work, at_once, homeward, due),
    )
    demand = work.demand(free, windows)
    made = planner.assign(demand, outlook, lanes, now=world.now, terms=terms(world, windows))
    changes = chosen.of(work, free, demand, made, outlook)
    shadows = shadow.plan_shadows(
        state.shadows,
        work,
        outlook,
        terms(world, windows),
        planned=(free, due, made),
        held_out=chosen.held_out(work, at_once),
    )
    guard = guard_of(world, outlook, state.look.signal)
    result = _Result(made, changes, homeward, shadows, outlook.is_down, why, time.monotonic() - started, guard=guard)
    return _write(db, state, result, on_placed)


def _add(
    state: _State,
    others: Beside,
    *,
    outlook_of: Callable[..., Outlook],
    guard_of: Callable[[World, Outlook, Signal], Guard | None],
    terms: Callable[[World, int], Terms],
    started: float,
) -> _Result | None:
    """Place few new chunks beside the others, which stay; None where only a plan of everything will do."""
    work, world = state.work, state.world
    at_once = work.at_once()
    due, free = work.split(at_once)
    active = world.active
    if not active or work.waiting.is_placed[free].any() or len(work.treated(Treatment.OBSERVED)):
        return None
    windows = _horizon(work, free, state.shadows)
    outlook = outlook_of(active, world.now, windows, signal=state.look.signal)
    if outlook.is_down:
        return None
    homeward = chosen.homeward(work, at_once, outlook)
    lanes = others.lanes(active, world.now, windows, world.running_s(), chosen.due_s(work, at_once, homeward, due))
    demand = work.demand(free, windows)
    nobody = work.demand(free[:0], windows)
    addition = incremental.add(demand, nobody, outlook, lanes, now=world.now, terms=terms(world, windows))
    if not addition.is_enough:
        return None
    changes = chosen.of(work, free, demand, addition.made, outlook)
    guard = guard_of(world, outlook, state.look.signal)
    took_s = time.monotonic() - started
    return _Result(addition.made, changes, homeward, shadow.Planned(), False, BESIDE, took_s, others.count, guard)


def _terms(world: World, windows: int, *, margin: float, price_weight_g: float) -> Terms:
    return Terms(margin=margin, price_per_kwh=_prices(world, windows), price_weight_g=price_weight_g)


@dataclass(frozen=True, slots=True)
class _Result:
    made: Assignment
    chosen: Chosen
    at_once: Placed
    shadows: shadow.Planned
    is_overlay: bool
    trigger: str
    duration_s: float
    beside: int = 0
    guard: Guard | None = None

    def admitted(self, tx: Tx, placed: Placed) -> Placed:
        """Return the placements that budgets have room for."""
        return placed if self.guard is None else self.guard.admit(tx, placed)


def _read(
    db: Database,
    clock: Clock,
    models: Mapping[str, Model],
    worker_alive_s: float,
    *,
    is_forced: bool,
    is_whole: bool = False,
) -> _State | None:
    """Read what there is to plan: all, or few new chunks and what others hold; None where nothing has changed."""
    with db.read() as tx:
        seen = trigger.look(tx, clock, worker_alive_s=worker_alive_s)
        if not (seen.trigger or is_forced):
            return None
        others = None if is_whole or is_forced else beside.read(tx, seen, clock.factor)
        found = waiting.read(tx) if others is None else waiting.read_pressing(tx, seen.now)
        movable, running = shadow.read(tx, seen.now) if others is None else ([], ())
        is_any = bool(found or movable)
        world = World(
            now=seen.now,
            factor=clock.factor,
            regions=seen.regions,
            models=models,
            learned=seen.learned,
            busy=placements.busy(tx) if is_any else [],
            backoffs=placements.backoffs(tx) if is_any else {},
            caps=_caps(tx, seen.signal) if is_any else {},
            is_expected_wanted=is_any and budget_room.is_wanted(tx),
        )
    # Outside the transaction, which must not idle for seconds.
    work, shadows = Work(waiting.arrange(found), world), shadow.Shadows(waiting.arrange(movable), running)
    return _State(work, seen, shadows, others)


def _caps(tx: Tx, signal: Signal) -> dict[str, Decimal]:
    """Return the grams that each chunk may emit by the caps of its jobs and the budgets of its items."""
    found = placements.caps(tx)
    for chunk_id, cap in budget_plan.item_caps(tx, signal).items():
        found[chunk_id] = min(cap, found.get(chunk_id, cap))
    return found


def _horizon(work: Work, free: IntArray, shadows: shadow.Shadows) -> int:
    """Return the windows to look ahead: to the last deadline, and far enough for all the work there is."""
    world, found = work.world, work.waiting
    last_s = max([work.now_s, *found.deadline_s[free].tolist(), *shadows.waiting.deadline_s.tolist()])
    to_deadline = int(last_s // WINDOW_S) - window_index(world.now) + 1
    slots = max(1, sum(region.slots for region in world.regions))
    busy_s = sum(one.est_duration_s for one in world.busy)
    work_s = world.factor * (busy_s + float(found.duration_s.sum()) + len(found))
    to_finish = math.ceil(2 * work_s / slots / WINDOW_S) + MIN_HORIZON
    return min(MAX_HORIZON, max(MIN_HORIZON, to_deadline, to_finish))


def _prices(world: World, windows: int) -> npt.NDArray[np.float64] | None:
    """Return the price by ``[region, window]``, NaN where it is not stated; None where no region states one."""
    prices = [math.nan if one.price_per_kwh is None else float(one.price_per_kwh) for one in world.active]
    return None if all(math.isnan(one) for one in prices) else np.repeat(np.array([prices]).T, windows, axis=1)


def _write(db: Database, state: _State, result: _Result, on_placed: OnPlaced) -> PlanSummary:
    plan_id, now, work, signal = ids.new("pln"), state.world.now, state.work, state.look.signal
    made, changes = result.made, result.chosen
    objective, bound, gap = (
        None if result.is_overlay or math.isnan(value) else value for value in (made.objective, made.bound, made.gap)
    )
    plan = NewPlan(
        plan_id=plan_id,
        created_at=now,
        chunks=len(made.window),
        moved=changes.moved,
        late=changes.late,
        objective_g=objective,
        lower_bound_g=bound,
        is_overlay=result.is_overlay,
        duration_s=result.duration_s,
        note=_note(result, signal),
        inputs=state.look.to_keep(_left(work.waiting, result)),
        signal=signal,
        trigger=result.trigger,
        gap=gap,
        unplaced=made.unplaced,
        at_once=len(result.at_once),
    )
    with db.write() as tx:
        placements.add_plan(tx, plan)
        # First, for they run now.
        homeward = result.admitted(tx, result.at_once)
        placed = placements.place(tx, plan_id, homeward, created_at=now, signal=signal)
        shadow.write(tx, plan_id, result.shadows, created_at=now, signal=signal)
    for start in range(0, len(changes.placed), PAGE):
        page = changes.placed.take(range(start, min(start + PAGE, len(changes.placed))))
        with db.write() as tx:
            placed += placements.place(tx, plan_id, result.admitted(tx, page), created_at=now, signal=signal)
            on_placed(tx)
    _set_latest(db, work)
    return PlanSummary(
        plan_id=plan_id,
        chunks=plan.chunks,
        placed=placed,
        moved=plan.moved,
        late=plan.late,
        unplaced=plan.unplaced,
        is_overlay=plan.is_overlay,
        objective_g=objective,
        lower_bound_g=bound,
        duration_s=result.duration_s,
        gap=gap,
        trigger=result.trigger,
        at_once=plan.at_once,
        shadows=len(result.shadows),
    )


def _left(found: waiting.Waiting, result: _Result) -> set[str]:
    """Return the chunks that had no place and have none now."""
    had_none = {found.chunk_id[row] for row in np.flatnonzero(~found.is_placed).tolist()}
    return had_none.difference(result.chosen.placed.chunk_id, result.at_once.chunk_id)


def _set_latest(db: Database, work: Work) -> None:
    """Write the latest safe starts that are not known yet, or that what was learned since has moved."""
    found = work.waiting
    tolerance_s = np.maximum(LATEST_TOLERANCE * found.duration_s, 1.0) * work.world.factor
    with np.errstate(invalid="ignore"):
        rows = np.flatnonzero(~(np.abs(found.latest_s - work.latest_s) <= tolerance_s)).tolist()
    for start in range(0, len(rows), PAGE):
        page = rows[start : start + PAGE]
        latest = [datetime.fromtimestamp(float(work.latest_s[row]), UTC) for row in page]
        with db.write() as tx:
            placements.set_latest_starts(tx, [found.chunk_id[row] for row in page], latest)


def _note(result: _Result, signal: Signal) -> str | None:
    """Say what an operator should know of a plan; None if there is nothing."""
    parts: list[str] = []
    if result.is_overlay:
        kind = "marginal" if signal is Signal.MOER else "average"
        parts.append(f"no {kind} rate is known: earliest window, nearest region")
    elif signal is Signal.AER:
        parts.append("decided by average rates: no zone has a marginal source")
    if result.chosen.late:
        parts.append(f"{result.chosen.late} chunks cannot be finished by their deadline")
    if result.made.unplaced:
        parts.append(f"{result.made.unplaced} chunks have no region to run in")
    if result.beside:
        parts.append(
            f"{len(result.made.window)} new chunks beside {result.beside} that stay; cost and bound: the new alone"
        )
    if result.at_once:
        parts.append(f"{len(result.at_once)} chunks run at once at home: observed or held out")
    return "; ".join(parts) or None
