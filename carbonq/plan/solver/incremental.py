"""Place new chunks beside what is placed already, without planning everything anew. Pure.

A few go one by one into their cheapest cells with room, many by the planner's flow on the lanes that are left. What
finds no room in time has others moved along (``repair.py``); nothing else moves. That is quick, not optimal: a plan
of everything (``planner.assign``) is due every now and then, and wherever ``is_enough`` is False.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property

import numpy as np

from carbonq.plan import planner
from carbonq.plan.capacity import Capacity
from carbonq.plan.demand import Assignment, BoolArray, Demand, FloatArray, IntArray, Terms
from carbonq.plan.outlook import Outlook
from carbonq.plan.solver import bounds, contiguous, freeing
from carbonq.plan.solver.bundles import BUNDLE_FILL, is_short
from carbonq.plan.solver.repair import Occupants, make_room
from carbonq.plan.solver.setting import Setting, gap, lane_shares, lanes_held, lateness
from carbonq.units import WINDOW_S

#: Up to so many chunks are placed one by one.
_FEW = 8

_LANE_S = BUNDLE_FILL * WINDOW_S


@dataclass(frozen=True, slots=True)
class Addition:
    """Where new chunks go, and what is moved for them.

    ``made`` is about the new chunks alone: its bound is what each would cost in its best cell, what it takes from the
    others there by ``prices`` included. So for all chunks together the sum of both objectives and the sum of both
    bounds hold. ``moved`` are rows of what was placed,
    with their new ``region`` and ``window``. ``is_enough``: all new ones are in time.
    """

    made: Assignment
    moved: IntArray
    region: IntArray
    window: IntArray

    @property
    def is_enough(self) -> bool:
        """Say whether all new chunks are in time, so that nothing needs to be planned anew for them."""
        return not self.made.late and not self.made.unplaced


def add(
    new: Demand,
    placed: Demand,
    outlook: Outlook,
    capacity: Capacity,
    *,
    now: datetime,
    terms: Terms | None = None,
    prices: FloatArray | None = None,
) -> Addition:
    """Place ``new`` chunks beside ``placed`` ones, which are where their ``current`` says.

    ``prices`` are those of the plan of ``placed``, for a bound that knows how scarce clean cells are.
    ``capacity`` is that of all chunks together; those of ``placed`` without a current place count for nothing.
    Raises ValueError as ``planner.assign`` does.
    """
    setting = Setting.of(new, outlook, capacity, now, terms or Terms())
    room = _Room(placed, setting)
    if len(new) <= _FEW and not setting.is_long(new).any():
        made = _one_by_one(new, setting, room)
    else:
        made = planner.assign_in(new, replace(setting, slots=room.free.copy()))
        room.take(new, made, setting)
    made = _repaired(new, made, setting, room)
    moved, cell = room.moved
    region, window = np.divmod(cell, setting.windows)
    return Addition(_judged(new, made, setting, prices), moved, region, window)


class _Room:
    """The lanes that are free beside what is placed, and who could move."""

    def __init__(self, placed: Demand, setting: Setting) -> None:
        region, window = placed.current.T
        shape = setting.slots.shape
        has_place = (window >= 0) & (window < shape[1])
        duration = placed.duration_s
        short = has_place & is_short(duration)
        # Most hold one cell; only what is longer than what is left of the running window may hold more.
        cells = np.ones(len(placed), dtype=np.int64)
        may_span = np.flatnonzero(has_place & (duration > np.where(window == 0, setting.left_s, WINDOW_S)))
        now, later = contiguous.cells_held(duration[may_span], setting.left_s)
        cells[may_span] = np.where(window[may_span] == 0, now, later)
        alone, cell = has_place & ~short, region * shape[1] + window
        one = alone & (cells == 1)
        used = np.bincount(cell[one], minlength=setting.slots.size).reshape(shape)
        spans = np.flatnonzero(alone & (cells > 1))
        used = used + lanes_held(region[spans], window[spans], cells[spans], (shape[0], shape[1]))
        self.short_s: FloatArray = np.zeros(shape)
        np.add.at(self.short_s, (region[short], window[short]), duration[short])
        self.free = setting.slots - used - _lanes(self.short_s)
        self.rows = np.flatnonzero(one)
        self.before = cell[self.rows]
        self._placed, self._setting, self._kinds = placed, setting, len(placed.kinds)

    @cached_property
    def occupants(self) -> Occupants:
        """Who could move: whoever holds one lane of one cell in time, and may be there."""
        placed, setting, rows = self._placed, self._setting, self.rows
        windows = setting.windows
        first, last = setting.range(placed.release_s[rows], placed.latest_s[rows], placed.duration_s[rows])
        is_right = (first <= self.before % windows) & (self.before % windows <= last)
        allowed = np.zeros((len(placed.kinds), len(setting.slots)), dtype=np.bool_)
        for row, kind in enumerate(placed.kinds):
            allowed[row, list(kind.regions)] = True
        # What is late or not where it may be stays: an empty range keeps it there.
        first, last = np.where(is_right, first, windows), np.where(is_right, last, windows - 1)
        return Occupants(self.before.copy(), placed.kind[rows], first, last, allowed)

    def join(self, cell: IntArray, kind: IntArray, ranges: tuple[IntArray, IntArray], allowed: BoolArray) -> None:
        """Let new chunks that hold one lane each be moved like others; ``allowed[kind, region]``."""
        old = self.occupants
        if len(old.allowed) == self._kinds:
            old.allowed = np.concatenate((old.allowed, allowed))
        old.cell = np.concatenate((old.cell, cell))
        old.group = np.concatenate((old.group, kind + self._kinds))
        old.first = np.concatenate((old.first, ranges[0]))
        old.last = np.concatenate((old.last, ranges[1]))

    @property
    def joined(self) -> IntArray:
        """The cells of the chunks that joined, in that order."""
        return self.occupants.cell[len(self.before) :]

    @property
    def moved(self) -> tuple[IntArray, IntArray]:
        """Return the rows of what moved, and the cells where it is now."""
        if "occupants" not in self.__dict__:
            return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
        cell = self.occupants.cell[: len(self.before)]
        chosen = np.flatnonzero(cell != self.before)
        return self.rows[chosen], cell[chosen]

    def fits(self, duration_s: float) -> BoolArray:
        """Say in which cells there is room for a chunk of at most a window."""
        if bool(is_short(np.array([duration_s]))[0]):
            return self.free - _lanes(self.short_s + np.float64(duration_s)) + _lanes(self.short_s) >= 0
        return self.free > 0

    def load(self, regions: IntArray, window: int, duration_s: float, slots: IntArray) -> FloatArray:
        """Say how full some cells of a window would be with a chunk more; a lane that it can share is not taken."""
        free, more = self.free[regions, window], np.ones(len(regions))
        if bool(is_short(np.array([duration_s]))[0]):
            short_s = self.short_s[regions, window]
            more = (_lanes(short_s + np.float64(duration_s)) - _lanes(short_s)).astype(np.float64)
        load: FloatArray = more * 1e6 + (slots[regions, window] - free) / np.maximum(slots[regions, window], 1)
        return load

    def put(self, cell: tuple[int, int], duration_s: float) -> None:
        """Take room in a cell."""
        if bool(is_short(np.array([duration_s]))[0]):
            before = _lanes(self.short_s[cell])
            self.short_s[cell] += duration_s
            self.free[cell] -= _lanes(self.short_s[cell]) - before
        else:
            self.free[cell] -= 1

    def take(self, new: Demand, made: Assignment, setting: Setting) -> None:
        """Take the room of chunks that were placed on the free lanes."""
        fake = replace(new, current=np.stack((made.region, made.window), axis=1))
        part = _Room(fake, setting)
        self.free -= setting.slots - part.free
        self.short_s += part.short_s


def _lanes(short_s: FloatArray) -> IntArray:
    """Return the lanes that short chunks of so many seconds together take."""
    return np.ceil(short_s / _LANE_S - 1e-9).astype(np.int64)


def _one_by_one(new: Demand, setting: Setting, room: _Room) -> Assignment:
    n = len(new)
    region, window = np.full(n, -1, dtype=np.int64), np.full(n, -1, dtype=np.int64)
    first, last = setting.range(new.release_s, new.latest_s, new.duration_s)
    start_s = np.full(n, np.nan)
    for row in np.lexsort((np.arange(n), new.latest_s)).tolist():
        duration = float(new.duration_s[row])
        fits = room.fits(duration) & _wanted(new, row, first, last, setting)
        if fits.any():
            cost = np.where(fits, _guide(new, row, setting), np.inf)
            # Ties go to the earlier window, by columns first, and then to the emptier cell.
            column, chosen = divmod(int(np.argmin(cost.T)), cost.shape[0])
            if not setting.costs.is_overlay:
                alike = np.flatnonzero(cost[:, column] == cost[chosen, column])
                load = room.load(alike, column, duration, setting.slots)
                chosen = int(alike[np.lexsort((setting.costs.is_far[alike], load))[0]])
            region[row], window[row], start_s[row] = chosen, column, setting.starts_s[column]
            room.put((chosen, column), duration)
    return Assignment(region, window, start_s, np.zeros(n), math.nan, math.nan, math.nan)


def _wanted(new: Demand, row: int, first: IntArray, last: IntArray, setting: Setting) -> BoolArray:
    column = np.arange(setting.windows)
    return setting.costs.allowed[new.kind[row]][:, None] & (column >= first[row]) & (column <= last[row])


def _guide(new: Demand, row: int, setting: Setting) -> FloatArray:
    costs, kind = setting.costs, int(new.kind[row])
    made = costs.kwh[kind][:, None] * (costs.rate + costs.tie) + costs.extra_g[kind][:, None] + costs.displaced
    over = costs.carbon > costs.cap_rate[kind][:, None] * (1 + 1e-9)
    worst = 1.0 + 100 * float(np.abs(made).max())
    guide: FloatArray = np.where(over, made + worst, made)
    return guide


def _repaired(new: Demand, made: Assignment, setting: Setting, room: _Room) -> Assignment:
    """Move others along for chunks that are not in time; what still is not starts as early as there is room."""
    is_long = setting.is_long(new)
    missed = (made.window < 0) | (lateness(new, made.start_s) > 0)
    todo = np.flatnonzero(missed & ~is_long)
    if not len(todo):
        return made
    region, window, start_s = made.region.copy(), made.window.copy(), made.start_s.copy()
    for row in todo[window[todo] >= 0].tolist():
        _leave(room, (int(region[row]), int(window[row])), float(new.duration_s[row]))
    window[todo] = -1
    first, last = setting.range(new.release_s, new.latest_s, new.duration_s)
    # New ones that are in time may move, too.
    # What starts within the running window holds no cell there, but a lane that frees itself.
    is_whole = start_s == setting.starts_s[window]
    movable = np.flatnonzero(~missed & ~is_long & ~is_short(new.duration_s) & is_whole)
    cells = region[movable] * setting.windows + window[movable]
    room.join(cells, new.kind[movable], (first[movable], last[movable]), setting.costs.allowed)
    for row in todo[np.argsort(new.latest_s[todo], kind="stable")].tolist():
        duration = float(new.duration_s[row])
        wanted = _wanted(new, row, first, last, setting)
        fits = wanted & room.fits(duration)
        if fits.any():
            cell = int(np.argmin(np.where(fits, _guide(new, row, setting), np.inf)))
        else:
            found = make_room(room.occupants, room.free, wanted, setting.costs.rate) if wanted.any() else None
            if found is None:
                continue
            cell = found
        region[row], window[row] = divmod(cell, setting.windows)
        room.put((int(region[row]), int(window[row])), duration)
        if not is_short(new.duration_s[row : row + 1]).any():
            room.join(np.array([cell]), new.kind[[row]], (first[[row]], last[[row]]), setting.costs.allowed)
            movable = np.append(movable, row)
    region[movable], window[movable] = np.divmod(room.joined, setting.windows)
    for row in todo[window[todo] < 0].tolist():
        duration = float(new.duration_s[row])
        later = room.fits(duration) & _wanted(new, row, first, np.full(len(new), setting.windows), setting)
        if later.any():
            column, chosen = divmod(int(np.argmax(later.T)), later.shape[0])
            region[row], window[row] = chosen, column
            room.put((chosen, column), duration)
    region = np.where(window >= 0, region, -1)
    changed = np.concatenate((todo, movable))
    start_s[changed] = np.where(window[changed] >= 0, setting.starts_s[window[changed]], np.nan)
    return replace(made, region=region, window=window, start_s=start_s)


def _leave(room: _Room, cell: tuple[int, int], duration_s: float) -> None:
    if bool(is_short(np.array([duration_s]))[0]):
        before = _lanes(room.short_s[cell])
        room.short_s[cell] -= duration_s
        room.free[cell] += before - _lanes(room.short_s[cell])
    else:
        room.free[cell] += 1


def _judged(new: Demand, made: Assignment, setting: Setting, prices: FloatArray | None) -> Assignment:
    """Return the assignment with lateness, objective and bound of the new chunks alone."""
    late_s = lateness(new, made.start_s)
    costs = setting.costs
    if costs.is_overlay:
        return replace(made, late_s=late_s, objective=math.nan, bound=math.nan, gap=math.nan)
    if not math.isnan(made.objective) and setting.is_long(new).any():
        return replace(made, late_s=late_s)
    placed = made.window >= 0
    cost = costs.of(new.kind, np.maximum(made.region, 0), np.maximum(made.window, 0))
    objective = float(cost[placed].sum())
    first, last = setting.range(new.release_s, new.latest_s, new.duration_s)
    chunks = bounds.Chunks(new.kind, first, last, lane_shares(new.duration_s))
    slots = setting.slots.copy()
    slots[:, 0] += freeing.lanes_more(setting)
    prices = np.zeros_like(costs.rate) if prices is None else np.where(slots > 0, prices, 0.0)
    # What the lanes are worth in all is taken off in the bound of the plan that the prices are of.
    least = float((prices * slots).sum()) + bounds.lower_bound(
        chunks,
        costs,
        slots,
        prices,
        late=int((late_s > 0).sum()),
        unplaced=int((~placed).sum()),
    )
    least = min(least, objective)
    return replace(made, late_s=late_s, objective=objective, bound=least, gap=gap(objective, least))
