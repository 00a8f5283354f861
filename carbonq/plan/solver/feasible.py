"""How many chunks can be in time at all, which cannot, and by how much. Pure arrays.

Chunks that take a slot in one window: the earliest deadline first settles it where that puts all in time (with one set
of allowed regions it always finds the most: F. Glover, "Maximum matching in a convex bipartite graph", 1967). Where it
does not, a min-cost flow gives the fewest late and, with as few late, the least total lateness; both are exact. Chunks
longer than a window are placed by ``contiguous.py``, which need not find the most; ``Feasibility.most`` says how many
more there could be. It is the bound of divisible work: if all chunks could be split at will, at least so many slot
windows would be left after the deadlines, and no fewer chunks than the largest that make them up.

Chunks short enough to share a slot (``bundles.BUNDLE_FILL``) are put together as the planner does when slots are
scarce. Lanes that free themselves within the running window count only in the bound.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime

import numpy as np

from carbonq.plan.capacity import Capacity, window_starts
from carbonq.plan.demand import BoolArray, Demand, FloatArray, IntArray, Kind
from carbonq.plan.solver.bundles import BUNDLE_FILL
from carbonq.plan.solver.contiguous import place
from carbonq.plan.solver.grouping import rows_of
from carbonq.plan.solver.lanes import EPSILON_S
from carbonq.plan.solver.lateness import Ranges, fewest_late, most_work
from carbonq.plan.solver.stretches import cells_held
from carbonq.units import WINDOW, WINDOW_S, window_at, window_index


@dataclass(frozen=True, slots=True)
class Feasibility:
    """What can be in time, by row of the demand.

    ``late_s`` is 0 in time, else by how many seconds the chunk would be finished after ``due_s``, inf where it finds no
    room within the horizon. No plan has more than ``most`` chunks in time.
    """

    in_time: BoolArray
    late_s: FloatArray
    most: int

    @property
    def is_exact(self) -> bool:
        """Say whether it is proven that no more chunks can be in time."""
        return int(self.in_time.sum()) == self.most

    def sentence(self) -> str | None:
        """Say what cannot be in time and by how much; None if all can."""
        late = ~self.in_time
        count = int(late.sum())
        if count == 0:
            return None
        found = self.late_s[late & np.isfinite(self.late_s)]
        homeless = count - len(found)
        parts = [f"{count:,} of {len(late):,} chunks cannot be in time"]
        if len(found):
            parts.append(f"the last of them would be {_span(float(found.max()))} late")
        if homeless:
            parts.append(f"{homeless:,} find no room within the horizon at all")
        if not self.is_exact:
            parts.append(f"at least {len(late) - self.most:,} in any plan")
        return "; ".join(parts)


def _span(seconds: float) -> str:
    minutes = -(-seconds // 60)
    return f"{minutes:.0f} min" if minutes < 120 else f"{minutes // 60:.0f} h {minutes % 60:02.0f} min"


def most_in_time(demand: Demand, capacity: Capacity, *, now: datetime) -> Feasibility:
    """Return which chunks can be in time on what is free, as many as possible; carbon counts nothing.

    Raises ValueError when ``capacity`` does not begin with the window that holds ``now``.
    """
    if capacity.first_window != window_index(now):
        raise ValueError("capacity must begin with the window that holds now")
    n = len(demand)
    if n == 0:
        return Feasibility(np.zeros(0, dtype=np.bool_), np.zeros(0), 0)
    starts_s = window_starts(now, capacity.slots.shape[1])
    left_s = (window_at(capacity.first_window) + WINDOW - now).total_seconds()
    case = _Case(demand, np.maximum(capacity.slots, 0), starts_s, left_s)
    late_s = case.late(case.together(is_tight=False))
    if (late_s > 0).any() and case.shares.any():
        other = case.late(case.together(is_tight=True))
        late_s = min(late_s, other, key=lambda made: (int((made > 0).sum()), float(made.sum())))
    in_time = late_s <= 0
    most = n if in_time.all() else case.most(capacity, int(in_time.sum()))
    return Feasibility(in_time, late_s, most)


@dataclass(frozen=True, slots=True)
class _Units:
    """What takes one slot: single chunks, or several that run one after another, by column."""

    of: IntArray  # [chunk] its unit
    offset_s: FloatArray  # [chunk] how long after the unit's start it begins
    release_s: FloatArray
    latest_s: FloatArray
    duration_s: FloatArray
    where: IntArray  # index into sets of regions


class _Case:
    def __init__(self, demand: Demand, slots: IntArray, starts_s: FloatArray, left_s: float) -> None:
        self.demand, self.slots, self.starts_s, self.left_s = demand, slots, starts_s, left_s
        sets = sorted({kind.regions for kind in demand.kinds})
        self.sets = [tuple(sorted(one)) for one in sets]
        self.where = np.array([sets.index(kind.regions) for kind in demand.kinds], dtype=np.int64)[demand.kind]
        self.shares = demand.duration_s * 2 <= BUNDLE_FILL * WINDOW_S

    def together(self, *, is_tight: bool) -> _Units:
        """Put short chunks together: those with the same last start, or, tightly, whatever begins in one window."""
        demand, n = self.demand, len(self.demand)
        release = np.maximum(demand.release_s, 0.0)
        first = np.searchsorted(self.starts_s, release - EPSILON_S)
        last = np.searchsorted(self.starts_s, demand.latest_s + EPSILON_S, side="right")
        alone = np.where(self.shares, -1, np.arange(n))
        group, _ = rows_of(alone, self.where, first, np.zeros(n, dtype=np.int64) if is_tight else last)
        order = np.lexsort((demand.due_s, group))
        longest = np.zeros(n)
        np.maximum.at(longest, group, demand.duration_s)
        fit = np.maximum(1, np.floor(BUNDLE_FILL * WINDOW_S / np.maximum(longest, EPSILON_S) + 1e-9))[group]
        rank = np.empty(n, dtype=np.int64)
        rank[order] = np.arange(n) - np.searchsorted(group[order], group[order])
        of, members = rows_of(group, (rank // np.minimum(fit, n)).astype(np.int64))
        order = np.lexsort((demand.due_s, of))
        ends = np.cumsum(demand.duration_s[order])
        begin = np.searchsorted(of[order], np.arange(len(members)))
        before = (ends - demand.duration_s[order])[begin]
        offset = np.empty(n)
        offset[order] = ends - demand.duration_s[order] - before[of[order]]
        latest = np.minimum.reduceat((demand.latest_s - offset)[order], begin)
        duration = np.add.reduceat(demand.duration_s[order], begin)
        return _Units(of, offset, np.maximum.reduceat(release[order], begin), latest, duration, self.where[members])

    def late(self, units: _Units) -> FloatArray:
        """Return by how much each chunk is late, as few as could be found, least lateness."""
        now, later = cells_held(units.duration_s, self.left_s)
        ranges = self._ranges(units, now)
        if (later > 1).any() or ((now > 1) & (ranges.first == 0) & (ranges.last == 0)).any():
            start = self._placed(units)
        else:
            ranges.first[:] = np.where(now > 1, np.maximum(ranges.first, 1), ranges.first)
            if _all_in_time(ranges, self.slots):
                return np.zeros(len(self.demand))
            start = fewest_late(ranges, units.latest_s, self.slots, self.starts_s)
        end = start[units.of] + units.offset_s + self.demand.duration_s
        late = np.maximum(0.0, end - self.demand.due_s)
        return np.where(late < 10 * EPSILON_S, 0.0, late)

    def _ranges(self, units: _Units, now: IntArray) -> Ranges:
        first = np.searchsorted(self.starts_s, units.release_s - EPSILON_S).astype(np.int64)
        last = np.searchsorted(self.starts_s, units.latest_s + EPSILON_S, side="right").astype(np.int64) - 1
        return Ranges(self.sets, units.where, first, last)

    def _placed(self, units: _Units) -> FloatArray:
        """Return the starts that ``contiguous.place`` finds when nothing costs anything; inf without a place."""
        regions = len(self.slots)
        kinds = tuple(Kind(one, (0,) * regions, (0.0,) * regions, np.inf) for one in self.sets)
        grams = np.zeros((len(kinds), *self.slots.shape))
        for row, one in enumerate(self.sets):
            grams[row, [region for region in range(regions) if region not in one]] = np.inf
        due = units.latest_s + units.duration_s
        nowhere = np.full((len(due), 2), -1, dtype=np.int64)
        asked = Demand(units.release_s, due, units.duration_s, units.where, kinds, nowhere)
        made = place(asked, grams, self.slots, starts_s=self.starts_s, left_s=self.left_s)
        return np.where(made.window >= 0, self.starts_s[made.window], np.inf)

    def most(self, capacity: Capacity, found: int) -> int:
        """Return an upper bound on the chunks in time, from work that could be split at will; ``found`` are."""
        demand = self.demand
        now, later = cells_held(demand.duration_s, self.left_s)
        if not self.shares.any() and now.max() == 1 and not any(capacity.freeing_s):
            return found  # the flow has found the most
        work = np.where(self.shares, demand.duration_s / (BUNDLE_FILL * WINDOW_S), np.minimum(now, later))
        first = np.searchsorted(self.starts_s, np.maximum(demand.release_s, 0.0) - EPSILON_S)
        start = np.searchsorted(self.starts_s, demand.latest_s + EPSILON_S, side="right") - 1
        last = np.where(start >= first, start + np.maximum(now, later) - 1, -1)
        last = np.minimum(last, self.slots.shape[1] - 1)
        slots = self.slots.copy()
        if capacity.freeing_s:
            slots[:, 0] += np.array([len(lanes) for lanes in capacity.freeing_s])
        ranges = Ranges(self.sets, self.where, first.astype(np.int64), last.astype(np.int64))
        left = float(work.sum()) - most_work(ranges, work, slots)
        late = int(np.searchsorted(np.cumsum(np.sort(work)[::-1]), left - 1e-3)) + 1 if left > 1e-3 else 0
        return max(found, len(work) - late)


def _all_in_time(ranges: Ranges, slots: IntArray) -> bool:
    """Say whether the earliest deadline first puts every unit in time; "no" is a proof only for one set of regions."""
    if (ranges.last < ranges.first).any():
        return False
    of, members = rows_of(ranges.where, ranges.first, ranges.last)
    count = np.bincount(of, minlength=len(members)).tolist()
    arriving: defaultdict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for k, row in enumerate(members.tolist()):
        arriving[int(ranges.first[row])].append((int(ranges.last[row]), k, int(ranges.where[row])))
    # Regions that few may use go first, so that the others stay free for those that have no choice.
    wanted = [sum(row in one for one in ranges.sets) for row in range(len(slots))]
    rows = [sorted(one, key=lambda row: (wanted[row], row)) for one in ranges.sets]
    pools: list[list[tuple[int, int]]] = [[] for _ in ranges.sets]
    for window in range(slots.shape[1]):
        for last, k, where in arriving.get(window, ()):
            heapq.heappush(pools[where], (last, k))
        free = slots[:, window].tolist()
        open_sets = {where for where, pool in enumerate(pools) if pool}
        while open_sets:
            where = min(open_sets, key=lambda where: (pools[where][0], len(rows[where])))
            last, k = pools[where][0]
            if last < window:
                return False
            for row in rows[where]:
                taken = min(free[row], count[k])
                free[row] -= taken
                count[k] -= taken
            if count[k]:
                open_sets.discard(where)
                continue
            heapq.heappop(pools[where])
            if not pools[where]:
                open_sets.discard(where)
    return not any(pools) and not any(count)
