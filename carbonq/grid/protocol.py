"""What a grid source is: one object per configured source, giving forecasts and observations of a zone.

Values leave a source already in gCO2e/kWh, each with its own stamps. A source never fills a gap: a missing value is
missing. Sources are absolute intensities; percentiles are refused by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Protocol

from carbonq.model import Signal


@dataclass(frozen=True, slots=True)
class Forecast:
    """One forecast as issued: ``values[i]`` (gCO2e/kWh, None = missing) covers ``start_at + i*step_s``, step_s long."""

    zone: str
    signal: Signal
    source: str
    model: str | None
    gas: str
    method: str | None
    issued_at: datetime
    retrieved_at: datetime
    start_at: datetime
    step_s: int
    values: Sequence[Decimal | None]
    raw_unit: str
    raw_per_g_per_kwh: Decimal  # raw value = g/kWh x this, so that the raw figure can be shown
    is_estimated: bool
    may_settle: bool


@dataclass(frozen=True, slots=True)
class Observation:
    """One observed value of a zone for ``[window_at, window_at + step_s)``."""

    zone: str
    signal: Signal
    source: str
    model: str | None
    gas: str
    method: str | None
    window_at: datetime
    step_s: int
    retrieved_at: datetime
    g_per_kwh: Decimal
    raw: Decimal
    raw_unit: str
    is_estimated: bool
    may_settle: bool


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
