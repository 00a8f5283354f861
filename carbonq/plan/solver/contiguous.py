"""Place chunks that hold their slot for several windows on end: engines that cannot stop. Pure arrays.

Chunks alike in cost, length and choice of starts are one class. Prices for slots (``prices.py``) give a lower bound and
a fractional plan, ``rounding.py`` makes whole starts of it. Deadlines come first: what found no room is given some by
moving others, and if any would still be late, a plan by deadline alone is made too and the one with fewer late is
taken. What cannot be in time starts as early as it can, the most pressing first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from carbonq.plan.demand import BoolArray, Demand, FloatArray, IntArray
from carbonq.plan.solver.grouping import matches, rows_of
from carbonq.plan.solver.lanes import EPSILON_S
from carbonq.plan.solver.overload import by_deadline, least_late, trade
from carbonq.plan.solver.prices import STEPS, TEMPERATURES, Classes, Prices, startable
from carbonq.plan.solver.rounding import MOST_SEARCHES, Board, fill, improve, make_room, sweep
from carbonq.plan.solver.shapes import shapes_of
from carbonq.plan.solver.stretches import Integral, cells_held

#: Up to so many classes it is asked first whether all can be in time: the flow that says so takes some milliseconds.
_MOST_ASKED = 2_000

#: Searches for room, and steps towards prices, where it is proven that not all can be in time: a plan is made every few
#: seconds then, and slots are short whatever they cost.
_FEW_SEARCHES, _FEW_TEMPERATURES, _FEW_STEPS = 300, (1e-1, 2e-2, 2e-3), (60, 60, 60)

#: Where less than this share must be late, prices are asked which of unlike lengths to leave out, too.
_NEARLY_ALL = 0.1

#: Breaking a carbon cap costs as much as this many of the dearest chunks.
_CAP_PENALTY = 10


@dataclass(frozen=True, slots=True)
class Placed:
    """Where chunks start, by row of the demand: region row and window column, -1 where they have no room at all.

    ``late`` chunks start after their latest start (or not at all). ``cost`` is each chunk's (NaN without a place),
    ``objective`` their sum and ``bound`` a proven lower bound on it for any plan with no more chunks late, without a
    place or above their cap. ``held[region, window]`` counts the slots they hold.
    """

    region: IntArray
    window: IntArray
    late: BoolArray
    cost: FloatArray
    objective: float
    bound: float
    held: IntArray


def place(
    demand: Demand,
    grams: FloatArray,
    slots: IntArray,
    *,
    starts_s: FloatArray,
    left_s: float,
    margin: float = 0.0,
    near: Sequence[int] = (),
) -> Placed:
    """Place chunks so that as many as can be are in time, at the least cost that could be found for that.

    ``grams[kind, region, window]`` is what a chunk of the kind costs if it runs wholly in that window; inf in all
    windows of a region where the kind may not run. ``slots`` are by [region, window], ``starts_s`` when each window can
    first be used, in seconds from now, ``left_s`` what is left of the running one. A chunk at ``demand.current`` stays
    unless leaving gains more than ``margin`` of its cost. Where only time counts, because nothing costs anything or
    because it is late, a chunk goes to the earliest window and there to the region with the lowest rank in ``near``.

    Raises ValueError where the shapes do not fit together.
    """
    if grams.shape != (len(demand.kinds), *slots.shape) or len(starts_s) != slots.shape[1]:
        raise ValueError("grams must be by [kind, region, window] and slots and starts by the same regions and windows")
    rank = np.asarray(near, dtype=np.int64) if len(near) else np.arange(len(slots))
    return _Contiguous(demand, grams, np.maximum(slots, 0), (starts_s, left_s), (margin, rank)).place()


class _Contiguous:
    def __init__(
        self,
        demand: Demand,
        grams: FloatArray,
        slots: IntArray,
        time: tuple[FloatArray, float],
        rules: tuple[float, IntArray],
    ) -> None:
        (starts_s, left_s), (self.margin, near) = time, rules
        self.demand, self.slots, self.near = demand, slots, near / max(1, len(near))
        self.regions, self.windows = slots.shape
        self.allowed: BoolArray = np.isfinite(grams).min(axis=2)
        self.integral = Integral(np.where(self.allowed[..., None], grams, 0.0), starts_s, left_s)
        self.caps = np.array([kind.max_g for kind in demand.kinds], dtype=np.float64)
        self.penalty = _CAP_PENALTY * float(self.integral.values.max(initial=0.0))
        self.held_now, self.held_later = cells_held(demand.duration_s, left_s)
        release = np.maximum(demand.release_s, 0.0)
        self.first = np.searchsorted(starts_s, release - EPSILON_S).astype(np.int64)
        self.last = np.searchsorted(starts_s, demand.latest_s + EPSILON_S, side="right").astype(np.int64) - 1
        # Few chunks need no exact prices: moving them one by one does as well.
        effort = min(1.0, 0.5 + len(demand) / 160)
        self.steps = tuple(round(effort * steps) for steps in STEPS)
        self.other_cell: FloatArray | None = None
        held = (self.held_now, self.held_later)
        self.shape, self.ends, cost = shapes_of(demand, self.integral, self.allowed, held, self.penalty)
        self.cost = startable(cost, self.ends, slots)
        self.can_start: BoolArray = np.isfinite(self.cost).max(axis=(1, 2), initial=False)
        self._classify()

    def _classify(self) -> None:
        """Sort chunks into classes; ``hopeless`` ones have no start in time even if they were alone."""
        self.hopeless = self.last < self.first
        any_start = np.zeros((len(self.cost), self.windows + 1), dtype=np.int64)
        np.cumsum(np.isfinite(self.cost).any(axis=1), axis=1, out=any_start[:, 1:])
        first, last = np.minimum(self.first, self.windows - 1), np.maximum(self.last, 0)
        self.hopeless |= (any_start[self.shape, last + 1] - any_start[self.shape, first]) <= 0
        self.rows = np.flatnonzero(~self.hopeless)
        self.of, members = rows_of(self.shape[self.rows], self.first[self.rows], self.last[self.rows])
        chosen = self.rows[members]
        count = np.bincount(self.of, minlength=len(members)).astype(np.int64)
        self.classes = Classes(self.cost, self.ends, self.shape[chosen], self.first[chosen], self.last[chosen], count)

    @cached_property
    def _length(self) -> IntArray:
        """How many windows each class holds a slot in, in any window but the running one."""
        length: IntArray = (self.ends[:, -1] - self.windows + 1)[self.classes.shape]
        return length

    @cached_property
    def _early(self) -> FloatArray:
        """Prices that make the earliest start the cheapest, in the nearest region."""
        return np.where(np.isfinite(self.cost), np.arange(self.windows) + self.near[:, None], np.inf)

    def place(self) -> Placed:
        n = len(self.demand)
        self.region, self.window = np.full(n, -1, dtype=np.int64), np.full(n, -1, dtype=np.int64)
        prices = Prices(self.classes, self.slots)
        free = self.slots
        least = self._least_late() if 0 < len(self.classes.count) <= _MOST_ASKED else 0
        if least:
            board, prices = self._overloaded(least)
            self._members(board)
            free = board.free
        elif len(self.rows):
            is_free = not self.integral.values.any()
            starts = np.zeros_like(self.cost) if is_free else prices.solve(steps=self.steps)
            stays = self._stay(prices)
            board = self._around(prices, starts, stays)
            if board.rest.any() and stays.any():
                # Those that stay may be in the way.
                other = self._around(prices, starts, np.zeros_like(stays))
                if other.rest.sum() < board.rest.sum():
                    board = other
            if board.rest.any() and not is_free:
                board = self._again(board)
            self._members(board)
            free = board.free
        late = self.window < 0
        return self._result(prices, late, self._late(free))

    def _least_late(self) -> int:
        rows = self.rows
        held = np.minimum(self.held_now, self.held_later)[rows]
        return least_late(self.demand.take(rows), held, self.slots, self.first[rows], self.last[rows])

    def _overloaded(self, least: int) -> tuple[Board, Prices]:
        """Choose by deadline alone which to leave out, then place the others for carbon where they all fit."""
        empty = Board.empty(self.classes, self.slots)
        board = by_deadline(empty, self._early, least, _FEW_SEARCHES)
        everyone, prices = Prices(self.classes, self.slots), Prices(self.classes, self.slots)
        if not self.integral.values.any():
            return board, prices
        is_unlike = len(np.unique(self.ends[:, -1])) > 1
        if is_unlike and board.rest.sum() > least and least < _NEARLY_ALL * len(self.rows):
            # Prices know which of unlike lengths to leave out where nearly all can be in time.
            starts = everyone.solve(_FEW_TEMPERATURES[:2], _FEW_STEPS[:2])
            other = self._few(everyone, starts, empty.copy(), least)
            board = min(board, other, key=lambda board: (board.rest.sum(), board.cost()))
        kept = self.classes.count - board.rest
        if not kept.any():
            return board, prices
        some = Prices(self.classes.only(kept > 0, kept[kept > 0]), self.slots)
        starts = some.solve(_FEW_TEMPERATURES, _FEW_STEPS)
        prices.cell = some.cell
        stays = self._stay(prices)
        nobody = np.zeros_like(stays)
        tries = [(stays, 0.5)] * bool(stays.any()) + [(nobody, 0.5)]
        # Where the fractions are cut decides whether unlike lengths fit.
        tries += [(nobody, 0.35)] * is_unlike
        for staying, offset in tries:
            around = empty.copy()
            around.rest = kept.copy()
            self._leave(around, staying)
            other = self._few(prices, starts, around, int(board.rest.sum()), offset)
            if other.rest.sum() <= board.rest.sum():
                return other, prices
        return board, prices

    def _few(self, prices: Prices, starts: FloatArray, board: Board, least: int, offset: float = 0.5) -> Board:
        """Round with few searches, then let in what the board did not want: which ones are in time does not matter."""
        k, _, _, chunks = board.columns()
        left_out = self.classes.count - board.rest - np.bincount(k, chunks, len(board.rest)).astype(np.int64)
        board.searches = _FEW_SEARCHES
        made = self._by_prices(prices, starts, board, offset)
        made.rest += left_out
        made.searches = _FEW_SEARCHES
        fill(made, self._early, np.lexsort((self.classes.last, self._length)))
        trade(made, least)
        return made

    def _again(self, board: Board) -> Board:
        """Where some are late, price and place the others anew without them, if that is better for carbon."""
        kept = self.classes.count - board.rest
        if board.fixed or not kept.any():
            return board
        prices = Prices(self.classes.only(kept > 0, kept[kept > 0]), self.slots)
        starts = prices.solve(steps=self.steps)
        self.other_cell = prices.cell
        all_prices = Prices(self.classes, self.slots, prices.cell)
        other = Board.empty(self.classes, self.slots)
        other.rest = kept.copy()
        other = self._by_prices(all_prices, starts, other)
        if other.rest.any() or other.cost() >= board.cost():
            return board
        other.rest = board.rest
        return other

    def _by_prices(self, prices: Prices, starts: FloatArray, board: Board, offset: float = 0.5) -> Board:
        """Round a fractional plan, better it where chunks sit too dear, and make room for those that found none."""
        price, least, tolerance = prices.reduced(), prices.least(), 1e-3 * prices.scale
        sweep(board, starts, offset)
        fill(board, price)
        for _ in range(2):
            board = improve(board, price, least, tolerance)
        if board.rest.any():
            make_room(board, price)
        return board

    def _around(self, prices: Prices, starts: FloatArray, stays: BoolArray) -> Board:
        """Round a fractional plan to whole starts, around chunks that stay where they are."""
        board = Board.empty(self.classes, self.slots)
        if stays.any():
            self._leave(board, stays)
            left = board.rest > 0
            if left.any() and starts.any():
                others = Prices(self.classes.only(left, board.rest[left]), board.free, prices.cell.copy())
                starts = others.solve(TEMPERATURES[-2:], STEPS[-2:])
        return self._round(prices, starts, board)

    def _leave(self, board: Board, stays: BoolArray) -> None:
        """Put chunks that stay where they are, of each class as many as the board wants."""
        rows = np.flatnonzero(stays[self.rows])
        columns = (self.of[rows], *self.demand.current[self.rows[rows]].T)
        group, members = rows_of(*columns)
        chunks = np.bincount(group).tolist()
        for start, count in zip(zip(*(c[members].tolist() for c in columns), strict=True), chunks, strict=True):
            wanted = min(count, int(board.rest[start[0]]))
            if wanted:
                board.put(start, wanted)
                board.fixed[start] = wanted

    def _round(self, prices: Prices, starts: FloatArray, board: Board) -> Board:
        empty = board.copy()
        if starts.any():
            board = self._by_prices(prices, starts, board)
        if board.rest.any():
            early = by_deadline(empty, self._early, 0, MOST_SEARCHES // 4)
            if early.rest.sum() < board.rest.sum():
                board = improve(early, prices.reduced(), prices.least(), 1e-3 * prices.scale)
        return board

    def _stay(self, prices: Prices) -> BoolArray:
        """Say which chunks stay where they are: leaving does not gain more than the margin, and there are slots."""
        stays = np.zeros(len(self.window), dtype=np.bool_)
        current = self.demand.current
        row, window = current[self.rows].T
        may = (window >= np.maximum(self.first[self.rows], 0)) & (window <= self.last[self.rows])
        may &= (row >= 0) & (row < self.regions)
        may[may] = np.isfinite(self.cost[self.shape[self.rows[may]], row[may], window[may]])
        rows, of = self.rows[may], self.of[may]
        here = (self.shape[rows], row[may], window[may])
        gain = prices.reduced()[here] - self.margin * self.cost[here] - prices.least()[of]
        is_kept = gain <= 1e-9 * prices.scale
        rows, gain = rows[is_kept], gain[is_kept]
        group, members = rows_of(self.shape[rows], *current[rows].T)
        order = np.lexsort((gain, group))
        begin = np.searchsorted(group[order], np.arange(len(members) + 1))
        free = self.slots.copy()
        for one in np.argsort(gain[order[begin[:-1]]], kind="stable").tolist():
            chosen = rows[order[begin[one] : begin[one + 1]]]
            r, t = current[chosen[0]]
            held = free[r, t : self.ends[self.shape[chosen[0]], t]]
            chosen = chosen[: max(0, int(held.min()))]
            held -= len(chosen)
            stays[chosen] = True
        return stays

    def _members(self, board: Board) -> None:
        """Give the starts of each class to its chunks: the tightest are in time, the dearest get the cleanest."""
        k, row, window, chunks = board.columns()
        cost = self.cost[self.classes.shape[k], row, window]
        order = np.lexsort((row, window, cost, k))
        k, row, window = (np.repeat(column[order], chunks[order]) for column in (k, row, window))
        todo = np.flatnonzero(self.window[self.rows] < 0)
        todo = todo[np.lexsort((todo, self.demand.latest_s[self.rows[todo]], self.of[todo]))]
        rank = np.arange(len(todo)) - np.searchsorted(self.of[todo], self.of[todo])
        todo = todo[rank < np.bincount(k, minlength=len(self.classes.count))[self.of[todo]]]
        # Who is already at one of the starts takes it.
        now = self.demand.current[self.rows[todo]]
        at, slot = matches((self.of[todo], now[:, 0], now[:, 1]), (k, row, window))
        chosen = self.rows[todo[at]]
        self.region[chosen], self.window[chosen] = row[slot], window[slot]
        todo = np.delete(todo, at)
        k, row, window = (np.delete(column, slot) for column in (k, row, window))
        weight = self.integral.values.mean(axis=(1, 2))[self.demand.kind[self.rows[todo]]]
        todo = todo[np.lexsort((todo, -weight, self.of[todo]))]
        chosen = self.rows[todo]
        self.region[chosen], self.window[chosen] = row, window

    def _late(self, free: IntArray) -> IntArray:
        """Start what is not in time as early as there is room, the earliest latest start first; return what is free."""
        todo = np.flatnonzero(self.window < 0)
        todo = todo[(self.first[todo] < self.windows) & self.can_start[self.shape[todo]]]
        if not len(todo):
            return free
        of, members = rows_of(self.shape[todo], self.first[todo], self.last[todo])
        chosen = todo[members]
        count = np.bincount(of, minlength=len(members)).astype(np.int64)
        last = np.full(len(members), self.windows - 1)
        classes = Classes(self.cost, self.ends, self.shape[chosen], self.first[chosen], last, count)
        board = Board.empty(classes, free)
        fill(board, self._early, np.lexsort((self.first[chosen], self.last[chosen])))
        k, row, window, chunks = board.columns()
        order = np.lexsort((row, window, k))
        k, row, window = (np.repeat(column[order], chunks[order]) for column in (k, row, window))
        of_order = np.lexsort((todo, self.demand.latest_s[todo], of))
        rank = np.arange(len(todo)) - np.searchsorted(of[of_order], of[of_order])
        got = todo[of_order[rank < np.bincount(k, minlength=len(members))[of[of_order]]]]
        self.region[got], self.window[got] = row, window
        return board.free

    def _result(self, prices: Prices, late: BoolArray, free: IntArray) -> Placed:
        placed = self.window >= 0
        cost = np.full(len(late), np.nan)
        kind = self.demand.kind[placed]
        where = (kind, self.region[placed])
        cost[placed] = self.integral.means_at(where, self.window[placed], self.demand.duration_s[placed])
        objective = float(cost[placed].sum())
        over = int((cost[placed] > self.caps[kind] * (1 + 1e-9)).sum())
        bound = self._bound(prices, late, placed)
        if self.other_cell is not None:
            bound = max(bound, self._bound(Prices(self.classes, self.slots, self.other_cell), late, placed))
        bound -= self.penalty * over
        bound = min(max(0.0, bound), objective)
        return Placed(self.region, self.window, late, cost, objective, bound, self.slots - free)

    def _bound(self, prices: Prices, late: BoolArray, placed: BoolArray) -> float:
        """Return what no plan with as few late and as few without a place can cost less than.

        Any plan's chunks cost at least their least reduced cost, less what the slots are worth; those late the least
        without a deadline, those without a place nothing. The plan may choose which: so the largest differences count.
        """
        anywhere = np.full(len(late), np.inf)
        chosen = np.flatnonzero((self.first < self.windows) & self.can_start[self.shape])
        least = np.zeros(len(late))
        least[self.rows] = prices.least()[self.of] if len(self.rows) else 0.0
        if late.any() and len(chosen):
            of, members = rows_of(self.shape[chosen], self.first[chosen])
            rows = chosen[members]
            last = np.full(len(rows), self.windows - 1)
            count = np.ones(len(rows), dtype=np.int64)
            relaxed = Classes(self.cost, self.ends, self.shape[rows], self.first[rows], last, count)
            anywhere[chosen] = Prices(relaxed, self.slots, prices.cell).least()[of]
        value = np.where(self.hopeless, anywhere, least)
        total = float(value[np.isfinite(value)].sum()) - float((prices.cell * self.slots).sum())
        # All of those late save up to this much, and those without a place the rest of their cost too.
        saved = np.where(self.hopeless, 0.0, least - np.minimum(anywhere, least))
        total -= _largest(saved, int((late & ~self.hopeless).sum()))
        value = np.where(self.hopeless, anywhere, np.minimum(anywhere, least))
        return total - _largest(np.where(np.isfinite(value), value, 0.0), int((~placed & np.isfinite(value)).sum()))


def _largest(values: FloatArray, count: int) -> float:
    """Return the sum of the ``count`` largest values."""
    return float(np.sort(values)[len(values) - count :].sum()) if count else 0.0
