"""Place every waiting chunk, and move placed ones where that pays: read, plan, write.

Runs on the slow control queue every few seconds and at once after chunks were made. It rests while nothing it depends
on has changed. The solver runs outside any transaction; what was dispatched meanwhile is left alone.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
import numpy.typing as npt

from carbonq import ids
from carbonq.clock import Clock
from carbonq.model import Model, Signal, Treatment
from carbonq.plan import capacity, planner
from carbonq.plan.demand import Assignment, Demand, Terms
from carbonq.plan.outlook import Outlook
from carbonq.plan.planner import Reason
from carbonq.plan.treatment import home_of
from carbonq.services import shadow
from carbonq.services.outlook import load_outlook
from carbonq.services.work import Work, World
from carbonq.store import placements, sources, throughputs, waiting
from carbonq.store import regions as region_rows
from carbonq.store.database import Database
from carbonq.store.placements import NewPlan, Placed
from carbonq.units import WINDOW_S, window_index, window_of

IntArray = npt.NDArray[np.int64]

#: The shortest and longest horizon in windows: three hours, a week. Later deadlines are planned when they come nearer.
MIN_HORIZON, MAX_HORIZON = 36, 2016

#: ``reason`` of placements that run at once in the home region, because they are observed or held out.
AT_ONCE = "at_once"

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
    """What is read at the beginning."""

    work: Work
    inputs: Mapping[str, str]
    last_inputs: Mapping[str, str]
    signal: Signal
    shadows: shadow.Shadows

    @property
    def world(self) -> World:
        return self.work.world

    @property
    def trigger(self) -> str:
        """Why there is something to do: what has changed since the last plan; empty if nothing has."""
        found = [name for name, value in self.inputs.items() if self.last_inputs.get(name) != value]
        if not self.work.waiting.is_placed.all():
            found.insert(0, "new work")
        return ", ".join(found)


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
) -> PlanSummary:
    """Plan all chunks that are waiting or placed with no ticket out. Idempotent; safe beside a dispatcher.

    ``margin`` is the relative gain below which nothing moves; ``price_weight_g`` the grams that one unit of price
    weighs; ``max_stale_s`` is grid seconds, ``worker_alive_s`` machine seconds. Of ``models`` that are not given only
    what was learned is known. Raises StoreUnavailable.
    """
    started = time.monotonic()
    state = _read(db, clock, models or {}, worker_alive_s)
    work, world = state.work, state.world
    trigger = state.trigger or ("asked for" if is_forced else "")
    if not trigger or not (len(work.waiting) or state.shadows):
        return PlanSummary()
    at_once = work.at_once()
    due, free = work.split(at_once)
    active = world.active
    if not active:
        return PlanSummary(chunks=len(free), unplaced=len(free))
    windows = _horizon(work, free, state.shadows)
    outlook = load_outlook(db, active, world.now, windows, max_stale_s, signal=state.signal)
    terms = Terms(margin=margin, price_per_kwh=_prices(world, windows), price_weight_g=price_weight_g)
    homeward = _homeward(work, at_once, outlook)
    lanes = capacity.build(
        active,
        now=world.now,
        windows=windows,
        running_s=world.running_s(),
        due_s=_due_s(work, at_once, homeward, due),
    )
    demand = work.demand(free, windows)
    made = planner.assign(demand, outlook, lanes, now=world.now, terms=terms)
    chosen = _chosen(work, free, demand, made, outlook)
    shadows = shadow.plan_shadows(
        state.shadows, work, outlook, terms, planned=(free, due, made), held_out=_held_out(work, at_once)
    )
    result = _Result(made, chosen, homeward, shadows, outlook.is_down, trigger, time.monotonic() - started)
    return _write(db, state, work, result)


@dataclass(frozen=True, slots=True)
class _Chosen:
    """The placements that change, how many of them leave another, and how many chunks are late."""

    placed: Placed
    moved: int
    late: int


@dataclass(frozen=True, slots=True)
class _Result:
    made: Assignment
    chosen: _Chosen
    at_once: Placed
    shadows: shadow.Planned
    is_overlay: bool
    trigger: str
    duration_s: float


def _read(db: Database, clock: Clock, models: Mapping[str, Model], worker_alive_s: float) -> _State:
    with db.read() as tx:
        found = waiting.read(tx)
        now = clock.now()
        regions = region_rows.load_all(tx, worker_alive_s=worker_alive_s)
        movable, beside = shadow.read(tx, now)
        signal = sources.decision_signal(tx)
        is_any = bool(found or movable)
        world = World(
            now=now,
            factor=clock.factor,
            regions=regions,
            models=models,
            learned=throughputs.get_all(tx) if is_any else {},
            busy=placements.busy(tx) if is_any else [],
            backoffs=placements.backoffs(tx) if is_any else {},
            caps=placements.caps(tx) if is_any else {},
        )
        slots = (f"{one.name}={one.state.value[0]}{one.is_healthy:d}{one.least_slots(now, now)}" for one in regions)
        inputs = {
            "window": str(window_index(now)),
            "forecast": f"{signal.value} {placements.newest_forecast_id(tx, signal)}",
            "regions": ",".join(slots),
            "drift": str(_drift(world)),
        }
        last = placements.last_inputs(tx) if is_any else None
    # Outside the transaction, which must not idle for seconds.
    work, shadows = Work(waiting.arrange(found), world), shadow.Shadows(waiting.arrange(movable), beside)
    return _State(work, inputs, _parse_inputs(last), signal, shadows)


def _parse_inputs(text: str | None) -> dict[str, str]:
    """Read what ``_write_inputs`` wrote; anything else counts as nothing known."""
    parts = (part.partition(" ") for part in (text or "").split("; "))
    return {name: value for name, _, value in parts if value}


def _write_inputs(inputs: Mapping[str, str]) -> str:
    return "; ".join(f"{name} {value}" for name, value in inputs.items())


def _drift(world: World) -> int:
    """Return in powers of two how many running chunks take longer than even their margin allows."""
    count = 0
    hardware = {region.name: region.hardware for region in world.regions}
    for one in world.busy:
        seen = world.learned.get((one.model, hardware.get(one.region, "")))
        overrun = throughputs.FIRST_OVERRUN if seen is None or seen.overrun is None else seen.overrun
        count += one.elapsed_s is not None and one.elapsed_s > one.est_duration_s * overrun + throughputs.FORGIVEN_S
    return count.bit_length()


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


def _homeward(work: Work, at_once: IntArray, outlook: Outlook) -> Placed:
    """Return where chunks go that run at once: home, in the running window or the one they are released in."""
    placed = Placed()
    rates: dict[str, tuple[object, datetime | None]] = {}
    found, world = work.waiting, work.world
    for row in at_once.tolist():
        if found.is_placed[row]:
            continue
        group = work.groups[work.group[row]]
        region = home_of(group.home, group.allowed, group.model, world.regions)
        if region is None or region not in outlook.regions:
            continue
        release_at = datetime.fromtimestamp(float(found.release_s[row]), UTC)
        at = window_of(max(world.now, release_at))
        if region not in rates:
            position = outlook.regions.index(region)
            rate = outlook.rate(position, 0)
            rates[region] = (rate, None if rate is None else outlook.issued_at[position])
        is_now = window_index(at) == outlook.first_window
        rate, issued_at = rates[region] if is_now else (None, None)
        placed.chunk_id.append(found.chunk_id[row])
        placed.region.append(region)
        placed.window_at.append(at)
        placed.g_per_kwh.append(rate)  # pyright: ignore[reportArgumentType]
        placed.issued_at.append(issued_at)
        placed.reason.append(AT_ONCE)
    return placed


def _held_out(work: Work, at_once: IntArray) -> IntArray:
    """Return those that run at once whatever is observed."""
    return at_once[np.isin(at_once, work.treated(Treatment.HELD_OUT))]


def _due_s(work: Work, at_once: IntArray, homeward: Placed, due: IntArray) -> dict[str, list[float]]:
    """Return the grid seconds of what takes the next free slots: tickets, then what runs at once, then what is due."""
    ahead = work.due_s(np.concatenate([at_once, due]))
    duration = dict(zip(work.waiting.chunk_id, work.waiting.duration_s.tolist(), strict=True)) if homeward else {}
    for chunk_id, region in zip(homeward.chunk_id, homeward.region, strict=True):
        ahead.setdefault(region, []).append(duration[chunk_id] * work.world.factor)
    return ahead


def _chosen(work: Work, free: IntArray, demand: Demand, made: Assignment, outlook: Outlook) -> _Chosen:
    """Return the placements that differ from where the chunks are, with the rate and reason of each."""
    found = work.waiting
    end_s = made.start_s + demand.duration_s
    has_place = made.window >= 0
    # To the microsecond: times are stored so.
    is_late = has_place & (end_s - (found.deadline_s[free] - work.now_s) > 1e-5)
    is_there = found.is_placed[free] & (demand.current[:, 1] >= 0)
    is_there &= (demand.current[:, 0] == made.region) & (demand.current[:, 1] == made.window)
    changed = np.flatnonzero(has_place & ~is_there)
    starts = capacity.window_starts(work.world.now, outlook.windows)
    first = np.searchsorted(starts, np.maximum(demand.release_s, 0.0) - 1e-6)
    last = np.searchsorted(starts, demand.latest_s + 1e-6, side="right")
    has_choice = last - first > 1
    placed = Placed()
    windows = [outlook.window_at(window) for window in range(outlook.windows)]
    rates = {(row, window): outlook.rate(row, window) for row, window in _cells(made, changed)}
    rows = free[changed].tolist()
    columns = zip(rows, changed.tolist(), made.region[changed].tolist(), made.window[changed].tolist(), strict=True)
    for row, position, region, window in columns:
        rate = rates[region, window]
        placed.chunk_id.append(found.chunk_id[row])
        placed.region.append(outlook.regions[region])
        placed.window_at.append(windows[window])
        placed.g_per_kwh.append(rate)
        placed.issued_at.append(None if rate is None else outlook.issued_at[region])
        if is_late[position]:
            reason = Reason.LATE
        elif rate is None:
            reason = Reason.OVERLAY
        else:
            reason = Reason.CARBON if has_choice[position] else Reason.DEADLINE
        placed.reason.append(reason.value)
    return _Chosen(placed, int(found.is_placed[free][changed].sum()), int(is_late.sum()))


def _cells(made: Assignment, rows: IntArray) -> set[tuple[int, int]]:
    return set(zip(made.region[rows].tolist(), made.window[rows].tolist(), strict=True))


def _write(db: Database, state: _State, work: Work, result: _Result) -> PlanSummary:
    plan_id, now = ids.new("pln"), state.world.now
    made, chosen = result.made, result.chosen
    objective, bound, gap = (
        None if result.is_overlay or math.isnan(value) else value for value in (made.objective, made.bound, made.gap)
    )
    plan = NewPlan(
        plan_id=plan_id,
        created_at=now,
        chunks=len(made.window),
        moved=chosen.moved,
        late=chosen.late,
        objective_g=objective,
        lower_bound_g=bound,
        is_overlay=result.is_overlay,
        duration_s=result.duration_s,
        note=_note(result, state.signal),
        inputs=_write_inputs(state.inputs),
        signal=state.signal,
        trigger=result.trigger,
        gap=gap,
        unplaced=made.unplaced,
        at_once=len(result.at_once),
    )
    with db.write() as tx:
        placements.add_plan(tx, plan)
        # First, for they run now.
        placed = placements.place(tx, plan_id, result.at_once, created_at=now, signal=state.signal)
        shadow.write(tx, plan_id, result.shadows, created_at=now, signal=state.signal)
    for start in range(0, len(chosen.placed), PAGE):
        page = chosen.placed.take(range(start, min(start + PAGE, len(chosen.placed))))
        with db.write() as tx:
            placed += placements.place(tx, plan_id, page, created_at=now, signal=state.signal)
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
    if result.at_once:
        parts.append(f"{len(result.at_once)} chunks run at once at home: observed or held out")
    return "; ".join(parts) or None
