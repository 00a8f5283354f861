"""Software Carbon Intensity (ISO/IEC 21031:2024): (E x I + M) / R from sums of entries. Pure.

E x I is what the ledger calls emission (impact book, marginal) or inventory (average), PUE included; M is the embodied
carbon of the device time; R is the functional unit: an item, a million tokens, a job. *Direct* counts the items' own
energy. *With overhead* adds idle, wasted and gap energy, shared by attributed IT energy within its pool, because the
standard counts reserved and idle hardware. The two books are scored apart and never added.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

from carbonq.units import UJ_PER_KWH, from_quanta, quanta

#: Tokens of the functional unit "a million tokens".
MILLION = 10**6


@dataclass(frozen=True, slots=True)
class Carbon:
    """Grams of some entries: E x I of one book, and M. None: unknown for some of them, so no sum is given."""

    operational_g: Fraction | None
    embodied_g: Fraction | None

    def __add__(self, other: Carbon) -> Carbon:
        return Carbon(_add(self.operational_g, other.operational_g), _add(self.embodied_g, other.embodied_g))

    def share(self, part_uj: int, whole_uj: int) -> Carbon:
        """Return the part of it that belongs to ``part_uj`` of ``whole_uj`` of energy."""
        ratio = Fraction(part_uj, whole_uj)
        return Carbon(
            None if self.operational_g is None else self.operational_g * ratio,
            None if self.embodied_g is None else self.embodied_g * ratio,
        )

    @property
    def total_g(self) -> Fraction | None:
        """Return E x I + M; None where either is unknown."""
        return _add(self.operational_g, self.embodied_g)


#: Nothing at all, which is known.
NOTHING = Carbon(Fraction(0), Fraction(0))


@dataclass(frozen=True, slots=True)
class Pool:
    """What is shared among those that ran in one place and time: its overhead, and all its attributed energy."""

    overhead: Carbon
    attributed_uj: int


def shared_overhead(own_uj: Mapping[object, int], pools: Mapping[object, Pool]) -> Carbon:
    """Return the overhead that falls on ``own_uj`` (attributed energy by pool).

    Over all who ran in a pool the shares sum exactly to its overhead; a pool in which nothing ran is shared by nobody.
    """
    shares = (
        pools[key].overhead.share(uj, pools[key].attributed_uj) for key, uj in own_uj.items() if uj and key in pools
    )
    return total(shares)


def total(parts: Iterable[Carbon]) -> Carbon:
    """Add up; None as soon as one part is unknown."""
    found = NOTHING
    for part in parts:
        found += part
    return found


def per(grams: Fraction | None, units: int, of: int = 1) -> Decimal | None:
    """Return grams for each ``of`` units, rounded once, half-even, to 15 decimals; None where unknown or no unit."""
    if grams is None or units <= 0:
        return None
    exact = grams * of / units
    return from_quanta(quanta(exact.numerator, exact.denominator))


def kwh_per(energy_uj: int | None, units: int, of: int = 1) -> Decimal | None:
    """Return kilowatt-hours of IT energy for each ``of`` units, rounded once to 15 decimals."""
    return None if energy_uj is None else per(Fraction(energy_uj, UJ_PER_KWH), units, of)


def _add(one: Fraction | None, other: Fraction | None) -> Fraction | None:
    return None if one is None or other is None else one + other
