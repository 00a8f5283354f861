"""What is known of a zone at one moment, turned into numbers a blend can weigh: a base and differences from it. Pure.

The base of a window ahead is the source's forecast; where there is none, carbonq's own seasonal forecast. Everything
else that is known speaks as a difference from the base (g/kWh), so that 0 means "no opinion" and a zone that lacks some
of it (no earlier issues, no observations) needs no special case. Nothing here looks past ``Known.now``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum, IntFlag

import numpy as np
import numpy.typing as npt

from carbonq.plan.forecaster import EMPTY, WINDOWS_A_DAY, WINDOWS_A_WEEK, FloatArray, Season, Series

IntArray = npt.NDArray[np.int64]

#: Ages (windows) at which the forecast that was then the newest is looked at again; 0 is the newest of all.
ISSUE_AGES = (0, 1, 2, 3, 4, 6, 9, 12, 24, 36, WINDOWS_A_DAY)

#: Ages whose issue says of the same window something of its own.
_EARLIER = (1, 2, 3, 6, 12, 24, WINDOWS_A_DAY)

#: Ages whose error in the newest observed window is told, and those whose mean error since their issue is.
_ERRORS = (2, 3, 4, 6, 9, 12, 24, 36, WINDOWS_A_DAY)
_MEAN_ERRORS = (3, 6, 12, 24, 36, WINDOWS_A_DAY)

#: Leads (windows) over which the level of the newest forecast is taken.
_LEVELS = (6, 12, 36)

#: Windows on either side over which the newest forecast is smoothed.
_SMOOTHED = (3, 6)

#: An observation older than this (windows) says nothing of the present: three hours.
MAX_AGE = 36

#: Windows for which the last observation stands alone where nothing else is known: an hour.
HELD_WINDOWS = 12

#: Size of the constant difference, so that its weight is of the size of the others (g/kWh).
_CONSTANT = 50.0

FEATURES: tuple[str, ...] = (
    "constant",
    "base - week's mean",
    "last - base",
    "last but one - last",
    "mean of the last six - last",
    *(f"issue {age} windows earlier - base" for age in _EARLIER),
    *(f"error of the issue {age} windows earlier" for age in _ERRORS),
    *(f"mean error of the issue {age} windows earlier" for age in _MEAN_ERRORS),
    "window before - base",
    "window after - base",
    *(f"mean of {2 * width + 1} windows around - base" for width in _SMOOTHED),
    *(f"mean of the next {width} windows - base" for width in _LEVELS),
    "daily shape - base",
    "yesterday - base",
    "a week ago - base",
    "daily shape - daily shape now",
)


_CONSTANT_AT, _LEVEL_AT = 0, 1
_OBSERVED_AT = slice(2, 5)
_EARLIER_AT = slice(5, 5 + len(_EARLIER) + len(_ERRORS) + len(_MEAN_ERRORS))
_AROUND_AT = slice(_EARLIER_AT.stop, _EARLIER_AT.stop + 2 + len(_SMOOTHED) + len(_LEVELS))
_SEASONAL_AT = slice(_AROUND_AT.stop, _AROUND_AT.stop + 4)


class Kind(IntEnum):
    """What a base is; each kind has weights of its own.

    A forecast is old for a window when it was made more than half as long ago as the window is ahead: a forecast of the
    morning is fresh for tomorrow, and in the evening old for the next hour.
    """

    NONE = 0  # no forecast reaches there: the seasonal one
    FRESH = 1
    OLD = 2


#: Below this age (windows) a forecast is always fresh.
_FRESH = 3


class Part(IntFlag):
    """What went into a value."""

    NOTHING = 0
    FORECAST = 1  # the source's newest forecast
    EARLIER = 2  # its earlier ones
    OBSERVED = 4  # the newest observations
    SEASONAL = 8  # the daily shape, yesterday, a week ago


_FORECAST, _OBSERVED, _SEASONAL = int(Part.FORECAST), int(Part.OBSERVED), int(Part.SEASONAL)

#: Which differences are whose words.
_SPEAKERS = (
    (_OBSERVED_AT, _OBSERVED),
    (_EARLIER_AT, int(Part.EARLIER)),
    (_AROUND_AT, _FORECAST),
    (_SEASONAL_AT, _SEASONAL),
)


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of one zone in the window ``now``.

    ``issues[i]`` is the newest forecast as it was ``ISSUE_AGES[i]`` windows ago (empty where there was none; fewer are
    fine). ``history`` is what was observed and published by now; windows from ``now`` on are left out of account.
    """

    now: int
    issues: Sequence[Series]
    history: Series


