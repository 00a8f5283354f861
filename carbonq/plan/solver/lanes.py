"""The lanes of all cells while a plan is being made: which are empty, which hold something and for how long. Pure.

Seconds are grid seconds from now. A lane of a cell takes chunks one after another as long as they end with the window
(in the window that runs: as long as they overrun it by less than ``policy.OVERRUN_SHARE``).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from carbonq.plan.policy import OVERRUN_SHARE
from carbonq.units import WINDOW_S

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

#: Tolerance in seconds against rounding of times: a microsecond, the resolution of a datetime.
EPSILON_S = 1e-6


@dataclass(frozen=True, slots=True)
class Spot:
    """Where something fits: row and column of its first cell, and its start in seconds from now."""

    region: int
    window: int
    start_s: float


class Lanes:
    """Free lanes by ``[region, window]``, changed by ``take``."""

    def __init__(
        self,
        slots: npt.NDArray[np.int64],
        starts_s: FloatArray,
        left_s: float,
        freeing_s: Sequence[Sequence[float]] = (),
    ) -> None:
        """Begin with ``slots`` empty lanes a cell; ``left_s`` of the running window are left.

        ``freeing_s``: further lanes of each region that free themselves within the running window, and when.
        """
        self.free = slots.copy()
        self.starts_s = starts_s
        self.length_s = np.full(len(starts_s), float(WINDOW_S))
        self.length_s[0] = min(WINDOW_S, left_s + OVERRUN_SHARE * WINDOW_S)
        self._left_s = left_s
        self._used_s = np.where(self.free > 0, 0.0, np.inf)
        self._open: dict[tuple[int, int], list[float]] = {}
        for region, lanes in enumerate(freeing_s):
            if lanes:
                self._open[region, 0] = sorted(lanes)
                self._refresh(region, 0)

    def span(self, duration_s: float, window: int) -> int:
        """Return how many consecutive cells something occupies that starts with a window."""
        if duration_s <= self.length_s[window] + EPSILON_S:
            return 1
        first = self._left_s if window == 0 else float(WINDOW_S)
        return 1 + max(1, int(np.ceil((duration_s - first) / WINDOW_S - OVERRUN_SHARE - EPSILON_S)))

    def find(
        self,
        duration_s: float,
        *,
        rows: BoolArray,
        release_s: float,
        latest_s: float,
        cost: FloatArray,
        may_overrun: bool = False,
    ) -> Spot | None:
        """Return the cheapest place to start between release and latest start; ties to the earlier, then first row.

        ``cost`` is by ``[region, window]``. ``may_overrun`` allows something short to start in the running window
        though it reaches far into the next one, which it then occupies too.
        """
        best: tuple[float, float, int, Spot] | None = None
        if duration_s <= WINDOW_S + EPSILON_S:
            starts = self.starts_s + self._used_s
            fits = (self._used_s + duration_s <= self.length_s + EPSILON_S) & self._may_start(rows, release_s)
            fits &= starts <= latest_s + EPSILON_S
            best = self._cheapest(fits, starts, cost)
        if duration_s > WINDOW_S or may_overrun:
            for begin, end, cells in self._blocks(duration_s):
                fits = np.zeros_like(rows[:, None] & (self.free > 0))
                if end - begin > 0:
                    view = np.lib.stride_tricks.sliding_window_view(
                        self.free[:, begin : end + cells - 1], cells, axis=1
                    )
                    fits[:, begin:end] = view.min(axis=2) > 0
                fits &= self._may_start(rows, release_s) & (self.starts_s <= latest_s + EPSILON_S)
                starts = np.broadcast_to(self.starts_s, fits.shape)
                found = self._cheapest(fits, starts, cost)
                if found is not None and (best is None or found[:3] < best[:3]):
                    best = found
        return None if best is None else best[3]

    def take(self, spot: Spot, duration_s: float) -> None:
        """Occupy what ``find`` found."""
        cells = self.span(duration_s, spot.window)
        if cells > 1:
            block = slice(spot.window, spot.window + cells)
            self.free[spot.region, block] -= 1
            for window in range(spot.window, min(spot.window + cells, len(self.starts_s))):
                self._refresh(spot.region, window)
            return
        key = (spot.region, spot.window)
        lanes = self._open.setdefault(key, [])
        if self.free[key] > 0:
            self.free[key] -= 1
            heapq.heappush(lanes, duration_s)
        else:
            heapq.heapreplace(lanes, lanes[0] + duration_s)
        self._refresh(*key)

    def _refresh(self, region: int, window: int) -> None:
        lanes = self._open.get((region, window))
        used = 0.0 if self.free[region, window] > 0 else lanes[0] if lanes else np.inf
        self._used_s[region, window] = used

    def _may_start(self, rows: BoolArray, release_s: float) -> BoolArray:
        return rows[:, None] & (self.starts_s >= release_s - EPSILON_S)

    def _blocks(self, duration_s: float) -> list[tuple[int, int, int]]:
        """Return (first start, end of starts, cells) for starting in the running window and in any later one."""
        windows = len(self.starts_s)
        now, later = self.span(duration_s, 0), self.span(duration_s, min(1, windows - 1))
        return [(0, 1 if now <= windows else 0, now), (1, max(1, windows - later + 1), later)]

    @staticmethod
    def _cheapest(fits: BoolArray, starts: FloatArray, cost: FloatArray) -> tuple[float, float, int, Spot] | None:
        if not fits.any():
            return None
        rows, columns = np.nonzero(fits)
        order = np.lexsort((rows, starts[fits], cost[fits]))[0]
        row, column = int(rows[order]), int(columns[order])
        start = float(starts[row, column])
        return float(cost[row, column]), start, row, Spot(row, column, start)
