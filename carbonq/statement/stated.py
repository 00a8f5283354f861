"""What a provider states of a month, by region. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Context, Decimal
from fractions import Fraction

#: Wide enough to add up anything that a statement may say without rounding.
EXACT = Context(prec=200, rounding=ROUND_HALF_EVEN)


@dataclass(frozen=True, slots=True)
class Stated:
    """What a statement says of a region in a month; None where it does not say it for all its lines there.

    ``kwh`` energies are in uJ: ``facility_uj`` overhead included, ``energy_uj`` that of the IT alone.
    """

    region: str
    names: tuple[str, ...]  # the provider's
    lines: int
    energy_uj: int | None
    facility_uj: int | None
    pue: Fraction | None
    g_per_kwh: Fraction | None
    location_g: Decimal | None
    market_g: Decimal | None


@dataclass(frozen=True, slots=True)
class Statement:
    """A month of a statement; ``covers`` says which scopes its location-based figures hold, None where it has none."""

    provider: str
    month: str
    covers: str | None
    lines: int  # of the month, that count
    left_out: int  # lines of other months, accounts and services
    regions: tuple[Stated, ...]
