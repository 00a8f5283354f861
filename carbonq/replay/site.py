"""Where a replay's work may run: regions with slots, PUE and prices on a recorded grid, and what runs cost there. Pure.

Grams are energy x PUE x the *observed* rate of each window a piece holds; a window without an observed value makes the
piece's grams NaN, never 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property

import numpy as np

from carbonq.model import Region
from carbonq.plan.evidence import IntArray
from carbonq.plan.forecaster import FloatArray
from carbonq.replay.grids import Grid
from carbonq.replay.work import Work
from carbonq.units import UJ_PER_KWH

#: Slots that stand for "as many as are wanted".
UNLIMITED = 1_000_000


@dataclass(frozen=True)
class Site:
    """Regions by row (a region is a zone of the grid), over the windows ``[first, end)`` of the recording.

    ``price_per_kwh`` and ``slot_price_per_h`` are in one currency (0: not counted); ``home`` is the row that work would
    run in without a plan.
    """

    grid: Grid
    regions: tuple[str, ...]
    slots: IntArray
    pue: FloatArray
    home: int
    first: int
    end: int
    price_per_kwh: FloatArray
    slot_price_per_h: FloatArray

    @cached_property
    def rates(self) -> FloatArray:
        """Observed g/kWh by ``[region, window]``, column 0 being ``first``; NaN where missing."""
        return self.grid.rates(self.regions, self.first, self.end)

    @cached_property
    def model_regions(self) -> tuple[Region, ...]:
        """The regions as the outlook takes them."""
        return tuple(
            Region(name, name, int(slots), Decimal(repr(float(pue))), "stated", "")
            for name, slots, pue in zip(self.regions, self.slots.tolist(), self.pue.tolist(), strict=True)
        )

    @cached_property
    def _sums(self) -> tuple[FloatArray, IntArray]:
        """Running sums of rate and of missing windows, by ``[region, window]``, one column longer than the rates."""
        before = ((0, 0), (1, 0))
        missing = np.isnan(self.rates)
        return (
            np.pad(np.cumsum(np.where(missing, 0.0, self.rates), axis=1), before),
            np.pad(np.cumsum(missing, axis=1), before).astype(np.int64),
        )

    def grams(self, work: Work, region: IntArray, start: IntArray) -> FloatArray:
        """Return what each piece caused, run in a region row from a window on; NaN where that is not known."""
        totals, missing = self._sums
        last = self.end - self.first
        low, high = start - self.first, start - self.first + work.windows
        is_known = (region >= 0) & (low >= 0) & (high <= last)
        row, low, high = np.where(is_known, region, 0), np.clip(low, 0, last), np.clip(high, 0, last)
        is_known &= missing[row, high] == missing[row, low]
        mean = (totals[row, high] - totals[row, low]) / work.windows
        return np.where(is_known, mean * self.pue[row] * work.energy_uj / UJ_PER_KWH, np.nan)

    def cost(self, work: Work, region: IntArray) -> FloatArray:
        """Return what the energy of each piece costs in its region."""
        return self.price_per_kwh[region] * self.pue[region] * work.energy_uj / UJ_PER_KWH

    def is_measured(self, release: IntArray, due: IntArray) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Say of each span of windows whether every region has an observed value in all of them."""
        missing = self._sums[1].sum(axis=0)
        inside = (release >= self.first) & (due <= self.end)
        last = self.end - self.first
        low, high = np.clip(release - self.first, 0, last), np.clip(due - self.first, 0, last)
        return inside & (missing[high] == missing[low])
