"""Keep sums of what ran in the past 30 days at hand, so that a scrape reads what is new and a bounded part of the rest.

The newest windows are read at every refresh. A walk back from them reads the others, a number of engine batches at a
time, and begins anew when it has come to the end: so settled figures, restatements and what came late out of a spool
are seen after some refreshes. A period is known once the walk has covered it.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta

import orjson

from carbonq import trends
from carbonq.clock import Clock
from carbonq.model import Rate, RateStatus, Region, Signal
from carbonq.services.rates import RateCache
from carbonq.store import rolled
from carbonq.store.database import Database
from carbonq.trends import PERIODS, Figure, Groups, Key
from carbonq.units import WINDOW, window_of

#: Grid and machine time for which windows may still get entries in the usual course of things.
_LATE_GRID, _LATE_MACHINE_S = timedelta(minutes=15), 60.0

#: Parts of engine batches that one step of the walk reads: at first, and once every period is known.
FIRST_STEP, STEP = 2_000, 200

#: After so much grid time without a refresh all begins anew.
_FORGOTTEN = timedelta(hours=6)

_HOUR, _DAY = timedelta(hours=1), PERIODS["24h"]
_LONGEST = max(PERIODS.values())


class Trends:
    """Sums by period, and the rates of the past day. Thread-safe."""

    def __init__(self, db: Database, clock: Clock, rates: RateCache) -> None:
        """Know nothing before the first ``refresh``; ``rates`` should reach a day back."""
        self._db, self._clock, self._rates = db, clock, rates
        self._lock = threading.Lock()
        self._hours: dict[datetime, dict[datetime, Groups]] = {}
        self._folded: dict[datetime, Groups] = {}
        self._refreshed_at: datetime | None = None
        self._cursor: datetime | None = None
        self._covered_since: datetime | None = None
        self._rates_of: datetime | None = None

    def refresh(self) -> None:
        """Read the newest windows and a step of the others. Raises StoreUnavailable."""
        with self._lock:
            now = self._clock.now()
            if self._refreshed_at is None or not timedelta(0) <= now - self._refreshed_at < _FORGOTTEN:
                self._forget()
            late = _LATE_GRID + timedelta(seconds=_LATE_MACHINE_S * self._clock.factor)
            newest = window_of(min(now, self._refreshed_at or now) - late)
            self._read(newest, window_of(now) + WINDOW)
            self._walk(newest, _hour_of(now - _LONGEST))
            self._refreshed_at = now
            for hour in [hour for hour in self._hours if hour < _hour_of(now - _LONGEST)]:
                del self._hours[hour], self._folded[hour]
            if self._rates_of != window_of(now):
                self._rates.refresh(self._db, now)
                self._rates_of = window_of(now)

    def over(self, period: str) -> Groups | None:
        """Return the sums of a period (of ``PERIODS``) up to now; None while they are not all known."""
        with self._lock:
            now, since = self._clock.now(), self._clock.now() - PERIODS[period]
            if self._covered_since is None or self._covered_since > _hour_of(since):
                return None
            found: Groups = {}
            if PERIODS[period] <= _HOUR:
                for _, groups in self._windows(window_of(since), now):
                    trends.merge(found, groups)
            else:
                for hour, groups in self._folded.items():
                    if hour >= _hour_of(since):
                        trends.merge(found, groups)
            return found

    def below_mean(self, serving: Mapping[str, Region]) -> list[Figure]:
        """Return the share of the past day's work that ran below its region set's mean MOER, by class.

        ``serving``: the regions as they are, among which work without regions of its own may choose.
        """
        now = self._clock.now()
        first = window_of(now - _DAY)
        windows = [first + number * WINDOW for number in range(_DAY // WINDOW + 1)]

        def region_set(key: Key) -> Collection[str]:
            if key.regions is not None and (named := orjson.loads(key.regions)):
                return named
            return [name for name, region in serving.items() if key.model is not None and region.serves(key.model)]

        def moer(region: str, window_at: datetime) -> float | None:
            rate, _ = self.rate(Signal.MOER, region, window_at)
            return None if rate is None else float(rate.g_per_kwh)

        with self._lock:
            if self._covered_since is None or self._covered_since > first:
                return []
            ran = list(self._windows(first, now))
        return trends.shares_below_mean(ran, windows, region_set, moer)

    def rate(self, signal: Signal, region: str, window_at: datetime) -> tuple[Rate | None, RateStatus]:
        """Return a region's rate in a window of the past day and how final it is; (None, missing): there is none."""
        book = self._rates.book()
        return book.lookup(signal, book.zone_of(region), window_at)

    def mean_rate(self, signal: Signal, region: str, back: timedelta) -> float | None:
        """Return the mean of a region's known rates over grid time up to and with the window that runs."""
        now = window_of(self._clock.now())
        found = [self.rate(signal, region, now - number * WINDOW)[0] for number in range(back // WINDOW)]
        known = [float(one.g_per_kwh) for one in found if one is not None]
        return sum(known) / len(known) if known else None

    def _forget(self) -> None:
        self._hours, self._folded = {}, {}
        self._refreshed_at = self._cursor = self._covered_since = None

    def _walk(self, newest: datetime, oldest: datetime) -> None:
        end = newest if self._cursor is None or self._cursor <= oldest else self._cursor
        is_first = self._covered_since is None or self._covered_since > oldest
        with self._db.read() as tx:
            edge = rolled.edge_before(tx, end, oldest, FIRST_STEP if is_first else STEP)
        # Whole hours, so that every step gets on even where one window holds more than a step.
        start = oldest if edge is None else max(oldest, min(_hour_of(edge), _hour_of(end - WINDOW)))
        self._read(start, end)
        self._cursor = start
        if is_first:
            self._covered_since = start

    def _read(self, start: datetime, end: datetime) -> None:
        with self._db.read() as tx:
            found = rolled.sums(tx, start, end, self._clock.kind)
        touched: set[datetime] = set()
        at = start
        while at < end:
            if self._hours.get(_hour_of(at), {}).pop(at, None) is not None:
                touched.add(_hour_of(at))
            at += WINDOW
        for window_at, groups in found.items():
            self._hours.setdefault(_hour_of(window_at), {})[window_at] = groups
            touched.add(_hour_of(window_at))
        for hour in touched:
            self._folded[hour] = {}
            for groups in self._hours[hour].values():
                trends.merge(self._folded[hour], groups)

    def _windows(self, start: datetime, end: datetime) -> list[tuple[datetime, Groups]]:
        hours = [windows for hour, windows in self._hours.items() if start - _HOUR < hour <= end]
        return [(at, groups) for windows in hours for at, groups in windows.items() if start <= at <= end]


def make(db: Database, clock: Clock, regions: Sequence[Region], *, settle_after_s: float, max_stale_s: float) -> Trends:
    """Return trends with rates of their own, which reach a day back."""
    rates = RateCache(regions, settle_after_s=settle_after_s, max_stale_s=max_stale_s, back=_DAY + WINDOW)
    return Trends(db, clock, rates)


def _hour_of(at: datetime) -> datetime:
    return at.replace(minute=0, second=0, microsecond=0)