@dataclass(frozen=True, slots=True)
class Evidence:
    """By window: the base and its kind, and the differences (``[window, feature]``)."""

    windows: IntArray
    lead: IntArray
    base: FloatArray
    kind: IntArray
    differences: FloatArray
    is_held: npt.NDArray[np.bool_]
    is_tied_to_forecast: bool
    cap: float | FloatArray

    def parts(self, is_blended: npt.NDArray[np.bool_]) -> npt.NDArray[np.int8]:
        """Return what went into each window's value (``Part`` bits), given where the differences were used."""
        there = ~np.isnan(self.base)
        found = np.where(self.kind > 0, _FORECAST, _OBSERVED | _SEASONAL)
        if self.is_tied_to_forecast:
            found = np.where(self.kind > 0, _FORECAST, _FORECAST | _SEASONAL)
        found = np.where(self.is_held, _OBSERVED, found)
        for columns, part in _SPEAKERS:
            found = found | part * (is_blended & (self.differences[:, columns] != 0).any(axis=1))
        return np.where(there, found, 0).astype(np.int8)


def evidence(known: Known, windows: IntArray) -> Evidence:
    """Return what is known of the given windows; the base is NaN where nothing is."""
    return _Evidence(known, windows).made()


class _Evidence:
    def __init__(self, known: Known, windows: IntArray) -> None:
        self.now, self.windows = known.now, windows
        self.issues = dict(zip(ISSUE_AGES, known.issues, strict=False))
        self.history = known.history.before(known.now)
        newest = self.history.last()
        self.ahead = self._end_of_forecast()
        self.last = newest if newest is not None and known.now - newest[0] <= MAX_AGE else None
        self.newest = newest
        self.base = np.full(len(windows), np.nan)
        for age in ISSUE_AGES:
            if age in self.issues:
                gaps = np.isnan(self.base)
                if not gaps.any():
                    break
                self.base[gaps] = self.issues[age].at(windows[gaps])
        self.has_forecast = ~np.isnan(self.base)
        self.season = Season.of(self.history)

    def _end_of_forecast(self) -> tuple[int, float] | None:
        end = self.issues[0].last() if 0 in self.issues else None
        return end if end is not None and end[0] >= self.now else None

    def made(self) -> Evidence:
        is_held = self._fill()
        x = np.full((len(FEATURES), len(self.windows)), np.nan)
        x[_CONSTANT_AT] = _CONSTANT
        x[_LEVEL_AT] = self.base - self.history.tail_mean(WINDOWS_A_WEEK)
        self._observed(x[_OBSERVED_AT])
        self._earlier(x[_EARLIER_AT])
        self._around(x[_AROUND_AT])
        self._seasonal(x[_SEASONAL_AT])
        x[np.isnan(x)] = 0.0
        return Evidence(
            windows=self.windows,
            lead=self.windows - self.now,
            base=self.base,
            kind=self._kind(),
            differences=x.T,
            is_held=is_held,
            is_tied_to_forecast=self.ahead is not None,
            cap=self._cap(),
        )

    def _kind(self) -> IntArray:
        issue = self.issues.get(0, EMPTY)
        age = self.now - issue.first_window if len(issue.values) else 0
        is_old = age > np.maximum(_FRESH, (self.windows - self.now) // 2)
        return np.where(self.has_forecast, np.where(is_old, Kind.OLD, Kind.FRESH), Kind.NONE).astype(np.int64)

    def _fill(self) -> npt.NDArray[np.bool_]:
        """Fill the base where no forecast reaches: seasonal, then for a while the last observation alone."""
        gaps = np.isnan(self.base)
        tie = self.ahead if self.ahead is not None else self.newest
        if gaps.any():
            self.base[gaps] = self.season.tied(tie, self.windows[gaps])
        is_held = np.isnan(self.base) & (self.windows - self.now < HELD_WINDOWS)
        if self.last is None:
            is_held[:] = False
        else:
            self.base[is_held] = self.last[1]
        return is_held

    def _observed(self, x: FloatArray) -> None:
        if self.last is None:
            return
        window, value = self.last
        x[0] = value - self.base
        x[1] = self.history.one(window - 1) - value
        x[2] = self.history.mean(window - 5, window + 1) - value

    def _earlier(self, x: FloatArray) -> None:
        for place, age in enumerate(_EARLIER):
            if age in self.issues:
                x[place] = self.issues[age].at(self.windows) - self.base
        if self.last is None:
            return
        for place, age in enumerate(_ERRORS, len(_EARLIER)):
            if age in self.issues:
                x[place] = self.last[1] - self.issues[age].one(self.last[0])
        for place, age in enumerate(_MEAN_ERRORS, len(_EARLIER) + len(_ERRORS)):
            if age in self.issues:
                x[place] = self._mean_error(self.issues[age], self.last[0])

    def _mean_error(self, issue: Series, last: int) -> float:
        """Return the mean of observed less foretold over the windows of an issue that have been observed."""
        start, end = max(issue.first_window, self.history.first_window), min(last + 1, issue.end_window)
        if end <= start:
            return np.nan
        errors = self.history.part(start, end) - issue.part(start, end)
        known = ~np.isnan(errors)
        return float(errors[known].mean()) if known.any() else np.nan

    def _around(self, x: FloatArray) -> None:
        """Put down what the newest forecast says of the windows around, and of the hours to come as a whole."""
        issue = self.issues.get(0, EMPTY)
        if not len(issue.values):
            return
        x[0] = issue.at(self.windows - 1) - self.base
        x[1] = issue.at(self.windows + 1) - self.base
        totals = np.concatenate(([0.0], np.cumsum(np.nan_to_num(issue.values))))
        counts = np.concatenate(([0], np.cumsum(~np.isnan(issue.values))))
        places = self.windows - issue.first_window
        for place, width in enumerate(_SMOOTHED, 2):
            low = np.minimum(np.maximum(places - width, 0), len(issue.values))
            high = np.minimum(np.maximum(places + width + 1, 0), len(issue.values))
            count = counts[high] - counts[low]
            mean = (totals[high] - totals[low]) / np.maximum(count, 1)
            x[place] = np.where(self.has_forecast & (count > 0), mean - self.base, np.nan)
        start = max(self.now + 1, issue.first_window)
        for place, width in enumerate(_LEVELS, 2 + len(_SMOOTHED)):
            x[place] = issue.mean(start, start + width) - self.base

    def _seasonal(self, x: FloatArray) -> None:
        shape = self.season.at(self.windows)
        x[0] = shape - self.base
        x[1] = self._ago(WINDOWS_A_DAY) - self.base
        x[2] = self._ago(WINDOWS_A_WEEK) - self.base
        x[3] = shape - self.season.at(np.array([self.now]))

    def _ago(self, period: int) -> FloatArray:
        """Return what was observed whole periods before each window, the newest that is known."""
        periods = np.maximum(1, -(-(self.windows - self.now + 1) // period))
        return self.history.at(self.windows - periods * period)

    def _cap(self) -> float:
        """Return the largest value that was ever seen or foretold, as far as is known here."""
        tops = [np.fmax.reduce(s.values) for s in (self.history, *self.issues.values()) if len(s.values)]
        top = np.fmax.reduce(tops) if tops else np.nan
        return np.inf if np.isnan(top) else float(top)
