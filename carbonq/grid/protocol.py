"""What a grid source is: one object per configured source, giving forecasts and observations of a zone.

Values leave a source already in gCO2e/kWh, each with its own stamps. A source never fills a gap: a missing value is
missing. Sources are absolute intensities; percentiles are refused by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Protocol, runtime_checkable

from carbonq.model import Signal
from carbonq.signals import Forecast, Observation, SourceNote


class GridSource(Protocol):
    """A place that rates come from. Raises SignalUnavailable when it cannot answer."""

    @property
    def name(self) -> str:
        """The name entries carry in ``moer_source`` or ``aer_source``."""
        ...

    @property
    def signal(self) -> Signal:
        """Which book this source feeds."""
        ...

    def forecast(self, zone: str, now: datetime) -> Forecast | None:
        """Return the newest forecast issued at or before grid time ``now``; None if the source makes none."""
        ...

    def observations(self, zone: str, start: datetime, end: datetime, now: datetime) -> Sequence[Observation]:
        """Return what is published by grid time ``now`` for windows in ``[start, end)``, oldest first."""
        ...

    def revisions(self, zone: str, since: datetime, now: datetime) -> Sequence[Observation]:
        """Return observations of any window that the provider changed at or after ``since``; empty if it cannot say.

        Where it cannot, the windows that a refresh asks for again are all that is corrected.
        """
        ...

    def check(self, zone: str, now: datetime) -> Sequence[SourceNote]:
        """Look the source over as ``carbonq doctor`` does: account, entitlement, zone, plausibility of values.

        Never raises SignalUnavailable: that is a note too.
        """
        ...

    def close(self) -> None:
        """Give up connections; those shared with other sources stay until the last one closes."""
        ...


@runtime_checkable
class PastForecasts(Protocol):
    """A source that also hands out earlier forecasts as they were issued (WattTime, SGIP Signal); for import."""

    def issues(self, zone: str, start: datetime, end: datetime, now: datetime) -> Iterator[Forecast]:
        """Yield the forecasts issued in ``[start, end)``, oldest first, fetched piece by piece as they are consumed."""
        ...


__all__ = ["Forecast", "GridSource", "Observation", "PastForecasts", "SourceNote"]
