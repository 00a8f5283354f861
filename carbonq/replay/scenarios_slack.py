"""The slack table of Sukprasert et al. (EuroSys'24): what a day's slack is worth by length of job, hourly.

Slots are unlimited. For every hour of the data in which a job with its slack still fits: g/kWh saved for each hour of
the job by starting later (deferral), and the extra from also interrupting it; and what the best zone is worth, for ever
or hour by hour.
"""

from __future__ import annotations

import numpy as np

from carbonq.errors import InvalidRequest
from carbonq.plan.forecaster import FloatArray
from carbonq.replay.published import Given, Line, Scenario

_SLACK_H = 24
_LENGTHS_H = (1, 6, 12, 24, 48, 96, 168)

#: Means over 123 zones as published: deferral and the extra from interruption, g/kWh.
_PUBLISHED = ((57.38, 0.0), (46.47, 2.98), (31.37, 9.88), (13.28, 18.36), (8.63, 13.39), (4.95, 9.59), (2.91, 7.14))
_ZONES = 123
_BEST = (352.48, 353.57)


def slack_saving(values: FloatArray, length: int, slack: int) -> tuple[float, float]:
    """Return (deferral, extra from interruption) in g/kWh for each hour of a job, mean over all starts that fit.

    Raises InvalidRequest where none fits.
    """
    starts = len(values) - length - slack + 1
    if starts < 1:
        raise InvalidRequest(f"{len(values)} hours are too few for a job of {length} h with {slack} h of slack")
    sums = np.concatenate(([0.0], np.cumsum(values)))
    runs = (sums[length:] - sums[:-length]) / length
    best = np.lib.stride_tricks.sliding_window_view(runs, slack + 1).min(axis=1)[:starts]
    windows = np.lib.stride_tricks.sliding_window_view(values, length + slack)
    split = np.concatenate(
        [np.partition(part, length - 1, axis=1)[:, :length].mean(axis=1) for part in _parts(windows)]
    )
    return float((runs[:starts] - best).mean()), float((best - split).mean())


def _parts(windows: FloatArray) -> list[FloatArray]:
    """Cut into parts whose copies stay small."""
    return [windows[first : first + 1000] for first in range(0, len(windows), 1000)]


def best_zone(zones: FloatArray) -> tuple[float, float]:
    """Return g/kWh saved on the mean of all zones by the best single zone, and by the best zone of each hour."""
    mean = float(zones.mean())
    return mean - float(zones.mean(axis=1).min()), mean - float(zones.min(axis=0).mean())


def _run(given: Given) -> list[Line]:
    hours = [series.every(60).values for series in given.series]
    is_all = len(hours) == _ZONES
    lines: list[Line] = []
    for place, length in enumerate(_LENGTHS_H):
        found = np.array([slack_saving(values, length, _SLACK_H) for values in hours]).mean(axis=0).tolist()
        for name, said, known in zip(("deferral", "extra from interruption"), found, _PUBLISHED[place], strict=True):
            lines.append(
                Line(f"{length} h job, 24 h slack, {name}", said, "g/kWh saved vs at once", known if is_all else None)
            )
    if len({len(values) for values in hours}) == 1 and len(hours) > 1:
        for name, said, known in zip(
            ("best single zone", "best zone each hour"), best_zone(np.array(hours)), _BEST, strict=True
        ):
            lines.append(Line(name, said, "g/kWh saved vs the zones' mean", known if is_all else None))
    return lines


SLACK = (
    Scenario("eurosys-slack", "slack by job length, and the best zone (123 zones, 2022)", "EuroSys'24, tables", _run),
)
