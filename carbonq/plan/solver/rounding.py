"""Whole chunks out of a fractional plan: starts that hold their slots for windows on end, never more than there are.

``sweep`` walks through the windows and starts what the fractional plan says, earliest deadline first; ``fill`` places
what is left at the cheapest start with room; ``make_room`` moves others aside for what found none. All work on classes
with counts, so that the time follows the number of distinct choices and not of chunks. Pure.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np

from carbonq.plan.solver.prices import Classes, FloatArray, IntArray

#: A fractional start below this many chunks is none: what is due is not started there.
_NOTHING = 1e-3

#: Searches for another start that one plan may spend on making room; each takes about 20 us.
MOST_SEARCHES = 4000

#: How many chunks may make way for one another in turn.
CHAIN = 2

#: A start: class, region row, window column.
Start = tuple[int, int, int]


@dataclass(slots=True)
class Board:
    """Free slots, the chunks of each class not yet placed, and how many start where.

    Of those in ``placed``, ``fixed`` ones are not moved to save carbon.
    """

    classes: Classes
    free: IntArray  # [region, window]
    rest: IntArray  # [class]
    placed: dict[Start, int] = field(default_factory=dict[Start, int])
    fixed: dict[Start, int] = field(default_factory=dict[Start, int])
    searches: int = MOST_SEARCHES
    log: list[tuple[Start, int]] = field(default_factory=list[tuple[Start, int]])

    @classmethod
    def empty(cls, classes: Classes, slots: IntArray) -> Board:
        """Begin with nothing placed."""
        return cls(classes, slots.copy(), classes.count.copy())

    def copy(self) -> Board:
        """Return a board that can be changed without changing this one."""
        return Board(self.classes, self.free.copy(), self.rest.copy(), self.placed.copy(), self.fixed, self.searches)

    def put(self, start: Start, chunks: int) -> None:
        """Start chunks of a class (or take them off again: a negative number)."""
        self.log.append((start, chunks))
        k, row, window = start
        self.free[row, window : self.classes.ends[self.classes.shape[k], window]] -= chunks
        self.rest[k] -= chunks
        left = self.placed.get(start, 0) + chunks
        if left:
            self.placed[start] = left
        else:
            del self.placed[start]

    def undo(self, mark: int) -> None:
        """Take back all that was put since the log had ``mark`` entries."""
        while len(self.log) > mark:
            start, chunks = self.log.pop()
            self.put(start, -chunks)
            self.log.pop()

    def columns(self) -> tuple[IntArray, IntArray, IntArray, IntArray]:
        """Return what is placed as columns: class, region, window, chunks."""
        made = np.array([(*start, chunks) for start, chunks in self.placed.items()], dtype=np.int64).reshape(-1, 4)
        return made[:, 0], made[:, 1], made[:, 2], made[:, 3]

    def cost(self) -> float:
        """Return the cost of all that is placed."""
        k, row, window, chunks = self.columns()
        return float(self.classes.cost[self.classes.shape[k], row, window] @ chunks)

    def roomy(self, k: int, price: FloatArray) -> FloatArray:
        """Return ``price`` by (region, window from the class's first on), inf where a chunk of it has no room."""
        shape, first, last = (int(column[k]) for column in (self.classes.shape, self.classes.first, self.classes.last))
        return np.where(self.full_cells(k) > 0, np.inf, price[shape, :, first : last + 1])

    def full_cells(self, k: int) -> IntArray:
        """Count the full cells that a chunk of class ``k`` would hold, by (region, window from its first on)."""
        shape, first, last = (int(column[k]) for column in (self.classes.shape, self.classes.first, self.classes.last))
        ends = self.classes.ends[shape, first : last + 1]
        most = min(int(ends.max()), self.free.shape[1])
        full = np.zeros((len(self.free), most - first + 1), dtype=np.int64)
        np.cumsum(self.free[:, first:most] <= 0, axis=1, out=full[:, 1:])
        return full[:, np.minimum(ends, most) - first] - full[:, : last + 1 - first]


def sweep(board: Board, starts: FloatArray, offset: FloatArray | float = 0.5) -> None:
    """Start chunks window by window as ``starts[shape, region, window]`` says, those with the nearest last start first.

    Rounding the sums over time, and not each window, keeps the windows held by starts of one shape within the slots.
    A start that finds no room waits for the next window in which its region has starts of that shape.
    """
    classes = board.classes
    shapes, _, windows = starts.shape
    sums = np.floor(np.cumsum(starts, axis=2) + offset).astype(np.int64)
    whole = np.diff(sums, axis=2, prepend=0)
    due: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    for k, (shape, last) in enumerate(zip(classes.shape.tolist(), classes.last.tolist(), strict=True)):
        due[last, shape].append(k)
    active: list[set[int]] = [set() for _ in range(windows)]
    for shape, window in zip(*(where.tolist() for where in np.nonzero(whole.any(axis=1))), strict=True):
        active[window].add(shape)
    for last, shape in due:
        active[last].add(shape)
    owed = np.zeros(starts.shape[:2], dtype=np.int64)
    pools: list[list[tuple[int, int]]] = [[] for _ in range(shapes)]
    waiting = [0] * shapes
    length = (classes.ends[:, -1] - windows + 1).tolist()
    arrivals = np.argsort(classes.first, kind="stable").tolist()
    coming = 0
    for window in range(windows):
        while coming < len(arrivals) and classes.first[arrivals[coming]] <= window:
            k = arrivals[coming]
            shape = int(classes.shape[k])
            heapq.heappush(pools[shape], (int(classes.last[k]), k))
            waiting[shape] += int(board.rest[k])
            coming += 1
        indebted = {int(shape) for shape in np.flatnonzero(owed.any(axis=1))}
        for shape in sorted(active[window] | indebted, key=lambda shape: -length[shape]):
            pool = pools[shape]
            while pool and pool[0][0] < window:
                waiting[shape] -= int(board.rest[heapq.heappop(pool)[1]])
            owed[shape] += whole[shape, :, window]
            must = sum(int(board.rest[k]) for k in due.get((window, shape), ()))
            wanted = np.where(starts[shape, :, window] > _NOTHING, owed[shape], 0)
            if not pool or (must == 0 and not wanted.any()):
                continue
            room = board.free[:, window : classes.ends[shape, window]].min(axis=1)
            cost = classes.cost[shape, :, window]
            room[~np.isfinite(cost)] = 0
            chosen = _choose(np.minimum(wanted, room), room, cost, must, waiting[shape])
            owed[shape] = np.maximum(owed[shape] - chosen, 0)
            waiting[shape] -= int(chosen.sum())
            for row in np.flatnonzero(chosen).tolist():
                _start(board, pool, row, window, int(chosen[row]))


def _choose(chosen: IntArray, room: IntArray, cost: FloatArray, least: int, most: int) -> IntArray:
    """Change how many start in each region to a sum between ``least`` (as far as there is room) and ``most``."""
    total = int(chosen.sum())
    if total < least:
        for row in np.argsort(cost, kind="stable"):
            more = min(least - total, int(room[row] - chosen[row]))
            chosen[row] += more
            total += more
    if total > most:
        for row in np.argsort(-cost, kind="stable"):
            fewer = min(total - most, int(chosen[row]))
            chosen[row] -= fewer
            total -= fewer
    return chosen


def _start(board: Board, pool: list[tuple[int, int]], row: int, window: int, chunks: int) -> None:
    while chunks:
        k = pool[0][1]
        taken = min(chunks, int(board.rest[k]))
        if taken:
            board.put((k, row, window), taken)
            chunks -= taken
        if board.rest[k] == 0:
            heapq.heappop(pool)


def fill(board: Board, price: FloatArray, order: IntArray | None = None) -> None:
    """Place what is left where ``price[shape, region, window]`` is least, all of a class that fits there at once.

    Classes go in ``order``, by default those with the fewest starts to choose from first.
    """
    classes = board.classes
    todo = np.flatnonzero(board.rest > 0) if order is None else order
    if order is None:
        todo = todo[np.argsort((classes.last - classes.first)[todo], kind="stable")]
    for k in todo.tolist():
        shape, first = int(classes.shape[k]), int(classes.first[k])
        while board.rest[k] > 0:
            prices = board.roomy(k, price)
            best = int(prices.argmin())
            row, window = divmod(best, prices.shape[1])
            if not np.isfinite(prices[row, window]):
                break
            window += first
            room = int(board.free[row, window : classes.ends[shape, window]].min())
            board.put((k, row, window), min(room, int(board.rest[k])))


def improve(board: Board, price: FloatArray, least: FloatArray, tolerance: float) -> Board:
    """Take up what sits more than ``tolerance`` above its class's ``least`` price and place it anew.

    Returns the better board of the two; the given one is not changed.
    """
    k, row, window, chunks = board.columns()
    regret = price[board.classes.shape[k], row, window] - least[k]
    other = board.copy()
    for at in np.flatnonzero(regret > tolerance).tolist():
        start = (int(k[at]), int(row[at]), int(window[at]))
        loose = int(chunks[at]) - board.fixed.get(start, 0)
        if loose > 0:
            other.put(start, -loose)
    fill(other, price)
    if (other.rest.sum(), other.cost()) < (board.rest.sum(), board.cost()):
        return other
    return board


def make_room(board: Board, price: FloatArray) -> None:
    """Place what found no room by moving chunks that are in its way, and what is in theirs, to other starts."""
    classes = board.classes
    order = np.flatnonzero(board.rest > 0)
    for k in order[np.argsort(classes.last[order], kind="stable")].tolist():
        while board.rest[k] > 0 and _squeeze(board, k, price, CHAIN, frozenset()):
            pass


def _squeeze(board: Board, k: int, price: FloatArray, chain: int, locked: frozenset[Start]) -> bool:
    """Place one chunk of class ``k``, moving none of ``locked``; say whether that went."""
    classes = board.classes
    shape, first, last = int(classes.shape[k]), int(classes.first[k]), int(classes.last[k])
    rows, windows = np.nonzero(np.isfinite(price[shape, :, first : last + 1]))
    windows += first
    full = board.full_cells(k)[rows, windows - first]
    order = np.lexsort((windows, rows, price[shape, rows, windows], full))
    for row, window in zip(rows[order].tolist(), windows[order].tolist(), strict=True):
        if board.searches <= 0:
            break
        start = (k, row, window)
        if start in locked:
            continue
        mark = len(board.log)
        board.put(start, 1)
        held = board.free[row, window : classes.ends[shape, window]]
        while held.min() < 0:
            if not _move_aside(board, (row, window + int(np.argmin(held))), price, chain, locked | {start}):
                break
        else:
            return True
        board.undo(mark)
    return False


def _move_aside(board: Board, at: tuple[int, int], price: FloatArray, chain: int, locked: frozenset[Start]) -> bool:
    """Move one chunk that holds a (region, window) away from it; say whether that went."""
    classes, (row, cell) = board.classes, at
    there = [
        start
        for start in board.placed
        if start[1] == row and start[2] <= cell < classes.ends[classes.shape[start[0]], start[2]]
    ]
    movable = [start for start in there if start not in locked]
    for source in movable:
        if board.searches <= 0:
            return False
        board.searches -= 1
        mark = len(board.log)
        board.put(source, -1)
        k, _, window = source
        prices, first = board.roomy(k, price), int(classes.first[k])
        prices[row, window - first] = np.inf  # where it was
        best = int(prices.argmin())
        if np.isfinite(prices.flat[best]):
            board.put((k, best // prices.shape[1], best % prices.shape[1] + first), 1)
            return True
        board.undo(mark)
    for source in movable if chain else ():
        mark = len(board.log)
        board.put(source, -1)
        # Its place must be given up, so it counts as locked: it cannot come back there.
        if _squeeze(board, source[0], price, chain - 1, locked | {source}):
            return True
        board.undo(mark)
    return False
