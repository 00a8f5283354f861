"""How many windows a chunk holds its slot in, and what it causes over the stretch of time that it runs. Pure."""

from __future__ import annotations

import numpy as np

from carbonq.plan.demand import FloatArray, IntArray
from carbonq.plan.policy import OVERRUN_SHARE
from carbonq.plan.solver.lanes import EPSILON_S
from carbonq.units import WINDOW_S


def cells_held(duration_s: FloatArray, left_s: float) -> tuple[IntArray, IntArray]:
    """Return how many windows chunks hold a slot in: started in the running window, and in any later one.

    ``left_s`` seconds of the running window are left. As in ``lanes.Lanes.span``: the last fifth of a window may spill
    into the next one.
    """

    def cells(room_s: float, first_s: float) -> IntArray:
        more = np.ceil((duration_s - first_s) / WINDOW_S - OVERRUN_SHARE - EPSILON_S)
        return np.where(duration_s <= room_s + EPSILON_S, 1, 1 + np.maximum(1, more)).astype(np.int64)

    return cells(min(WINDOW_S, left_s + OVERRUN_SHARE * WINDOW_S), left_s), cells(WINDOW_S, WINDOW_S)


class Integral:
    """Mean of rates by ``[..., window]`` over any stretch of time; beyond the horizon the last window goes on."""

    def __init__(self, values: FloatArray, starts_s: FloatArray, left_s: float) -> None:
        """Take values of windows that start at ``starts_s``; ``left_s`` of the first are left."""
        self.values, self.starts_s, self.left_s = values, starts_s, left_s
        length = np.full(len(starts_s), float(WINDOW_S))
        length[0] = left_s
        self.sums = np.zeros_like(values)
        np.cumsum((values * length)[..., :-1], axis=-1, out=self.sums[..., 1:])

    def only(self, row: int) -> Integral:
        """Return that of one row of the first axis."""
        one = object.__new__(Integral)
        one.values, one.sums, one.starts_s, one.left_s = self.values[row], self.sums[row], self.starts_s, self.left_s
        return one

    def ends(self, end_s: FloatArray) -> tuple[IntArray, FloatArray]:
        """Return the windows in which times lie, and the seconds since their starts."""
        at = np.maximum(np.searchsorted(self.starts_s, end_s, side="right") - 1, 0)
        return at, end_s - self.starts_s[at]

    def means(self, duration_s: float) -> FloatArray:
        """Return the mean over ``duration_s`` from each window's start on."""
        if duration_s <= 0:
            return self.values
        at, more = self.ends(self.starts_s + duration_s)
        made: FloatArray = (self.sums[..., at] + self.values[..., at] * more - self.sums) / duration_s
        return made

    def means_at(self, rows: tuple[IntArray, ...], window: IntArray, duration_s: FloatArray) -> FloatArray:
        """Return the means of single chunks: ``rows`` index all axes but the last."""
        at, more = self.ends(self.starts_s[window] + duration_s)
        whole = self.sums[(*rows, at)] + self.values[(*rows, at)] * more - self.sums[(*rows, window)]
        here = self.values[(*rows, window)]
        made: FloatArray = np.where(duration_s > 0, whole / np.maximum(duration_s, EPSILON_S), here)
        return made
