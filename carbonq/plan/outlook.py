"""What is thought of each (region, window) ahead: marginal rates with their basis and issue time. Pure arrays.

A missing value is NaN and never 0. Rates are gCO2e/kWh of one signal (MOER); percentiles have no place here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from carbonq.model import Region
from carbonq.plan.forecaster import EMPTY, FloatArray, Series, seasonal
from carbonq.units import window_at, window_index

#: Windows for which the last observation is held: for the next few minutes it beats forecasts (docs/planning.md).
HOLD_WINDOWS = 3


class Basis(StrEnum):
    """Where an outlook's value comes from."""

    FORECAST = "forecast"  # the source's newest forecast, as issued
    SEASONAL = "seasonal"  # carbonq's own daily shape, beyond the source's horizon
    HELD = "held"  # the last observation, for the window that runs now
    NONE = "none"


_CODES = (Basis.NONE, Basis.FORECAST, Basis.SEASONAL, Basis.HELD)


@dataclass(frozen=True, slots=True)
class ZoneData:
    """What is known of one grid zone: its newest forecast and its observed past."""

    forecast: Series = EMPTY
    issued_at: datetime | None = None
    history: Series = EMPTY


@dataclass(frozen=True, slots=True)
class Outlook:
    """Rates by ``[region, window]``; column 0 is window number ``first_window``, the one that runs now."""

    regions: tuple[str, ...]
    first_window: int
    g_per_kwh: FloatArray
    basis: npt.NDArray[np.int8]
    issued_at: tuple[datetime | None, ...]
    pue: FloatArray

    @property
    def windows(self) -> int:
        """How many windows it covers."""
        return self.g_per_kwh.shape[1]

    @property
    def is_down(self) -> bool:
        """Say whether nothing at all is known of any region."""
        return bool(np.isnan(self.g_per_kwh).all())

    def rate(self, region: int, window: int) -> Decimal | None:
        """Return the value of a cell (by position) as a ledger would write it; None where missing."""
        value = float(self.g_per_kwh[region, window])
        # The shortest text of the float is what the source wrote.
        return None if np.isnan(value) else Decimal(repr(value))

    def basis_of(self, region: int, window: int) -> Basis:
        """Return where the value of a cell (by position) comes from."""
        return _CODES[int(self.basis[region, window])]

    def window_at(self, window: int) -> datetime:
        """Return the start of a column's window."""
        return window_at(self.first_window + window)


def build(regions: Sequence[Region], zones: Mapping[str, ZoneData], now: datetime, windows: int) -> Outlook:
    """Put together the outlook of ``windows`` windows from the one that holds ``now``.

    The running window takes the last observation if that is at most ``HOLD_WINDOWS`` old; then the newest forecast as
    far as it goes; then the daily shape. Zones that are not given stay missing.
    """
    first = window_index(now)
    wanted = np.arange(first, first + windows, dtype=np.int64)
    curves = {zone: _curve(data, wanted) for zone, data in zones.items()}
    unknown = (np.full(windows, np.nan), np.zeros(windows, dtype=np.int8))
    chosen = [curves.get(region.zone, unknown) for region in regions]
    return Outlook(
        regions=tuple(region.name for region in regions),
        first_window=first,
        g_per_kwh=np.array([values for values, _ in chosen], dtype=np.float64).reshape(len(regions), windows),
        basis=np.array([basis for _, basis in chosen], dtype=np.int8).reshape(len(regions), windows),
        issued_at=tuple(zones[r.zone].issued_at if r.zone in zones else None for r in regions),
        pue=np.array([float(region.pue) for region in regions]),
    )


def _curve(data: ZoneData, wanted: npt.NDArray[np.int64]) -> tuple[FloatArray, npt.NDArray[np.int8]]:
    values = data.forecast.at(wanted)
    basis = np.where(np.isnan(values), 0, 1).astype(np.int8)
    observed = data.history.last()
    if observed is not None and 0 < wanted[0] - observed[0] <= HOLD_WINDOWS:
        values[0], basis[0] = observed[1], 3
    gaps = np.isnan(values)
    if gaps.any() and len(data.history.values):
        ahead = data.forecast.last()
        known = ahead if ahead is not None and ahead[0] >= wanted[0] else observed
        # A tenth of a gram: more digits would pretend a precision that a daily mean has not.
        values[gaps] = np.round(seasonal(data.history, known, wanted[gaps]), 1)
        basis[gaps & ~np.isnan(values)] = 2
    return values, basis
