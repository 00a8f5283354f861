"""A statistical forecast where a source has none: time of day, kind of day and recent level, tied to a value. Pure.

Windows are counted from the epoch (``units.window_index``); values are gCO2e/kWh, NaN where missing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]

WINDOWS_A_DAY = 288
WINDOWS_A_WEEK = 7 * WINDOWS_A_DAY

#: Windows on either side over which a time of day is averaged: single windows of a few days are noisy.
SMOOTHING = 3

#: Days of history that are of use; older ones belong to another season.
HISTORY_DAYS = 14

#: What a day of the other kind (working day, weekend) counts beside one of the same kind.
OTHER_KIND = 0.4

#: Windows after which a known deviation from the daily shape has faded to 1/e: six hours (docs/planning.md).
MEMORY = 72.0

#: The same for the mean deviation of the last day, the recent level: two days.
LEVEL_MEMORY = 576.0


@dataclass(frozen=True, slots=True)
class Series:
    """Values of consecutive windows: ``values[i]`` belongs to window number ``first_window + i``."""

    first_window: int
    values: FloatArray

    @property
    def end_window(self) -> int:
        """The number of the window after the last one."""
        return self.first_window + len(self.values)

    def at(self, windows: npt.NDArray[np.int64]) -> FloatArray:
        """Return the values of the given windows, NaN outside."""
        found = np.full(len(windows), np.nan)
        inside = (windows >= self.first_window) & (windows < self.end_window)
        found[inside] = self.values[windows[inside] - self.first_window]
        return found

    def one(self, window: int) -> float:
        """Return the value of one window, NaN outside."""
        place = window - self.first_window
        return float(self.values[place]) if 0 <= place < len(self.values) else np.nan

    def part(self, start: int, end: int) -> FloatArray:
        """Return the values of windows ``[start, end)``, as far as there are any."""
        return self.values[max(0, start - self.first_window) : max(0, end - self.first_window)]

    def slice(self, start: int, end: int) -> Series:
        """Return the windows in ``[start, end)`` alone."""
        first = min(max(start, self.first_window), self.end_window)
        return Series(first, self.part(start, max(end, first)))

    def before(self, end: int) -> Series:
        """Return the windows before ``end`` alone."""
        return self if end >= self.end_window else self.slice(self.first_window, end)

    def mean(self, start: int, end: int) -> float:
        """Return the mean of the known values in ``[start, end)``; NaN where there is none."""
        values = self.part(start, end)
        known = ~np.isnan(values)
        return float(values[known].mean()) if known.any() else np.nan

    def tail_mean(self, windows: int) -> float:
        """Return the mean of the known values among the last ``windows``; NaN where there is none."""
        return self.mean(self.end_window - windows, self.end_window)

    def last(self) -> tuple[int, float] | None:
        """Return window number and value of the newest value there is."""
        known = np.flatnonzero(~np.isnan(self.values))
        if not len(known):
            return None
        return self.first_window + int(known[-1]), float(self.values[known[-1]])


EMPTY = Series(0, np.empty(0))


def is_weekend(windows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return 1 for windows on a Saturday or Sunday (UTC), else 0."""
    # The epoch was a Thursday.
    return ((windows // WINDOWS_A_DAY + 3) % 7 >= 5).astype(np.int64)


def daily_shapes(history: Series) -> FloatArray:
    """Return the mean of each of the 288 windows of a working day and of a weekend's (UTC), smoothed.

    Each kind of day counts fully in its own shape and ``OTHER_KIND`` in the other; NaN where the history knows nothing.
    """
    recent = history.part(history.end_window - HISTORY_DAYS * WINDOWS_A_DAY, history.end_window)
    places = np.flatnonzero(~np.isnan(recent))
    windows = history.end_window - len(recent) + places
    bins = is_weekend(windows) * WINDOWS_A_DAY + windows % WINDOWS_A_DAY
    sums = np.bincount(bins, weights=recent[places], minlength=2 * WINDOWS_A_DAY).reshape(2, WINDOWS_A_DAY)
    counts = np.bincount(bins, minlength=2 * WINDOWS_A_DAY).reshape(2, WINDOWS_A_DAY).astype(np.float64)
    sums, counts = sums + OTHER_KIND * sums[::-1], counts + OTHER_KIND * counts[::-1]
    sums, counts = _smoothed(sums), _smoothed(counts)
    shapes = np.full((2, WINDOWS_A_DAY), np.nan)
    np.divide(sums, counts, out=shapes, where=counts > 1e-9)
    return shapes


def _smoothed(rows: FloatArray) -> FloatArray:
    # The day is a ring: 23:55 and 00:00 are neighbours. A sum of shifted rows, because a running sum never gets to 0.
    total = rows.copy()
    for shift in range(1, SMOOTHING + 1):
        total += np.roll(rows, shift, axis=1) + np.roll(rows, -shift, axis=1)
    return total


@dataclass(frozen=True, slots=True)
class Season:
    """What is usual at each time of a working day and of a weekend, and how far the last day lay from that."""

    shapes: FloatArray
    level: float
    end_window: int

    @classmethod
    def of(cls, history: Series) -> Season:
        """Learn it from a zone's past."""
        shapes = daily_shapes(history)
        newest = history.last()
        if newest is None:
            return cls(shapes, 0.0, history.end_window)
        end = newest[0] + 1
        windows = np.arange(max(history.first_window, end - WINDOWS_A_DAY), end)
        deviations = history.part(end - WINDOWS_A_DAY, end) - shapes[is_weekend(windows), windows % WINDOWS_A_DAY]
        known = ~np.isnan(deviations)
        return cls(shapes, float(deviations[known].mean()) if known.any() else 0.0, end)

    def at(self, windows: npt.NDArray[np.int64]) -> FloatArray:
        """Return what is usual in the given windows, NaN where that is not known."""
        return self.shapes[is_weekend(windows), windows % WINDOWS_A_DAY]

    def tied(self, known: tuple[int, float] | None, windows: npt.NDArray[np.int64]) -> FloatArray:
        """Return the same, tied to a known value (window number, value); never below 0.

        The recent level fades slowly, what the known value deviates beyond it fades fast.
        """
        values = self.at(windows)
        if known is not None:
            deviation = known[1] - float(self.at(np.array([known[0]]))[0])
            if not np.isnan(deviation):
                level = self.level * np.exp(-np.maximum(windows - self.end_window, 0) / LEVEL_MEMORY)
                values = values + level + (deviation - self.level) * np.exp(-np.abs(windows - known[0]) / MEMORY)
        return np.maximum(values, 0.0)


def seasonal(history: Series, known: tuple[int, float] | None, windows: npt.NDArray[np.int64]) -> FloatArray:
    """Forecast windows from what is usual in the history; never below zero.

    ``known`` is the window number and value from which the forecast goes on (the end of a source's forecast, or the
    last observation); None leaves it untied.
    """
    return Season.of(history).tied(known, windows)
