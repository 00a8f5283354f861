"""Which rate of a window is final now: what settlement and restatement take, read from the observations as needed."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta

from carbonq.model import Rate, RateStatus, Signal
from carbonq.ratebook import RateBook
from carbonq.store import rates, sources
from carbonq.store.database import Tx
from carbonq.store.unsettled import Key
from carbonq.units import WINDOW

#: Windows are read a day at a time.
_DAY = timedelta(days=1)

#: Days kept at hand, of all zones together.
_MAX_DAYS = 2_000


class Finals:
    """Rates at one moment, by (signal, zone, window); ``now`` is grid time. Reads what it is asked for, once."""

    def __init__(self, now: datetime, settle_after_s: float) -> None:
        """A window's rate counts once the window is over for ``settle_after_s`` grid seconds."""
        self.now = now
        self._settle_after_s = settle_after_s
        self._books: dict[tuple[Signal, str, datetime, str | None], RateBook] = {}

    def get(self, tx: Tx, key: Key, *, source: str | None = None) -> Rate | None:
        """Return the final rate of a window; of one source only if that is named. None where there is none yet."""
        rate, status = self.best(tx, key, source=source)
        return rate if status is RateStatus.SETTLED else None

    def best(self, tx: Tx, key: Key, *, source: str | None = None) -> tuple[Rate | None, RateStatus]:
        """Return the observation that says most of a window, final or not, and how final it is."""
        signal, zone, window_at = key
        day = window_at.replace(hour=0, minute=0, second=0, microsecond=0)
        book = self._books.get((signal, zone, day, source))
        if book is None:
            while len(self._books) >= _MAX_DAYS:
                del self._books[next(iter(self._books))]
            book = self._books[signal, zone, day, source] = self._read(tx, signal, zone, day, source)
        return book.lookup(signal, zone, window_at)

    def many(self, tx: Tx, keys: Collection[Key]) -> dict[Key, Rate]:
        """Return the final rates of those keys that have one."""
        found = ((key, self.get(tx, key)) for key in keys)
        return {key: rate for key, rate in found if rate is not None}

    def _read(self, tx: Tx, signal: Signal, zone: str, day: datetime, source: str | None) -> RateBook:
        known = rates.observed(tx, [zone], rates.Span(day, day + _DAY), signal)
        if source is not None:
            known = [rate for rate in known if rate.source == source]
        standings = sources.standings(tx, [zone]) if source is None else None
        return RateBook.of({}, known, now=self.now, settle_after_s=self._settle_after_s, standings=standings)


def windows_between(start: datetime, end: datetime) -> list[datetime]:
    """Return the windows of a span, which begins at the start of one."""
    return [start + number * WINDOW for number in range(max(0, -((start - end) // WINDOW)))]
