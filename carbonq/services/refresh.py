"""Fetch what the grid sources have to say and store it as said: the newest forecast and what was observed since."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta

from carbonq.clock import Clock
from carbonq.errors import SignalUnavailable
from carbonq.grid.protocol import Forecast, GridSource
from carbonq.model import Signal
from carbonq.plan.forecaster import HISTORY_DAYS
from carbonq.store import forecasts
from carbonq.store.database import Database
from carbonq.units import WINDOW, window_of

logger = logging.getLogger(__name__)

#: Windows that are asked for again: providers correct what they have just published.
OVERLAP_WINDOWS = 12


def refresh(db: Database, sources: Mapping[tuple[str, Signal], GridSource], clock: Clock) -> int:
    """Ask every source and return how many new forecasts and observations were stored. Idempotent.

    A source that does not answer is logged and left out; the others go on. Raises StoreUnavailable.
    """
    now = clock.now()
    stored = 0
    for (zone, signal), source in sources.items():
        try:
            stored += _refresh(db, zone, signal, source, now)
        except SignalUnavailable as error:
            logger.warning("%s of %s cannot be had: %s", signal.value, zone, error.message)
    return stored


def _refresh(db: Database, zone: str, signal: Signal, source: GridSource, now: datetime) -> int:
    with db.read() as tx:
        last = forecasts.last_observed(tx, zone, signal, source.name)
        before = forecasts.newest_forecast(tx, zone, signal, now)
    # The first time, as much as the daily shape can use.
    since = window_of(now) - timedelta(days=HISTORY_DAYS) if last is None else last - OVERLAP_WINDOWS * WINDOW
    # Asked outside any transaction: a slow provider must not hold a lock.
    issued = _issued(source, zone, now, before)
    found = source.observations(zone, since, now, now)
    with db.write() as tx:
        new = forecasts.add_observations(tx, found)
        new += sum(forecasts.add_forecast(tx, forecast) for forecast in issued)
    return new


def _issued(source: GridSource, zone: str, now: datetime, before: Forecast | None) -> list[Forecast]:
    """Return the newest forecast, and the one before it where only that covers the window that runs now.

    Some sources begin with the next window. A fresh installation would then know no rate of its first one.
    """
    newest = source.forecast(zone, now)
    if newest is None:
        return []
    if _covers(newest, now) or (before is not None and _covers(before, now)):
        return [newest]
    earlier = source.forecast(zone, newest.issued_at - timedelta(microseconds=1))
    # A source stamps its answers with the time it was asked about; this one was fetched now.
    return [newest] if earlier is None else [replace(earlier, retrieved_at=now), newest]


def _covers(forecast: Forecast, at: datetime) -> bool:
    end_at = forecast.start_at + len(forecast.values) * timedelta(seconds=forecast.step_s)
    return forecast.start_at <= at < end_at
