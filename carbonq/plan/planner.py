"""Place every waiting chunk in the cell of least carbon that still meets its deadline. Pure: no clock, no database.

Chunks longer than a window hold their slot for several (``contiguous.py``); all others are placed by an exact min-cost
flow (``flow.py``) over bundles of at most a window (``bundles.py``). If something would be late, other packings are
tried and the plan with the fewest late chunks wins. Without any carbon signal the plan is an *overlay*: as early as
possible, nearest region first, deadlines still first. Durations are grid seconds on one slot; costs: ``costs.py``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import numpy as np

from carbonq.plan.capacity import Capacity
from carbonq.plan.demand import Assignment, Demand, FloatArray, IntArray, Terms
from carbonq.plan.needs import ChunkNeed, Plan, PlannedChunk, Reason, demand_of, plan_of
from carbonq.plan.outlook import Outlook
from carbonq.plan.solver import alike, bounds, contiguous, freeing, idle, serial
from carbonq.plan.solver.bundles import Bundles, bundle, is_short
from carbonq.plan.solver.flow import Offer, Solution, Wanted, solve
from carbonq.plan.solver.lanes import EPSILON_S
from carbonq.plan.solver.setting import Setting, gap, lane_shares, lanes_held, lateness

__all__ = ["ChunkNeed", "Plan", "PlannedChunk", "Reason", "assign", "assign_in", "plan"]

#: Kinds of cost that the flow tells apart, for few and for many lanes; the bound says what merging the rest costs.
_MOST_KINDS, _MOST_KINDS_FROM, _MOST_KINDS_OF_MANY = 12, 20_000, 8

#: Up to so many chunks one more packing is tried where something would be late: one by one, as early as can be.
_MOST_SERIAL = 3_000

#: Up to so many long chunks are also placed one by one where the gap is above so much: rounding prices to whole starts
#: is for many.
_MOST_ONE_BY_ONE, _GOOD_GAP = 48, 0.001


def plan(
    needs: Sequence[ChunkNeed],
    outlook: Outlook,
    capacity: Capacity,
    *,
    now: datetime,
    margin: float = 0.03,
    terms: Terms | None = None,
) -> Plan:
    """Return the plan of least carbon under slots, releases, deadlines (finished by) and allowed regions.

    As many chunks as can be are in time, whatever the carbon. A chunk with a ``current`` placement moves only for a
    gain of more than the margin of its cost (``terms`` where given, else ``margin``). Same input, same plan.

    Raises ValueError when outlook and capacity are not about the same cells as ``now``.
    """
    terms = Terms(margin=margin) if terms is None else terms
    demand = demand_of(needs, outlook, now)
    made = plan_of(needs, demand, assign(demand, outlook, capacity, now=now, terms=terms), outlook, now)
    if (made.late or made.unplaced) and any(need.guard_s > 0 for need in needs):
        # What is kept free before deadlines must not cost one.
        demand = demand_of(needs, outlook, now, has_guard=False)
        other = plan_of(needs, demand, assign(demand, outlook, capacity, now=now, terms=terms), outlook, now)
        made = min(made, other, key=lambda plan: (plan.late + len(plan.unplaced), len(plan.unplaced)))
    return made


def assign(
    demand: Demand, outlook: Outlook, capacity: Capacity, *, now: datetime, terms: Terms | None = None
) -> Assignment:
    """Return where each chunk goes: as ``plan``, on columns. ``due_s`` is all it knows of deadlines and guards.

    Raises ValueError when outlook and capacity are not about the same cells as ``now``, or when kinds or prices are not
    about the outlook's regions and windows.
    """
    return assign_in(demand, Setting.of(demand, outlook, capacity, now, terms or Terms()))


def assign_in(demand: Demand, setting: Setting) -> Assignment:
    """Return where each chunk goes in a setting that was made for them."""
    return _Planner(demand, setting).assign()


@dataclass(slots=True)
class _Draft:
    """A plan in the making, by row of the demand; ``bound`` without what is long."""

    region: IntArray
    window: IntArray
    start_s: FloatArray
    prices: FloatArray
    long_bound: float = 0.0
    long_cost: FloatArray | None = None
    #: Rows that start on a lane that frees itself in the running window.
    freed: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    #: What was bundled, and the cells of the bundles.
    packed: tuple[Bundles, IntArray] | None = None


class _Planner:
    def __init__(self, demand: Demand, setting: Setting) -> None:
        self.demand, self.setting, self.costs = demand, setting, setting.costs
        is_long = self._is_long = setting.is_long(demand)
        self.long, self.short = np.flatnonzero(is_long), np.flatnonzero(~is_long)
        if self.costs.is_overlay and len(demand):
            # Nothing is worth staying for where nothing is known.
            none = np.full_like(demand.current, -1)
            self.demand = Demand(demand.release_s, demand.due_s, demand.duration_s, demand.kind, demand.kinds, none)

    def assign(self) -> Assignment:
        best = self._attempt(is_tight=False)
        attempts: list[Callable[[], Assignment]] = []
        if is_short(self.demand.duration_s[self.short]).any():
            attempts.append(lambda: self._attempt(is_tight=True))
        if len(self.long) and len(self.short):
            attempts.append(lambda: self._attempt(is_tight=True, is_long_first=False))
        if len(self.demand) <= _MOST_SERIAL:
            attempts.append(self._serial)
        for attempt in attempts:
            if not best.late and not best.unplaced:
                break
            best = min(best, attempt(), key=_badness)
        return best

    def _attempt(self, *, is_tight: bool, is_long_first: bool = True) -> Assignment:
        n = len(self.demand)
        nowhere = np.full(n, -1, dtype=np.int64)
        draft = _Draft(nowhere, nowhere.copy(), np.full(n, np.nan), np.zeros_like(self.costs.rate))
        free = self.setting.slots
        if is_long_first:
            free = self._place_long(draft, free)
        free = self._place_short(draft, free, is_tight=is_tight)
        if not is_long_first:
            free = self._place_long(draft, free)
        self._use_left(draft, free)
        return self._finish(draft)

    def _use_left(self, draft: _Draft, free: IntArray) -> None:
        """Use what is left of the running window: lanes that free themselves for what would be late, then idle ones."""
        demand = self.demand
        is_long = self._is_long
        now, later = contiguous.cells_held(demand.duration_s, self.setting.left_s)
        cells = np.where(is_long, np.where(draft.window == 0, now, later), 1)
        # A lane that short ones share is not given back when one of them leaves it.
        cells = np.where(is_short(demand.duration_s) & ~is_long, 0, cells)
        places = freeing.Places(draft.region, draft.window, draft.start_s, cells, free.copy())
        draft.freed = freeing.use(demand, self.setting, is_long, places)
        if draft.packed is not None:
            idle.use(demand, self.setting, *draft.packed, places)

    def _place_long(self, draft: _Draft, free: IntArray) -> IntArray:
        rows = self.long
        if not len(rows):
            return free
        part = self.demand.take(rows)
        kinds, kind = np.unique(part.kind, return_inverse=True)
        part = Demand(
            part.release_s,
            part.due_s,
            part.duration_s,
            kind.astype(np.int64),
            tuple(self.demand.kinds[one] for one in kinds.tolist()),
            part.current,
        )
        made = self.costs
        grams = made.kwh[kinds][:, :, None] * made.rate + made.extra_g[kinds][:, :, None]
        grams = np.where(made.allowed[kinds][:, :, None], grams, np.inf)
        placed = contiguous.place(
            part,
            grams,
            free,
            starts_s=self.setting.starts_s,
            left_s=self.setting.left_s,
            margin=self.setting.terms.margin,
            near=self.setting.near,
        )
        region, window, cost = placed.region, placed.window, placed.cost
        if len(rows) <= _MOST_ONE_BY_ONE and placed.objective - placed.bound > _GOOD_GAP * placed.objective:
            region, window, cost = self._one_by_one(part, grams, free, (region, window, cost))
        draft.region[rows], draft.window[rows] = region, window
        draft.start_s[rows] = np.where(window >= 0, self.setting.starts_s[window], np.nan)
        draft.long_bound, draft.long_cost = placed.bound, cost
        now, later = contiguous.cells_held(part.duration_s, self.setting.left_s)
        return free - lanes_held(region, window, np.where(window == 0, now, later), (free.shape[0], free.shape[1]))

    def _one_by_one(
        self, part: Demand, grams: FloatArray, free: IntArray, found: tuple[IntArray, IntArray, FloatArray]
    ) -> tuple[IntArray, IntArray, FloatArray]:
        """Place few long chunks each where it is best, the most pressing first, and return that or what was found."""
        setting = self.setting
        means = contiguous.Integral(np.where(np.isfinite(grams), grams, 0.0), setting.starts_s, setting.left_s)
        region, window, start_s = serial.place(
            part,
            np.all(np.isfinite(grams), axis=2),
            free,
            starts_s=setting.starts_s,
            left_s=setting.left_s,
            long=np.arange(len(part)),
            cost_of=lambda row: means.only(int(part.kind[row])).means(float(part.duration_s[row])),
        )
        placed = window >= 0
        cost = np.full(len(part), np.nan)
        cost[placed] = means.means_at((part.kind[placed], region[placed]), window[placed], part.duration_s[placed])
        starts = np.where(found[1] >= 0, setting.starts_s[found[1]], np.nan)
        missed = [int((~(one <= part.latest_s + EPSILON_S)).sum()) for one in (starts, start_s)]
        left_out = [int((found[1] < 0).sum()), int((~placed).sum())]
        is_moved = (part.current[:, 1] >= 0).any()
        if not is_moved and (missed[1], left_out[1], np.nansum(cost)) < (missed[0], left_out[0], np.nansum(found[2])):
            return region, window, cost
        return found

    def _place_short(self, draft: _Draft, free: IntArray, *, is_tight: bool) -> IntArray:
        if not len(self.short):
            return free
        bundles = bundle(self.demand, self.short, self.costs.hard, self.setting.windows, is_tight=is_tight)
        solution = self._flow(bundles, free)
        draft.prices, draft.packed = solution.prices, (bundles, solution.cell)
        cell = np.repeat(solution.cell, bundles.sizes)
        placed = np.flatnonzero(cell >= 0)
        rows, cell = bundles.members[placed], cell[placed]
        draft.region[rows], draft.window[rows] = np.divmod(cell, self.setting.windows)
        draft.start_s[rows] = self.setting.starts_s[draft.window[rows]] + bundles.offset_s[placed]
        held = np.bincount(solution.cell[solution.cell >= 0], minlength=free.size).reshape(free.shape)
        return free - held

    def _flow(self, bundles: Bundles, free: IntArray) -> Solution:
        made, setting = self.costs, self.setting
        kind = self.demand.kind[bundles.members]
        heads, sizes = bundles.begin[:-1], bundles.sizes
        is_joint = sizes > 1
        kwh, extra, hard = made.kwh, made.extra_g, made.hard
        row = kind[heads]
        if is_joint.any():
            # What is joint costs what its members cost together.
            members = np.flatnonzero(np.repeat(is_joint, sizes))
            inner = np.cumsum(sizes[is_joint]) - sizes[is_joint]
            kwh = np.concatenate((kwh, np.add.reduceat(made.kwh[kind[members]], inner)))
            extra = np.concatenate((extra, np.add.reduceat(made.extra_g[kind[members]], inner)))
            hard = np.concatenate((hard, hard[kind[members]][inner]))
            row = row.copy()
            row[is_joint] = len(made.kwh) + np.arange(len(inner))
        used, row = np.unique(row, return_inverse=True)
        weight = np.bincount(row).astype(np.float64)
        most = _MOST_KINDS if len(bundles) < _MOST_KINDS_FROM else _MOST_KINDS_OF_MANY
        classes = alike.merge(kwh[used], extra[used], hard[used], weight, level=made.rate.mean(axis=1), most=most)
        first, last = setting.range(bundles.release_s, bundles.latest_s, bundles.duration_s)
        size = (kwh[used] * made.rate.mean(axis=1) + extra[used]).mean(axis=1)[row]
        wanted = Wanted(classes.of[row], first, last, bundles.current, size)
        one = np.zeros(int(hard.max()) + 1, dtype=np.int64)
        one[made.hard] = np.arange(len(made.hard))
        example = one[hard[used][classes.row]]
        cost = classes.kwh[:, :, None] * (made.rate + made.tie) + classes.extra_g[:, :, None] + made.displaced
        cap = made.cap_rate[example]
        over_cap = made.carbon > cap[:, :, None] * (1 + 1e-9) if np.isfinite(cap).any() else None
        offer = Offer(cost, made.allowed[example], over_cap, free, made.is_far, is_near_first=made.is_overlay)
        return solve(wanted, offer, setting.terms.margin)

    def _cost_from(self, draft: _Draft, rows: IntArray) -> FloatArray:
        """Return the grams of chunks by the rates of the time that they run."""
        demand, made = self.demand, self.costs
        rates = contiguous.Integral(made.rate, self.setting.starts_s, self.setting.left_s)
        region, begin_s, duration_s = draft.region[rows], draft.start_s[rows], demand.duration_s[rows]
        ends, more = rates.ends(begin_s + duration_s)
        sums = rates.sums[region, ends] + rates.values[region, ends] * more - rates.values[region, 0] * begin_s
        is_one = ~self._is_long[rows] | (duration_s <= 0)
        mean = np.where(is_one, rates.values[region, 0], sums / np.maximum(duration_s, EPSILON_S))
        cost: FloatArray = made.kwh[demand.kind[rows], region] * mean + made.extra_g[demand.kind[rows], region]
        return cost

    def _serial(self) -> Assignment:
        setting = self.setting
        region, window, start_s = serial.place(
            self.demand,
            self.costs.allowed,
            setting.slots,
            starts_s=setting.starts_s,
            left_s=setting.left_s,
            long=self.long,
            freeing_s=setting.freeing_s,
        )
        # Whatever starts within a window may do so on a lane that freed itself there.
        freed = np.flatnonzero((window == 0) & (start_s > 0)) if any(setting.freeing_s) else np.zeros(0, dtype=np.int64)
        return self._finish(_Draft(region, window, start_s, np.zeros_like(self.costs.rate), freed=freed))

    def _finish(self, draft: _Draft) -> Assignment:
        demand, made = self.demand, self.costs
        placed = draft.window >= 0
        late_s = lateness(demand, draft.start_s)
        if made.is_overlay:
            return Assignment(draft.region, draft.window, draft.start_s, late_s, math.nan, math.nan, math.nan)
        cost = made.of(demand.kind, np.maximum(draft.region, 0), np.maximum(draft.window, 0))
        if draft.long_cost is not None:
            cost[self.long] = draft.long_cost
        slots, long_bound = self.setting.slots, draft.long_bound
        if len(draft.freed):
            cost[draft.freed] = self._cost_from(draft, draft.freed)
            slots = slots.copy()
            slots[:, 0] += freeing.lanes_more(self.setting)
            if self._is_long[draft.freed].any():
                long_bound = 0.0  # the prices that it is from know nothing of these lanes
        objective = float(cost[placed].sum())
        rows = self.short
        first, last = self.setting.range(demand.release_s[rows], demand.latest_s[rows], demand.duration_s[rows])
        chunks = bounds.Chunks(demand.kind[rows], first, last, lane_shares(demand.duration_s[rows]))
        least = long_bound + bounds.lower_bound(
            chunks,
            made,
            slots,
            draft.prices,
            late=int((late_s[rows] > 0).sum()),
            unplaced=int((~placed[rows]).sum()),
        )
        least = min(objective, least)
        return Assignment(
            draft.region,
            draft.window,
            draft.start_s,
            late_s,
            objective,
            least,
            gap(objective, least),
            draft.prices,
        )


def _badness(made: Assignment) -> tuple[int, int, float]:
    """Rank plans: first as much as possible in time, then as little as possible left out, then the grams."""
    return made.late + made.unplaced, made.unplaced, 0.0 if math.isnan(made.objective) else made.objective
