"""What somebody would have done who knew the observed rates and the arrivals beforehand: the limit of the possible.

Where everybody's own best windows fit on the slots they are the optimum, found without a solver. Otherwise the planner
places everything on the observed rates: in one piece where that is small enough, else day by day, each time knowing all
that comes in the following days.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from carbonq.plan.demand import Terms
from carbonq.plan.evidence import IntArray
from carbonq.plan.forecaster import WINDOWS_A_DAY, FloatArray
from carbonq.replay.rolling import Book, Ran
from carbonq.replay.site import Site
from carbonq.replay.walk import truth
from carbonq.replay.work import Work

#: Cells (windows x regions) up to which everything is planned in one piece: a quarter of eight regions takes 15 s.
WHOLE_UP_TO = 300_000

#: How much is planned at a time in longer ones, as times of the longest slack (whole days); the first of it is kept.
_AHEAD = 7


@dataclass(frozen=True, slots=True)
class _Ranges:
    """The lowest of some values in any range: a sparse table (minima of 1, 2, 4, ... neighbours) with their places."""

    values: FloatArray
    lowest: list[IntArray]

    @classmethod
    def of(cls, values: FloatArray, longest: int) -> _Ranges:
        lowest = [np.arange(len(values), dtype=np.int64)]
        width = 1
        while 2 * width <= min(longest, len(values)):
            before = lowest[-1]
            left, right = before[:-width], before[width:]
            # Ties go to the earlier window.
            lowest.append(np.where(values[right] < values[left], right, left))
            width *= 2
        return cls(values, lowest)

    def at(self, low: IntArray, high: IntArray) -> IntArray:
        """Return the place of the lowest value in each ``[low, high)``, none of which is empty."""
        level = np.log2(high - low).astype(np.int64)
        found = np.empty(len(low), dtype=np.int64)
        for one in np.unique(level).tolist():
            rows = level == one
            left, right = self.lowest[one][low[rows]], self.lowest[one][high[rows] - 2**one]
            found[rows] = np.where(self.values[right] < self.values[left], right, left)
        return found


def alone(site: Site, work: Work, rows: Sequence[int]) -> Ran:
    """Run each piece where it is best by itself, as if there were slots for everyone: no plan can cause less."""
    region, start = np.full(work.count, -1, dtype=np.int64), np.full(work.count, -1, dtype=np.int64)
    weighted = np.where(np.isnan(site.rates), np.inf, site.rates) * site.pue[:, None]
    for windows in np.unique(work.windows).tolist():
        mine = np.flatnonzero(work.windows == windows)
        means = _means(weighted[list(rows)], windows)
        best_row = np.argmin(means, axis=0)
        best = means[best_row, np.arange(means.shape[1])]
        low = work.release[mine] - site.first
        high = np.minimum(work.due[mine] - windows + 1 - site.first, len(best))
        ranges = _Ranges.of(best, int((high - low).max(initial=1)))
        place = ranges.at(low, np.maximum(high, low + 1))
        region[mine], start[mine] = np.array(rows)[best_row[place]], place + site.first
    return Ran(region, start)


def _means(rates: FloatArray, windows: int) -> FloatArray:
    if windows == 1:
        return rates
    finite = np.where(np.isinf(rates), 0.0, rates)
    sums = np.pad(np.cumsum(finite, axis=1), ((0, 0), (1, 0)))
    gaps = np.pad(np.cumsum(np.isinf(rates), axis=1), ((0, 0), (1, 0)))
    means = (sums[:, windows:] - sums[:, :-windows]) / windows
    return np.where(gaps[:, windows:] > gaps[:, :-windows], np.inf, means)


def fits(work: Work, ran: Ran, slots: IntArray) -> bool:
    """Say whether what was placed stays within the slots of every region and window."""
    for row, limit in enumerate(slots.tolist()):
        mine = ran.region == row
        if int(mine.sum()) <= limit:
            continue
        times = np.concatenate((ran.start[mine], ran.start[mine] + work.windows[mine]))
        steps = np.repeat((1, -1), int(mine.sum()))
        # What ends in a window frees its slot before what begins there takes it.
        order = np.lexsort((steps, times))
        if int(np.cumsum(steps[order]).max()) > limit:
            return False
    return True


def perfect(site: Site, work: Work, *, rows: Sequence[int] | None = None, slots: IntArray | None = None) -> Ran:
    """Return the best that could have been done in some regions (None: all) on some slots (None: the site's)."""
    rows = tuple(range(len(site.regions))) if rows is None else tuple(rows)
    slots = site.slots if slots is None else slots
    best = alone(site, work, rows)
    if fits(work, best, slots):
        return Ran(best.region, best.start, is_exact=True)
    book = Book(site, work, slots=slots, rows=rows)
    cells = (site.end - site.first) * len(rows)
    days = WINDOWS_A_DAY * max(1, -(-int((work.due - work.release).max()) // WINDOWS_A_DAY))
    ahead, step = (site.end - site.first, site.end - site.first) if cells <= WHOLE_UP_TO else (_AHEAD * days, days)
    at, arrived, plans = int(work.release[0]), 0, 0
    while arrived < work.count or len(book.waiting):
        upto = int(np.searchsorted(work.release, at + ahead, side="right"))
        book.waiting = np.concatenate((book.waiting, np.arange(arrived, upto)))
        arrived = upto
        if len(book.waiting):
            windows = int(work.due[book.waiting].max()) - at + book.spare()
            book.start[book.waiting] = -1
            made = book.assign(
                at,
                book.waiting,
                truth(site.grid, site.model_regions, at, at + windows),
                Terms(margin=0.0, near_tie=False),
            )
            book.put(at, book.waiting, made.region, made.window)
            plans += 1
        at += step
        book.begin(at if arrived < work.count or step < site.end - site.first else np.iinfo(np.int64).max)
    return Ran(book.region, book.start, plans=plans)
