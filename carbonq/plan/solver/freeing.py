"""Lanes that free themselves within the running window, for what would be late without them. Pure arrays.

``capacity.Capacity.freeing_s`` says when; such a lane takes chunks one after another, none before it is free, as long
as they overrun the window by less than ``policy.OVERRUN_SHARE``. A longer one may start there if the windows after it
are free. Where nobody late fits, someone else who does may go there and leave a cell along a chain (``repair.py``).
Nothing but a deadline moves anything here: carbon has the whole windows. Seconds are grid seconds from now.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from carbonq.plan.demand import BoolArray, Demand, FloatArray, IntArray
from carbonq.plan.policy import OVERRUN_SHARE
from carbonq.plan.solver.bundles import BUNDLE_FILL, is_short
from carbonq.plan.solver.lanes import EPSILON_S
from carbonq.plan.solver.repair import Occupants, make_room
from carbonq.plan.solver.setting import Setting, lateness
from carbonq.units import WINDOW_S

#: Chunks that are tried, the most pressing first: who waits for a lane that is about to be free is one of a few.
_MOST_TRIED = 100


@dataclass(slots=True)
class Places:
    """Where chunks are, by row of the demand (-1, -1, NaN: nowhere), and the lanes that are left by [region, window].

    ``cells`` is how many cells a chunk holds, 0 for one that shares its lane.
    """

    region: IntArray
    window: IntArray
    start_s: FloatArray
    cells: IntArray
    free: IntArray


def lanes_more(setting: Setting) -> IntArray:
    """Return how many whole lanes of the running window those that free themselves are worth by region, at most."""
    limit_s = setting.left_s + OVERRUN_SHARE * WINDOW_S
    # A chunk counts as a whole lane from half of what may be filled on.
    half_s = BUNDLE_FILL * WINDOW_S / 2
    worth = [sum(math.ceil(max(0.0, limit_s - one) / half_s) for one in lanes) for lanes in setting.freeing_s]
    return np.array(worth or [0] * len(setting.slots), dtype=np.int64)


def use(demand: Demand, setting: Setting, long: BoolArray, places: Places) -> IntArray:
    """Start what is late on lanes that free themselves where that is in time; return the rows that start there.

    ``long`` says which chunks may hold more than one cell. Changes ``places``.
    """
    lanes = [(free_s, region) for region, row in enumerate(setting.freeing_s) for free_s in row]
    if not lanes:
        return np.zeros(0, dtype=np.int64)
    return _Freeing(demand, setting, long, places, lanes).use()


class _Freeing:
    def __init__(
        self, demand: Demand, setting: Setting, long: BoolArray, places: Places, lanes: list[tuple[float, int]]
    ) -> None:
        self.demand, self.setting, self.long, self.places, self.lanes = demand, setting, long, places, lanes
        self.limit_s = setting.left_s + OVERRUN_SHARE * WINDOW_S
        self.latest_s = demand.latest_s
        self.is_there = np.zeros(len(demand), dtype=np.bool_)
        missed = (places.window < 0) | (lateness(demand, places.start_s) > 0)
        earliest = min(free_s for free_s, _ in lanes)
        may = missed & (demand.release_s <= EPSILON_S)
        self.missed = missed
        self.todo = np.flatnonzero(may & (self.latest_s >= earliest - EPSILON_S))

    def use(self) -> IntArray:
        for row in self.todo[np.argsort(self.latest_s[self.todo], kind="stable")][:_MOST_TRIED].tolist():
            if not self._start(row) and not self.long[row]:
                self._by_chain(row)
        return np.flatnonzero(self.is_there)

    def _spot(self, row: int) -> tuple[int, int] | None:
        """Return the latest lane that still is in time for a chunk, and how many whole windows it holds after it."""
        allowed = self.setting.costs.allowed[self.demand.kind[row]]
        free, duration = self.places.free, float(self.demand.duration_s[row])
        best: tuple[float, int, int] | None = None
        for at, (free_s, region) in enumerate(self.lanes):
            if not allowed[region] or free_s > self.latest_s[row] + EPSILON_S:
                continue
            over_s = free_s + duration - self.setting.left_s
            more = max(0, math.ceil(over_s / WINDOW_S - OVERRUN_SHARE - EPSILON_S))
            if more and (not self.long[row] or more >= free.shape[1] or free[region, 1 : 1 + more].min() <= 0):
                continue
            if best is None or (free_s, -region) > (best[0], -self.lanes[best[1]][1]):
                best = (free_s, at, more)
        return None if best is None else best[1:]

    def _start(self, row: int) -> bool:
        """Start a chunk on the latest lane that still is in time for it; say whether there is one."""
        self._leave(row, 1)
        found = self._spot(row)
        if found is None:
            self._leave(row, -1)
            return False
        at, more = found
        free_s, region = self.lanes[at]
        self.lanes[at] = (free_s + float(self.demand.duration_s[row]), region)
        if more:
            del self.lanes[at]
            self.places.free[region, 1 : 1 + more] -= 1
        self.places.region[row], self.places.window[row], self.places.start_s[row] = region, 0, free_s
        self.places.cells[row] = 0
        self.is_there[row], self.missed[row] = True, False
        return True

    def _leave(self, row: int, lanes: int) -> None:
        """Give back the cells that a chunk holds (or take them again: -1)."""
        region, window, cells = (int(c[row]) for c in (self.places.region, self.places.window, self.places.cells))
        if window >= 0:
            self.places.free[region, window : window + cells] += lanes

    def _fits(self, rows: IntArray) -> BoolArray:
        """Say which chunks would be in time on such a lane, and end with the window."""
        demand = self.demand
        until_s = np.minimum(demand.latest_s[rows], self.limit_s - demand.duration_s[rows]) + EPSILON_S
        made = np.zeros(len(rows), dtype=np.bool_)
        for free_s, region in self.lanes:
            made |= self.setting.costs.allowed[demand.kind[rows], region] & (free_s <= until_s)
        return made & (demand.release_s[rows] <= EPSILON_S)

    def _by_chain(self, row: int) -> None:
        """Give a late chunk the cell of another that starts on such a lane instead."""
        demand, places, windows = self.demand, self.places, self.setting.windows
        alone = (places.window >= 0) & (places.cells == 1) & ~self.missed & ~self.long & ~self.is_there
        rows = np.flatnonzero(alone & ~is_short(demand.duration_s))
        if not len(rows) or is_short(demand.duration_s[row : row + 1])[0]:
            return
        first, last = self.setting.range(demand.release_s, demand.latest_s, demand.duration_s)
        could = rows[self._fits(rows)].tolist()
        column = np.arange(windows)
        wanted = self.setting.costs.allowed[demand.kind[row]][:, None] & (first[row] <= column) & (column <= last[row])
        if not could or not wanted.any():
            return
        self._leave(row, 1)
        occupants = Occupants(
            places.region[rows] * windows + places.window[rows],
            demand.kind[rows],
            first[rows],
            last[rows],
            self.setting.costs.allowed,
        )
        before = occupants.cell.copy()
        free = np.maximum(places.free, 0)
        offered = free.copy()
        offered[places.region[could], places.window[could]] += 1
        start = offered.copy()
        cell = make_room(occupants, offered, wanted, self.setting.costs.rate)
        if cell is None:
            self._leave(row, -1)
            return
        change = (offered - start).ravel()
        end = int(np.argmin(change)) if change.any() else cell
        if free.ravel()[end] <= 0:
            leaving = next(one for one in could if int(places.region[one]) * windows + int(places.window[one]) == end)
            self._start(leaving)
        moved = np.flatnonzero((occupants.cell != before) & ~self.is_there[rows])
        places.region[rows[moved]], places.window[rows[moved]] = np.divmod(occupants.cell[moved], windows)
        places.region[row], places.window[row] = divmod(cell, windows)
        places.cells[row], self.missed[row] = 1, False
        for one in (*rows[moved].tolist(), row):
            places.start_s[one] = self.setting.starts_s[places.window[one]]
        places.free.ravel()[end] -= 1
