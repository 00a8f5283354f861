"""What some work would cause if it came now: at once at home, and by any deadline in any set of regions. Pure.

Accepted work keeps its cells; the new chunks, all alike, take the cheapest lanes that are left, which is the optimum
for chunks of at most a window; short ones share lanes as in plans. Costs are energy x PUE x rate of one signal, gCO2e.
Seconds are grid seconds from now.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from carbonq.plan.capacity import Capacity
from carbonq.plan.outlook import Outlook
from carbonq.plan.policy import OVERRUN_SHARE
from carbonq.plan.solver.bundles import BUNDLE_FILL, is_short
from carbonq.plan.taken import span
from carbonq.units import UJ_PER_KWH, WINDOW_S

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

#: Tolerance against rounding of times.
_EPSILON_S = 1e-6


@dataclass(frozen=True, slots=True)
class Work:
    """``chunks`` alike, by region row: what one takes on one slot there, in grid seconds, uJ and grams besides.

    ``extra_g`` is what does not depend on the hour (transfer, embodied carbon), ``price_g`` the grams that the price of
    the energy weighs (None: nothing): they decide with the rates and are said apart from their grams. ``guard_s`` is
    kept free before a deadline.
    """

    chunks: int
    duration_s: FloatArray
    energy_uj: FloatArray
    extra_g: FloatArray
    guard_s: float
    price_g: FloatArray | None = None

    @property
    def beside_g(self) -> FloatArray:
        """What decides beside the rates."""
        return self.extra_g if self.price_g is None else self.extra_g + self.price_g

    def sharing(self, left_s: float) -> IntArray:
        """Return how many chunks share a lane by [region, 0: running window with ``left_s`` left, 1: any other].

        As in plans: only such as fit twice into the part of a window that is filled.
        """
        room_s = np.array([min(left_s, BUNDLE_FILL * WINDOW_S), BUNDLE_FILL * WINDOW_S])
        fit = np.floor(room_s / self.duration_s[:, None] + _EPSILON_S).astype(np.int64)
        fit[~is_short(self.duration_s)] = 1
        return np.clip(fit, 1, max(1, self.chunks))


@dataclass(frozen=True, slots=True)
class Baseline:
    """When a first-come-first-served queue at home would run the chunks: how many start in each column of the outlook.

    ``beyond`` of them start after its last window. ``finish_s`` is when the last one would be done.
    """

    region: int
    counts: IntArray
    beyond: int
    finish_s: float


@dataclass(frozen=True, slots=True)
class Point:
    """What comes of one deadline in one set of regions (rows); ``deadline_s`` None: as early as can be.

    ``grams`` (by the rates alone) is None where a chunk would run in a cell without a rate (``unrated`` of them) or has
    no room at all (``unplaced``). ``baseline_g`` is the baseline at the same energy, ``saved_g`` the difference. Both
    spreads bound one standard error from above, whatever the errors of the cells have in common: the weighted sum of
    the cells' spreads, where a cell that both use counts once with the difference of its weights. None: some spread is
    not known.
    ``late`` chunks are not done by the deadline less the guard; then they are as early as can be.
    """

    deadline_s: float | None
    regions: tuple[int, ...]
    grams: float | None
    extra_g: float
    price_g: float
    spread_g: float | None
    baseline_g: float | None
    saved_g: float | None
    saved_spread_g: float | None
    energy_uj: float
    late: int
    unplaced: int
    unrated: int
    finish_s: float | None
    per_region: tuple[int, ...]
    first_window: int | None

    @property
    def is_met(self) -> bool:
        """Say whether all of it is done in time with the guard kept free."""
        return self.late == 0 and self.unplaced == 0


class Quoter:
    """Quotes against one outlook and what is free in it."""

    def __init__(self, outlook: Outlook, capacity: Capacity, starts_s: FloatArray, left_s: float) -> None:
        """Take what ``capacity`` leaves free; ``starts_s`` is ``capacity.window_starts``, ``left_s`` of window 0.

        Raises ValueError when outlook and capacity are not about the same cells.
        """
        if outlook.regions != capacity.regions or outlook.g_per_kwh.shape != capacity.slots.shape:
            raise ValueError("outlook and capacity must cover the same regions and windows")
        self._free, self._starts_s, self._left_s = capacity.slots, starts_s, left_s
        self._rates = outlook.g_per_kwh * outlook.pue[:, None]
        has_spread = outlook.spread.shape == outlook.g_per_kwh.shape
        self._spread = (outlook.spread if has_spread else np.full_like(self._rates, np.nan)) * outlook.pue[:, None]
        known = self._rates[~np.isnan(self._rates)]
        # As in planning, an unknown rate is never a clean one.
        self._filled = np.where(np.isnan(self._rates), known.max() if known.size else 0.0, self._rates)
        self._latency = capacity.latency_ms

    def known_until_s(self, regions: Sequence[int]) -> float:
        """Return the end of the last window in which some of the regions has a rate; 0 where there is none."""
        columns = np.flatnonzero(~np.isnan(self._rates[list(regions)]).all(axis=0))
        return 0.0 if not len(columns) else float(self._starts_s[columns[-1]]) + WINDOW_S

    def point(
        self, work: Work, regions: Sequence[int], deadline_s: float | None, baseline: Baseline | None = None
    ) -> Point:
        """Place the work: with a deadline as cleanly as can be, without one as early, nearest region first."""
        rows = sorted(set(regions))
        counts = np.zeros_like(self._free)
        ends = self._starts_s[None, :] + self._sharing(work) * work.duration_s[:, None]
        usable = self._usable(work, rows)
        in_time = usable if deadline_s is None else usable & (ends <= deadline_s - work.guard_s + _EPSILON_S)
        left = self._fill(work, in_time, counts, by_carbon=deadline_s is not None, count=work.chunks)
        placed_in_time = work.chunks - left
        if left:
            left = self._fill(work, usable, counts, by_carbon=False, count=left)
        late = work.chunks - left - placed_in_time
        return self._point(work, counts, baseline, rows=tuple(rows), deadline_s=deadline_s, late=late, unplaced=left)

    def baseline_grams(self, work: Work, baseline: Baseline) -> tuple[float | None, float | None]:
        """Return grams and spread of the work at home with home's own hardware; None where something is not known."""
        kwh = self._baseline_kwh(baseline, work.chunks * float(work.energy_uj[baseline.region]))
        if kwh is None:
            return None, None
        grams = float((kwh[kwh > 0] * self._rates[kwh > 0]).sum())
        return (None, None) if math.isnan(grams) else (grams, self._spread_of(kwh))

    def _usable(self, work: Work, rows: Sequence[int]) -> npt.NDArray[np.bool_]:
        usable = np.zeros(self._free.shape, dtype=np.bool_)
        usable[list(rows)] = True
        for row in rows:
            if self._left_s + OVERRUN_SHARE * WINDOW_S < work.duration_s[row] <= WINDOW_S:
                usable[row, 0] = False  # what is left of the running window is too short
        return usable

    def _fill(self, work: Work, usable: npt.NDArray[np.bool_], counts: IntArray, *, by_carbon: bool, count: int) -> int:
        """Put ``count`` chunks into the best usable cells, adding to ``counts``; return how many found no room."""
        spans = [span(float(one)) for one in work.duration_s]
        cost = self._costs(work, spans)
        rows, columns = np.nonzero(usable)
        starts = self._starts_s[columns]
        near = np.array(self._latency)[rows]
        grams, is_unknown = cost[rows, columns], np.isnan(self._rates[rows, columns])
        # The last key counts most. At the same cost what is known comes before what only counts as much.
        keys = (rows, near, starts, is_unknown, grams) if by_carbon else (grams, rows, near, starts)
        order = np.lexsort(keys)
        rows, columns = rows[order], columns[order]
        if all(spans[row] == 1 for row in np.unique(rows)):
            room = self._free * self._sharing(work)
            free = np.maximum(room[rows, columns] - counts[rows, columns], 0)
            before = np.concatenate(([0], np.cumsum(free)[:-1])) if len(free) else free
            take = np.clip(count - before, 0, free)
            np.add.at(counts, (rows, columns), take)
            return count - int(take.sum())
        return self._fill_long(spans, rows, columns, counts, count)

    def _sharing(self, work: Work) -> IntArray:
        """Return how many chunks share a lane of each cell."""
        first, other = work.sharing(self._left_s).T
        shared = np.repeat(other[:, None], self._free.shape[1], axis=1)
        shared[:, 0] = first
        return shared

    def _fill_long(self, spans: Sequence[int], rows: IntArray, columns: IntArray, counts: IntArray, count: int) -> int:
        """Place chunks of several windows, best start first: each holds its lane in all of them."""
        # Plain lists: single cells of arrays cost ten times as much to look at.
        free: list[list[int]] = (self._free - _held(counts, spans)).tolist()
        windows = self._free.shape[1]
        for row, column in zip(rows.tolist(), columns.tolist(), strict=True):
            if not count:
                break
            line = free[row]
            end = column + spans[row]
            if line[column] <= 0 or end > windows:
                continue
            take = min(count, *line[column:end])
            if take <= 0:
                continue
            for window in range(column, end):
                line[window] -= take
            counts[row, column] += take
            count -= take
        return count

    def _costs(self, work: Work, spans: Sequence[int]) -> FloatArray:
        cost, beside_g = np.empty_like(self._filled), work.beside_g
        for row, cells in enumerate(spans):
            mean = _ahead(self._filled[row], cells)
            cost[row] = work.energy_uj[row] / UJ_PER_KWH * mean + beside_g[row]
        return cost

    def _point(
        self,
        work: Work,
        counts: IntArray,
        baseline: Baseline | None,
        *,
        rows: tuple[int, ...],
        deadline_s: float | None,
        late: int,
        unplaced: int,
    ) -> Point:
        spans = [span(float(one)) for one in work.duration_s]
        # The kWh by cell: a chunk of several windows spends a part in each.
        kwh = _held(counts, spans) * (work.energy_uj / UJ_PER_KWH / np.array(spans))[:, None]
        used = kwh > 0
        unrated = int(counts[np.isnan(np.array([_ahead(r, n) for r, n in zip(self._rates, spans, strict=True)]))].sum())
        is_known = not unrated and not unplaced
        grams = float((kwh[used] * self._rates[used]).sum()) if is_known else None
        energy = float((counts.sum(axis=1) * work.energy_uj).sum())
        base_kwh = self._baseline_kwh(baseline, energy)
        base_g = None
        if base_kwh is not None and grams is not None:
            there = base_kwh > 0
            base_g = float((base_kwh[there] * self._rates[there]).sum())
            base_g = None if math.isnan(base_g) else base_g
        has_chunks = counts > 0
        in_a_row = np.minimum(counts, self._sharing(work))
        ends = self._starts_s[None, :] + in_a_row * work.duration_s[:, None]
        return Point(
            deadline_s=deadline_s,
            regions=rows,
            grams=grams,
            extra_g=float((counts.sum(axis=1) * work.extra_g).sum()),
            price_g=0.0 if work.price_g is None else float((counts.sum(axis=1) * work.price_g).sum()),
            spread_g=None if grams is None else self._spread_of(kwh),
            baseline_g=base_g,
            saved_g=None if grams is None or base_g is None else base_g - grams,
            saved_spread_g=None if base_g is None or base_kwh is None else self._spread_of(np.abs(base_kwh - kwh)),
            energy_uj=energy,
            late=late,
            unplaced=unplaced,
            unrated=unrated,
            finish_s=None if unplaced or not has_chunks.any() else float(ends[has_chunks].max()),
            per_region=tuple(int(one) for one in counts.sum(axis=1)),
            first_window=int(np.flatnonzero(has_chunks.any(axis=0))[0]) if has_chunks.any() else None,
        )

    def _baseline_kwh(self, baseline: Baseline | None, energy_uj: float) -> FloatArray | None:
        """Spread the same energy over the baseline's windows; None where some of it lies beyond the outlook."""
        if baseline is None or baseline.beyond or not baseline.counts.sum():
            return None
        kwh = np.zeros_like(self._rates)
        kwh[baseline.region] = baseline.counts / baseline.counts.sum() * energy_uj / UJ_PER_KWH
        return kwh

    def _spread_of(self, kwh: FloatArray) -> float | None:
        total = float((kwh[kwh > 0] * self._spread[kwh > 0]).sum())
        return None if math.isnan(total) else total


def _ahead(values: FloatArray, cells: int) -> FloatArray:
    """Return the mean over ``cells`` windows from each one on; past the end the last one repeats."""
    if cells == 1:
        return values
    padded = np.pad(values, (0, cells - 1), mode="edge")
    return np.lib.stride_tricks.sliding_window_view(padded, cells).mean(axis=1)


def _held(counts: IntArray, spans: Sequence[int]) -> IntArray:
    """Return the lanes that chunks hold in each cell, given where they start."""
    held = np.zeros_like(counts)
    for row, cells in enumerate(spans):
        for shift in range(min(cells, counts.shape[1])):
            held[row, shift:] += counts[row, : counts.shape[1] - shift]
    return held


def baseline_of(counts_at: Sequence[int], region: int, windows: int, finish_s: float) -> Baseline:
    """Return the baseline from the columns in which its chunks start; columns past the outlook count as beyond it."""
    counts = np.bincount(np.clip(np.array(counts_at, dtype=np.int64), 0, windows), minlength=windows + 1)
    return Baseline(region, counts[:windows].astype(np.int64), int(counts[windows]), finish_s)
