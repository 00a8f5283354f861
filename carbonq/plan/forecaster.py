"""A statistical forecast where a source has none: the mean of each time of day, tied to the last known value. Pure.

Windows are counted from the epoch (``units.window_index``); values are gCO2e/kWh, NaN where missing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]

WINDOWS_A_DAY = 288

#: Windows on either side over which a time of day is averaged: single windows of a few days are noisy.
SMOOTHING = 3

#: Days of history that are of use; older ones belong to another season.
HISTORY_DAYS = 14

#: Windows after which a known deviation from the daily shape has faded to 1/e: six hours (docs/planning.md).
MEMORY = 72.0


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

    def last(self) -> tuple[int, float] | None:
        """Return window number and value of the newest value there is."""
        known = np.flatnonzero(~np.isnan(self.values))
        if not len(known):
            return None
        return self.first_window + int(known[-1]), float(self.values[known[-1]])


EMPTY = Series(0, np.empty(0))


def daily_shape(history: Series) -> FloatArray:
    """Return the mean of each of the 288 windows of a day (UTC), smoothed; NaN where the history knows nothing."""
    values = history.values[-HISTORY_DAYS * WINDOWS_A_DAY :]
    first = history.end_window - len(values)
    known = ~np.isnan(values)
    bins = (first + np.flatnonzero(known)) % WINDOWS_A_DAY
    sums = np.bincount(bins, weights=values[known], minlength=WINDOWS_A_DAY)
    counts = np.bincount(bins, minlength=WINDOWS_A_DAY).astype(np.float64)
    kernel = np.ones(2 * SMOOTHING + 1)
    # The day is a ring: 23:55 and 00:00 are neighbours.
    sums = np.convolve(np.pad(sums, SMOOTHING, mode="wrap"), kernel, mode="valid")
    counts = np.convolve(np.pad(counts, SMOOTHING, mode="wrap"), kernel, mode="valid")
    shape = np.full(WINDOWS_A_DAY, np.nan)
    np.divide(sums, counts, out=shape, where=counts > 0)
    return shape


def seasonal(history: Series, known: tuple[int, float] | None, windows: npt.NDArray[np.int64]) -> FloatArray:
    """Forecast windows from the daily shape of the history; never below zero.

    ``known`` is the window number and value from which the forecast goes on (the end of a source's forecast, or the
    last observation): its deviation from the daily shape fades out over ``MEMORY`` windows.
    """
    shape = daily_shape(history)
    values = shape[windows % WINDOWS_A_DAY]
    if known is not None:
        deviation = known[1] - shape[known[0] % WINDOWS_A_DAY]
        if not np.isnan(deviation):
            values = values + deviation * np.exp(-np.abs(windows - known[0]) / MEMORY)
    return np.maximum(values, 0.0)
