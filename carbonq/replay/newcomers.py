"""Place what has just arrived around what is booked: each group of like pieces in its cheapest free cells. Pure.

Alike are pieces with the same length and deadline. A group of its own is placed at best; what it takes from others is
set right by the next re-plan. A piece that finds no room in time is left to a plan of everything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from carbonq.plan.evidence import IntArray
from carbonq.plan.forecaster import FloatArray


def place(
    due: IntArray, windows: IntArray, rates: FloatArray, free: IntArray, rows: Sequence[int]
) -> tuple[IntArray, IntArray]:
    """Return (region row, window column) of each piece, (-1, -1) where there is no room in time.

    ``due`` are columns. By ``[region, column]``: ``rates`` are what is chosen by, ``free`` the free slots, of which it
    takes what it places.
    """
    barred = np.setdiff1d(np.arange(len(rates)), rows)
    free[barred] = 0
    board = _Board(free, np.full(len(due), -1, dtype=np.int64), np.full(len(due), -1, dtype=np.int64))
    groups, index = np.unique(np.stack((due, windows)), axis=1, return_inverse=True)
    # The most pressing first: ``unique`` puts them in order of deadline.
    for group, (until, length) in enumerate(groups.T.tolist()):
        starts = min(until, free.shape[1]) - length + 1
        if starts >= 1:
            board.put(np.flatnonzero(index.ravel() == group), _means(rates, length)[:, :starts], length)
    return board.region, board.column


def _means(rates: FloatArray, length: int) -> FloatArray:
    if length == 1:
        return rates
    sums = np.pad(np.cumsum(rates, axis=1), ((0, 0), (1, 0)))
    return (sums[:, length:] - sums[:, :-length]) / length


@dataclass(frozen=True, slots=True)
class _Board:
    free: IntArray
    region: IntArray
    column: IntArray

    def put(self, members: IntArray, cost: FloatArray, length: int) -> None:
        """Place like pieces at the given costs of starting in each cell."""
        if length == 1:
            self._short(members, cost)
            return
        for member in members.tolist():
            part = self.free[:, : cost.shape[1] + length - 1]
            room = np.lib.stride_tricks.sliding_window_view(part, length, axis=1).min(axis=2)
            wanted = np.where(room > 0, cost, np.inf)
            window, row = np.divmod(int(np.argmin(wanted.T)), len(cost))
            if not np.isfinite(wanted[row, window]):
                return
            self.region[member], self.column[member] = row, window
            self.free[row, window : window + length] -= 1

    def _short(self, members: IntArray, cost: FloatArray) -> None:
        # By window first: of equal costs the earlier one is taken.
        room = np.clip(self.free[:, : cost.shape[1]], 0, len(members)).T.ravel()
        order = np.argsort(np.where(room > 0, cost.T.ravel(), np.inf), kind="stable")[: len(members)]
        cells = np.repeat(order, room[order])[: len(members)]
        placed = members[: len(cells)]
        self.column[placed], self.region[placed] = np.divmod(cells, len(cost))
        np.subtract.at(self.free, (self.region[placed], self.column[placed]), 1)
