"""What to leave out where not every long chunk can be in time: how many at least, and plans by deadline alone. Pure.

Which of unlike lengths to leave out is a packing problem. ``least_late`` says how many must be late in any plan;
``timetable`` starts chunks in the order of time, as a queue would, and ``trade`` takes one out where that lets several
others in. None of them looks at carbon.
"""

from __future__ import annotations

import heapq

import numpy as np

from carbonq.plan.demand import Demand, IntArray
from carbonq.plan.solver.lateness import Ranges, most_work
from carbonq.plan.solver.prices import FloatArray
from carbonq.plan.solver.rounding import Board, make_room

#: Work below this many slot windows is rounding.
_NO_WORK = 1e-3


def least_late(demand: Demand, held: IntArray, slots: IntArray, first: IntArray, last: IntArray) -> int:
    """Return how many chunks are late in any plan, at least: a proof by work that could be split at will.

    ``held`` are the windows in which each chunk holds a slot, ``first`` and ``last`` those in which it may start.
    """
    sets = sorted({kind.regions for kind in demand.kinds})
    where = np.array([sets.index(kind.regions) for kind in demand.kinds], dtype=np.int64)[demand.kind]
    end = np.minimum(last + held, slots.shape[1]) - 1
    work = held.astype(np.float64)
    left = float(work.sum()) - most_work(Ranges(sets, where, first, end), work, slots)
    if left <= _NO_WORK:
        return 0
    # No fewer than the largest that make up what is left.
    return int(np.searchsorted(np.cumsum(np.sort(work)[::-1]), left - _NO_WORK)) + 1


def by_deadline(empty: Board, price: FloatArray, least: int, searches: int) -> Board:
    """Return the plan with the fewest left over that was found by deadline alone, around what ``empty`` holds already.

    ``price`` makes the earliest start the cheapest; ``least`` are left over in any plan, so that no fewer are looked
    for; ``searches`` is what making room may spend.
    """
    best = empty
    for by_length in (False, True):
        board = empty.copy()
        timetable(board, price, by_length=by_length)
        trade(board, least)
        if board.rest.sum() > least:
            board.searches = searches
            make_room(board, price)
            board.searches = searches
            trade(board, least)
        if board.rest.sum() < best.rest.sum():
            best = board
        if best.rest.sum() <= least:
            break
    return best


def timetable(board: Board, price: FloatArray, *, by_length: bool) -> None:
    """Start what is left window by window, the nearest last start first or, ``by_length``, the shortest first.

    Among regions with room the one of the lowest ``price[shape, region, window]`` is taken.
    """
    classes = board.classes
    windows = classes.ends.shape[1]
    length = (classes.ends[:, -1] - windows + 1).tolist()
    pools: list[list[tuple[int, int]]] = [[] for _ in length]
    arrivals = np.argsort(classes.first, kind="stable").tolist()
    coming = 0
    for window in range(windows):
        while coming < len(arrivals) and classes.first[arrivals[coming]] <= window:
            k = arrivals[coming]
            if board.rest[k]:
                heapq.heappush(pools[int(classes.shape[k])], (int(classes.last[k]), k))
            coming += 1
        waiting: list[tuple[int, int, int]] = []
        for shape, pool in enumerate(pools):
            while pool and pool[0][0] < window:
                heapq.heappop(pool)
            if pool:
                waiting.append((length[shape] if by_length else pool[0][0], pool[0][0], shape))
        heapq.heapify(waiting)
        while waiting and (board.free[:, window] > 0).any():
            shape = heapq.heappop(waiting)[2]
            pool = pools[shape]
            room = board.free[:, window : classes.ends[shape, window]].min(axis=1)
            prices = np.where(room > 0, price[shape, :, window], np.inf)
            row = int(prices.argmin())
            if not np.isfinite(prices[row]):
                continue
            k = pool[0][1]
            board.put((k, row, window), min(int(room[row]), int(board.rest[k])))
            if board.rest[k] == 0:
                heapq.heappop(pool)
            if pool:
                heapq.heappush(waiting, (length[shape] if by_length else pool[0][0], pool[0][0], shape))


def trade(board: Board, least: int) -> None:
    """Take one chunk out where that lets more than one other in, longest first, until only ``least`` are left over."""
    classes = board.classes
    length = (classes.ends[:, -1] - classes.ends.shape[1] + 1)[classes.shape]
    order = np.lexsort((classes.last, length))
    for start in sorted(board.placed, key=lambda start: (-int(length[start[0]]), start)):
        k, row, window = start
        if board.searches <= 0 or board.rest.sum() <= least:
            return
        while board.placed.get(start, 0) > board.fixed.get(start, 0):
            mark, before = len(board.log), int(board.rest.sum())
            board.put(start, -1)
            _refill(board, order, length, (row, window, int(classes.ends[classes.shape[k], window])))
            if board.rest.sum() >= before:
                board.undo(mark)
                break


def _refill(board: Board, order: IntArray, length: IntArray, freed: tuple[int, int, int]) -> None:
    """Place what is left over at starts that hold a freed cell of ``(region, from window, to before window)``."""
    classes, (row, begin, end) = board.classes, freed
    may = (board.rest > 0) & (classes.last > begin - length) & (classes.first < end)
    for k in order[may[order]].tolist():
        shape, held = int(classes.shape[k]), int(length[k])
        low, high = max(int(classes.first[k]), begin - held + 1), min(int(classes.last[k]), end - 1)
        board.searches -= 1
        for window in range(low, high + 1):
            if board.rest[k] <= 0:
                break
            if not np.isfinite(classes.cost[shape, row, window]):
                continue
            room = int(board.free[row, window : classes.ends[shape, window]].min())
            if room > 0:
                board.put((k, row, window), min(room, int(board.rest[k])))
