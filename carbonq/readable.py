"""Masses and energies as people read them: three digits and a fitting unit. Unknown stays unknown, never 0."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

from carbonq.units import UJ_PER_KWH

#: (upper limit, divisor, unit) of masses in grams and energies in joules.
_GRAMS = ((1e-6, 1e-9, "ng"), (1e-3, 1e-6, "µg"), (1.0, 1e-3, "mg"), (1e3, 1.0, "g"), (1e6, 1e3, "kg"))
_JOULES = ((1e-3, 1e-6, "µJ"), (1.0, 1e-3, "mJ"), (3600.0, 1.0, "J"), (3.6e6, 3600.0, "Wh"))


def grams(value: Decimal | float | str | None) -> str:
    """Write a mass of CO2e given in grams; none at all is in no smaller unit than these."""
    if value is None:
        return "unknown"
    return f"{_scaled(float(value), _GRAMS, 't', 1e6) if float(value) else '0 g'}CO2e"


def energy(uj: int | float | None) -> str:
    """Write an energy given in microjoules."""
    return "unknown" if uj is None else _scaled(uj / 1e6, _JOULES, "kWh", UJ_PER_KWH / 1e6)


def _scaled(value: float, steps: Sequence[tuple[float, float, str]], last: str, divisor: float) -> str:
    # The unit is chosen by what is shown: 999.9 mg are 1 g, not 1000 mg.
    shown = float(f"{value:.3g}")
    for limit, step, unit in steps:
        if abs(shown) < limit:
            return f"{_three(value / step)} {unit}"
    return f"{_three(value / divisor)} {last}"


def _three(value: float) -> str:
    """Write three digits, or all before the point: never with an exponent where there are four or more."""
    return f"{value:,.0f}" if abs(value) >= 999.5 else f"{value:.3g}"
