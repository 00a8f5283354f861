"""What is thought of each (region, window) ahead: marginal rates with their basis, spread and issue time. Pure arrays.

A missing value is NaN and never 0. Rates are gCO2e/kWh of one signal (MOER); percentiles have no place here. How a
value comes about is told in docs/planning.md; ``evidence.py`` gathers what is known, ``blend.py`` weighs it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from carbonq.model import Region
from carbonq.plan.blend import NO_SKILL, Skill, blend
from carbonq.plan.evidence import Evidence, Known, Part, evidence
from carbonq.plan.forecaster import EMPTY, FloatArray, Series
from carbonq.units import window_at, window_index

#: Windows for which the last observation is held where no skill is known: it beats forecasts then (docs/planning.md).
HOLD_WINDOWS = 3


class Basis(StrEnum):
    """Where an outlook's value comes from."""

    FORECAST = "forecast"  # the source's newest forecast, as issued
    SEASONAL = "seasonal"  # carbonq's own daily shape, beyond the source's horizon
    HELD = "held"  # the last observation, for the window that runs now
    BLEND = "blend"  # all that is known, weighed by how well it told the past (``Outlook.parts_of`` names the parts)
    NONE = "none"


_CODES = (Basis.NONE, Basis.FORECAST, Basis.SEASONAL, Basis.HELD, Basis.BLEND)
_CODE = {basis: code for code, basis in enumerate(_CODES)}


@dataclass(frozen=True, slots=True)
class ZoneData:
    """What is known of one grid zone: its newest forecast, its earlier ones, its observed past, and what was learned.

    ``earlier[i]`` is the forecast that was the newest ``evidence.ISSUE_AGES[i + 1]`` windows ago. Without a skill the
    forecast is taken as it is. ``step`` is how many windows one value of the source covers: all of them get one value.
    """

    forecast: Series = EMPTY
    issued_at: datetime | None = None
    history: Series = EMPTY
    earlier: tuple[Series, ...] = ()
    skill: Skill = NO_SKILL
    step: int = 1


def _nowhere() -> FloatArray:
    return np.full((0, 0), np.nan)


def _no_parts() -> npt.NDArray[np.int8]:
    return np.zeros((0, 0), dtype=np.int8)


@dataclass(frozen=True, slots=True)
class Outlook:
    """Rates by ``[region, window]``; column 0 is window number ``first_window``, the one that runs now.

    ``spread`` is the root mean square error that such values had in the past (g/kWh, NaN where that is not known).
    """

    regions: tuple[str, ...]
    first_window: int
    g_per_kwh: FloatArray
    basis: npt.NDArray[np.int8]
    issued_at: tuple[datetime | None, ...]
    pue: FloatArray
    spread: FloatArray = field(default_factory=_nowhere)
    parts: npt.NDArray[np.int8] = field(default_factory=_no_parts)

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

    def parts_of(self, region: int, window: int) -> Part:
        """Return what went into the value of a cell (by position)."""
        return Part(int(self.parts[region, window])) if self.parts.size else Part.NOTHING

    def window_at(self, window: int) -> datetime:
        """Return the start of a column's window."""
        return window_at(self.first_window + window)


@dataclass(frozen=True, slots=True)
class _Curve:
    values: FloatArray
    spread: FloatArray
    basis: npt.NDArray[np.int8]
    parts: npt.NDArray[np.int8]
    known: Evidence

    def over(self, places: npt.NDArray[np.int64]) -> _Curve:
        """Return the curve with each value where it holds."""
        return _Curve(self.values[places], self.spread[places], self.basis[places], self.parts[places], self.known)


def build(regions: Sequence[Region], zones: Mapping[str, ZoneData], now: datetime, windows: int) -> Outlook:
    """Put together the outlook of ``windows`` windows from the one that holds ``now``.

    Where a zone's skill is trusted, everything known is weighed by it. Elsewhere the running window takes the last
    observation if that is at most ``HOLD_WINDOWS`` old; then comes the newest forecast as far as it goes; then the
    daily shape. Zones that are not given stay missing. A zone's values depend on nothing of any other zone.
    """
    return build_known(regions, zones, now, windows)[0]


def build_known(
    regions: Sequence[Region], zones: Mapping[str, ZoneData], now: datetime, windows: int
) -> tuple[Outlook, dict[str, Evidence]]:
    """Do as ``build``, and return what was known of each zone beside it: what a skill learns from once the truth is in.

    Of a zone whose values cover several windows, each value is evidence once.
    """
    first = window_index(now)
    wanted = np.arange(first, first + windows, dtype=np.int64)
    curves = {zone: _curve(data, wanted) for zone, data in zones.items()}
    unknown = None if all(region.zone in curves for region in regions) else _curve(ZoneData(), wanted)
    chosen = [curve for region in regions if (curve := curves.get(region.zone, unknown)) is not None]
    shape = (len(regions), windows)
    made = Outlook(
        regions=tuple(region.name for region in regions),
        first_window=first,
        g_per_kwh=np.array([curve.values for curve in chosen], dtype=np.float64).reshape(shape),
        basis=np.array([curve.basis for curve in chosen], dtype=np.int8).reshape(shape),
        issued_at=tuple(zones[r.zone].issued_at if r.zone in zones else None for r in regions),
        pue=np.array([float(region.pue) for region in regions]),
        spread=np.array([curve.spread for curve in chosen], dtype=np.float64).reshape(shape),
        parts=np.array([curve.parts for curve in chosen], dtype=np.int8).reshape(shape),
    )
    return made, {zone: curve.known for zone, curve in curves.items()}


def _curve(data: ZoneData, wanted: npt.NDArray[np.int64]) -> _Curve:
    if data.step == 1 or not len(wanted):
        return _curve_of(data, wanted)
    # The value that covers the running window has begun before it.
    heads, places = np.unique(np.maximum(wanted - wanted % data.step, wanted[0]), return_inverse=True)
    return _curve_of(data, heads).over(places)


def _curve_of(data: ZoneData, wanted: npt.NDArray[np.int64]) -> _Curve:
    known = evidence(Known(int(wanted[0]), (data.forecast, *data.earlier), data.history), wanted)
    made = blend(data.skill, known)
    has_forecast = known.kind > 0
    values = made.values.copy()
    is_computed = made.is_blended | (~has_forecast & ~known.is_held)
    # A tenth of a gram: more digits would pretend a precision that a weighted mean has not.
    values[is_computed] = np.round(values[is_computed], 1)
    basis = np.where(has_forecast, _CODE[Basis.FORECAST], _CODE[Basis.SEASONAL])
    basis = np.where(known.is_held, _CODE[Basis.HELD], basis)
    basis = np.where(made.is_blended, _CODE[Basis.BLEND], basis)
    parts = known.parts(made.is_blended)
    observed = data.history.last()
    if len(values) and not made.is_blended[0] and observed and 0 < wanted[0] - observed[0] <= HOLD_WINDOWS:
        values[0], basis[0], parts[0] = observed[1], _CODE[Basis.HELD], Part.OBSERVED
    is_missing = np.isnan(values)
    basis[is_missing], parts[is_missing] = 0, 0
    return _Curve(values, made.spread, basis.astype(np.int8), parts, known)
