"""A meter whose counter is multiplied by a factor that was found against a better one, with the date it was found.

What a wall meter or PDU showed over some hours, divided by what the meter counted, is such a factor. The factor is
exact (a decimal), the product is rounded down to whole microjoules, so the counter still never falls.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from decimal import Decimal
from fractions import Fraction

from carbonq.meters.protocol import Component, Meter, MeterKind
from carbonq.model import Quality


class CalibratedMeter:
    """Another meter times a factor; its device ids say so.

    Args:
        meter: the one that counts.
        factor: by which its counter is multiplied.
        found_on: the day the factor was found.
        uncertainty_pct: of the calibrated figure; None: as the meter states it.
    """

    def __init__(self, meter: Meter, factor: Decimal, found_on: date, uncertainty_pct: float | None = None) -> None:
        self._meter = meter
        self._factor = Fraction(factor)
        self._shown = f"x {factor:f} since {found_on.isoformat()}"
        self._uncertainty_pct = uncertainty_pct

    @property
    def component(self) -> Component:
        """The meter's."""
        return self._meter.component

    @property
    def kind(self) -> MeterKind:
        """The meter's."""
        return self._meter.kind

    @property
    def quality(self) -> Quality:
        """The meter's: a factor makes no measurement of an estimate."""
        return self._meter.quality

    @property
    def uncertainty_pct(self) -> float | None:
        """As stated with the factor, else the meter's."""
        return self._uncertainty_pct if self._uncertainty_pct is not None else self._meter.uncertainty_pct

    @property
    def device_ids(self) -> Sequence[str]:
        """The meter's, and the factor with its date."""
        return (*self._meter.device_ids, self._shown)

    @property
    def lag_s(self) -> float:
        """The meter's."""
        return self._meter.lag_s

    def read_uj(self) -> int:
        """Return the counter times the factor. Raises MeterLost."""
        return self._meter.read_uj() * self._factor.numerator // self._factor.denominator

    def marks(self) -> Sequence[str]:
        """The meter's."""
        return self._meter.marks()

    def close(self) -> None:
        """Close the meter."""
        self._meter.close()
