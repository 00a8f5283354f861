"""Keep the rates at hand that a worker books its entries with, so that booking never asks the database."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta

from carbonq.model import Rate, Region
from carbonq.ratebook import RateBook
from carbonq.store import rates, sources
from carbonq.store.database import Database
from carbonq.units import WINDOW, window_of

#: Grid time that a snapshot covers before and after the moment it was made.
BACK = timedelta(hours=2)
AHEAD = timedelta(hours=3)

#: Baseline windows remembered for later look-ups; older ones are missing at first and settle like any other.
MAX_BASELINES = 2_000


class RateCache:
    """The rates of some regions around now, as immutable snapshots; ``refresh`` may run in a thread of its own."""

    def __init__(
        self,
        regions: Sequence[Region],
        *,
        settle_after_s: float = 0.0,
        max_stale_s: float = 7200.0,
        back: timedelta = BACK,
    ) -> None:
        """Take the regions whose zones are needed: the worker's own and those that may be a baseline.

        A source that told of nothing for ``max_stale_s`` grid seconds comes after those that did. ``back`` is how much
        grid time before now a snapshot covers.
        """
        self._back = back
        self._zones = {region.name: region.zone for region in regions}
        self._settle_after_s = settle_after_s
        self._max_stale_s = max_stale_s
        self._lock = threading.Lock()
        self._baselines: dict[tuple[str, datetime], None] = {}
        self._book = RateBook(self._zones, {})

    def book(self) -> RateBook:
        """Return the newest snapshot; all rates are missing before the first refresh."""
        return self._book

    def watch(self, baselines: Iterable[tuple[str, datetime]]) -> bool:
        """Remember baseline (region, window) pairs for the next refresh; say whether any of them is new."""
        with self._lock:
            new = [key for key in baselines if key not in self._baselines]
            self._baselines.update(dict.fromkeys(new))
            while len(self._baselines) > MAX_BASELINES:
                del self._baselines[next(iter(self._baselines))]
        return bool(new)

    def refresh(self, db: Database, now: datetime, *, baselines: Iterable[tuple[str, datetime]] = ()) -> None:
        """Load the rates around grid time ``now`` and of all watched baseline windows. Raises StoreUnavailable."""
        self.watch(baselines)
        with self._lock:
            watched = list(self._baselines)
        around = rates.Span(window_of(now - self._back), window_of(now + AHEAD))
        everywhere = set(self._zones.values())
        outside: dict[datetime, set[str]] = {}
        for region, window_at in watched:
            if region in self._zones and not around.start <= window_at < around.end:
                outside.setdefault(window_at, set()).add(self._zones[region])
        known: list[Rate] = []
        with db.read() as tx:
            for span, zones in [(around, everywhere), *runs(outside)]:
                known += rates.observed(tx, zones, span)
                known += rates.foretold(tx, zones, span, now=now)
            standings = sources.standings(tx, everywhere, now=now, max_stale_s=self._max_stale_s)
        self._book = RateBook.of(self._zones, known, now=now, settle_after_s=self._settle_after_s, standings=standings)


def runs(windows: Mapping[datetime, set[str]]) -> list[tuple[rates.Span, set[str]]]:
    """Join neighbouring windows with the zones wanted there, so that many windows cost few queries."""
    made: list[tuple[rates.Span, set[str]]] = []
    for window_at in sorted(windows):
        if made and window_at - made[-1][0].end <= WINDOW * 12:
            span, zones = made[-1]
            made[-1] = (rates.Span(span.start, window_at + WINDOW), zones | windows[window_at])
        else:
            made.append((rates.Span(window_at, window_at + WINDOW), set(windows[window_at])))
    return made
