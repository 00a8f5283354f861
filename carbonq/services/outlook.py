"""Read what is stored of the regions' zones and make the planner's outlook of it. Rates of one signal only."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import numpy as np

from carbonq.model import Region, Signal
from carbonq.plan import outlook
from carbonq.plan.blend import NO_SKILL, Skill
from carbonq.plan.evidence import ISSUE_AGES
from carbonq.plan.forecaster import EMPTY, HISTORY_DAYS, Series
from carbonq.plan.outlook import Outlook, ZoneData
from carbonq.signals import Forecast
from carbonq.store import forecasts, skills, sources
from carbonq.store.database import Database, Tx
from carbonq.units import WINDOW, WINDOW_S, window_at, window_index, window_of


def load_outlook(
    db: Database,
    regions: Sequence[Region],
    now: datetime,
    horizon_windows: int,
    max_stale_s: float,
    *,
    signal: Signal = Signal.MOER,
) -> Outlook:
    """Return the outlook of ``horizon_windows`` windows from the one that holds ``now``, of one signal.

    Each zone's values are those of its most preferred source that is not stale. A zone that was neither forecast nor
    observed within ``max_stale_s`` grid seconds counts as down: all its values are missing. Raises StoreUnavailable.
    """
    wanted = list(dict.fromkeys(region.zone for region in regions))
    with db.read() as tx:
        states = sources.states(tx, wanted)
        zones: dict[str, ZoneData] = {}
        for zone in wanted:
            may_use, source = sources.choose(states, zone, signal, now, max_stale_s)
            zones[zone] = _zone(tx, zone, signal, source, now=now, max_stale_s=max_stale_s) if may_use else ZoneData()
    return outlook.build(regions, zones, now, horizon_windows)


def _zone(tx: Tx, zone: str, signal: Signal, source: str | None, *, now: datetime, max_stale_s: float) -> ZoneData:
    oldest = now - timedelta(seconds=max_stale_s)
    forecast = forecasts.newest_forecast(tx, zone, signal, now, source=source)
    if forecast is not None and forecast.issued_at < oldest:
        forecast = None
    history = read_history(tx, (zone, signal, source), window_of(now) - timedelta(days=HISTORY_DAYS), now)
    observed = history.last()
    if forecast is None and (observed is None or window_at(observed[0] + 1) < oldest):
        return ZoneData()
    skill = NO_SKILL
    if source is not None and (row := skills.load(tx, zone, signal, source)) is not None:
        skill = Skill.from_json(row.state)
    return ZoneData(
        forecast=EMPTY if forecast is None else series(forecast),
        issued_at=None if forecast is None else forecast.issued_at,
        history=history,
        earlier=_earlier(tx, (zone, signal, source), now) if skill.is_trusted.any() else (),
        skill=skill,
    )


def _earlier(tx: Tx, key: tuple[str, Signal, str | None], now: datetime) -> tuple[Series, ...]:
    """Return the forecasts that were the newest some windows ago, as the blend wants them."""
    found: list[Series] = []
    for age in ISSUE_AGES[1:]:
        forecast = forecasts.newest_forecast(tx, key[0], key[1], now - age * WINDOW, source=key[2])
        found.append(EMPTY if forecast is None else series(forecast))
    return tuple(found)


def read_history(tx: Tx, key: tuple[str, Signal, str | None], start: datetime, end: datetime) -> Series:
    """Return what was observed by window in ``[start, end)``; longer steps are repeated, what is missing is NaN."""
    first = window_index(start)
    values = np.full(window_index(end) - first, np.nan)
    found = forecasts.history(tx, key[0], key[1], start, end, source=key[2])
    times = np.maximum(found.step_s // WINDOW_S, 1)
    # Each row's windows one after another: where rows overlap, the later one counts.
    place = np.repeat((found.window_s // WINDOW_S).astype(np.int64) - first, times)
    place += np.arange(len(place)) - np.repeat(np.cumsum(times) - times, times)
    is_inside = place < len(values)
    values[place[is_inside]] = np.repeat(found.g_per_kwh, times)[is_inside]
    return Series(first, values)


def series(forecast: Forecast) -> Series:
    """Return a forecast's values by window: longer steps are repeated, the mean is taken of shorter ones."""
    values = np.array([np.nan if value is None else float(value) for value in forecast.values])
    first = window_index(forecast.start_at)
    end_at = forecast.start_at + timedelta(seconds=forecast.step_s * len(values))
    windows = window_index(end_at - timedelta(microseconds=1)) - first + 1 if len(values) else 0
    offset_s = (forecast.start_at - window_of(forecast.start_at)).total_seconds()
    if forecast.step_s >= WINDOW_S:
        # The value that holds at a window's start; the first window may begin before the forecast does.
        places = np.maximum((np.arange(windows) * WINDOW_S - offset_s) // forecast.step_s, 0).astype(np.int64)
        return Series(first, values[places])
    inside = ((offset_s + np.arange(len(values)) * forecast.step_s) // WINDOW_S).astype(np.int64)
    known = ~np.isnan(values)
    sums = np.bincount(inside[known], weights=values[known], minlength=windows)
    counts = np.bincount(inside[known], minlength=windows)
    means = np.full(windows, np.nan)
    np.divide(sums, counts, out=means, where=counts > 0)
    return Series(first, means)
