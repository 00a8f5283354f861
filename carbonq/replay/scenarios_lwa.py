"""Let's Wait Awhile (Wiesner et al., Middleware'21): nightly jobs and a year of training jobs, 2020, half-hours.

The settings are those of the paper and its published evaluation: forecasts are the truth plus white noise of 5 % of the
year's mean (ten seeds), a nightly half-hour job at 01:00 may move by some hours either way, and 3,387 training jobs of
4 to 90 hours come on working days from 9 to 17 o'clock and must end by the next working morning, or by Monday or
Thursday 9 o'clock. Slots are unlimited.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

import numpy as np

from carbonq.plan.evidence import IntArray
from carbonq.plan.forecaster import FloatArray
from carbonq.replay.published import Clocked, Given, Line, Scenario, lowest_run

_STEP_MIN = 30
_A_DAY = 48
_SEEDS = 10
_ERROR = 0.05
_YEAR_AT = datetime(2020, 1, 1)
_NIGHTS = 365
_JOBS = 3387
_MORNING, _EVENING = 9.0, 17.0

#: Per cent saved, as published, by zone and hours either way, and for training jobs by deadline and way to run.
_NIGHTLY = {
    "DE": (1.40, 2.20, 5.46, 11.74),
    "GB": (4.77, 6.30, 6.74, 7.95),
    "FR": (3.00, 4.08, 5.00, 5.58),
    "CA": (0.82, 1.11, 13.11, 33.66),
}
_ML = {
    "DE": (5.91, 7.93, 14.11, 18.11),
    "GB": (6.56, 9.03, 14.73, 19.66),
    "FR": (4.77, 5.92, 11.12, 13.33),
    "CA": (2.45, 5.71, 6.14, 14.33),
}


def nightly_saving(values: FloatArray, steps: int, *, error: float, seeds: int) -> float:
    """Return the per cent saved by half-hour jobs at 01:00 that may start up to ``steps`` half-hours either way.

    A night whose time would begin before the data is left out of the sum but counted among the nights, as in the
    published evaluation.
    """
    at = np.arange(0, min(_NIGHTS, len(values) // _A_DAY)) * _A_DAY + 2
    inside = at[(at - steps >= 0) & (at + steps < len(values))]
    totals = [
        values[inside - steps + np.argmin(_spans(said, inside - steps, 2 * steps + 1), axis=1)].sum()
        for said in _told(values, error, seeds)
    ]
    return float(100 * (1 - np.mean(totals) / values[at].sum()))


def ml_saving(
    values: FloatArray, jobs: list[tuple[int, int, int]], *, is_split: bool, error: float, seeds: int
) -> float:
    """Return the per cent saved by jobs of (start, steps, steps to wait) that run whole or split, against at once."""
    jobs = [(start, steps, wait) for start, steps, wait in jobs if start + steps + wait <= len(values)]
    at_once = sum(float(values[start : start + steps].sum()) for start, steps, _ in jobs)
    totals: list[float] = []
    for said in _told(values, error, seeds):
        total = 0.0
        for start, steps, wait in jobs:
            window, truth = said[start : start + steps + wait], values[start : start + steps + wait]
            if is_split:
                total += float(truth[np.argsort(window, kind="stable")[:steps]].sum())
            else:
                first = lowest_run(window, steps)
                total += float(truth[first : first + steps].sum())
        totals.append(total)
    return float(100 * (1 - np.mean(totals) / at_once)) if at_once else float("nan")


def training_jobs() -> list[tuple[int, int]]:
    """Return the published jobs as (start, length) in half-hours of 2020, drawn as its evaluation does (seed 0)."""
    random = np.random.default_rng(0)
    days = [day for day in range(366) if (_YEAR_AT + timedelta(days=day)).weekday() < 5]
    counts = dict(zip(days, random.multinomial(_JOBS, [1 / len(days)] * len(days)).tolist(), strict=True))
    times = range(int(_MORNING) * 60, int(_EVENING) * 60, _STEP_MIN)
    starts: list[int] = []
    for day in range(366):
        minutes = np.sort(random.choice(times, size=counts.get(day, 0)))
        starts += (day * _A_DAY + minutes // _STEP_MIN).tolist()
    lengths = random.choice(range(4 * 60, 90 * 60, _STEP_MIN), size=_JOBS) // _STEP_MIN
    return list(zip(starts, lengths.tolist(), strict=True))


def next_workday(end_at: datetime) -> datetime:
    """Return the deadline of a job that would end then: at once in working hours, else the next working morning."""
    hour = end_at.hour + end_at.minute / 60
    if end_at.weekday() == 5:
        return _morning(end_at, 2)
    if end_at.weekday() == 6 or hour > _EVENING:
        return _morning(end_at, 1)
    return _morning(end_at, 0) if hour < _MORNING else end_at


def twice_weekly(end_at: datetime) -> datetime:
    """Return the deadline of a job that would end then: the next Monday or Thursday, 9 o'clock."""
    days = [(weekday - end_at.weekday()) % 7 for weekday in (0, 3)]
    found = [_morning(end_at, day) for day in days]
    return min(one if one >= end_at else one + timedelta(days=7) for one in found)


def _morning(at: datetime, days: int) -> datetime:
    return at.replace(hour=int(_MORNING), minute=0) + timedelta(days=days)


def _spans(values: FloatArray, first: IntArray, length: int) -> FloatArray:
    return values[first[:, None] + np.arange(length)]


def _told(values: FloatArray, error: float, seeds: int) -> list[FloatArray]:
    if not error:
        return [values]
    return [
        values + np.random.default_rng(seed).normal(0, error * values.mean(), size=len(values)) for seed in range(seeds)
    ]


def _year(series: Clocked) -> FloatArray:
    return series.every(_STEP_MIN).from_time(_YEAR_AT).values


def _nightly(given: Given) -> list[Line]:
    lines: list[Line] = []
    for series in given.series:
        values = _year(series)
        for place, hours in enumerate((2, 4, 6, 8)):
            known = _NIGHTLY.get(series.name)
            said = nightly_saving(values, 2 * hours, error=_ERROR, seeds=_SEEDS)
            lines.append(Line(f"{series.name}, +-{hours} h", said, "% saved vs 01:00", known and known[place]))
    return lines


def _ml(given: Given) -> list[Line]:
    lines: list[Line] = []
    for series in given.series:
        values = _year(series)
        known = _ML.get(series.name)
        place = 0
        for name, rule in (("next workday", next_workday), ("twice weekly", twice_weekly)):
            jobs = [(start, steps, _wait(start + steps, rule)) for start, steps in training_jobs()]
            for way in ("whole", "split"):
                said = ml_saving(values, jobs, is_split=way == "split", error=_ERROR, seeds=_SEEDS)
                lines.append(Line(f"{series.name}, {name}, {way}", said, "% saved vs at once", known and known[place]))
                place += 1
    return lines


def _wait(end: int, rule: Callable[[datetime], datetime]) -> int:
    end_at = _YEAR_AT + timedelta(minutes=_STEP_MIN * end)
    return int((rule(end_at) - end_at) / timedelta(minutes=_STEP_MIN))


LWA = (
    Scenario("lwa-nightly", "a nightly half-hour that may move by 2 to 8 h", "Middleware'21, figure 8", _nightly),
    Scenario("lwa-ml", "a year of training jobs, whole or split", "Middleware'21, figure 10", _ml),
)
