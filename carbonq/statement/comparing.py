"""Why a statement's location-based figures are not those of the inventory book, step by step. Pure.

The steps go from our figure to the statement's, one quantity at a time: its energy, then its PUE, then its grams per
kWh. What they leave is the rest, so that the four always sum to the difference, exactly.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

from carbonq.statement.stated import EXACT, Stated, Statement
from carbonq.units import UJ_PER_KWH, from_quanta, quanta


@dataclass(frozen=True, slots=True)
class Booked:
    """What the ledger's inventory book has of a region in a month: all that ran there, overhead and all tenants too.

    ``facility_uj`` sums each entry's energy x PUE. ``unmetered_entries`` and ``unrated_entries`` have no energy or no
    average rate, so that their part is in no sum.
    """

    region: str
    energy_uj: int
    facility_uj: Decimal
    inventory_g: Decimal | None
    unmetered_entries: int = 0
    unrated_entries: int = 0


@dataclass(frozen=True, slots=True)
class Compared:
    """A region as stated and as booked. ``difference_g`` = stated - booked = the four steps' sum, exactly.

    ``energy_g``: the statement's energy instead of ours, at our PUE and rate; ``pue_g``: then its PUE too;
    ``intensity_g``: then its grams per kWh too; ``rest_g``: all else, as other scopes and rounding. A step is None
    where the statement does not say enough to tell it, and then in the rest; ``untold`` says why. Where no PUE is
    stated, ``energy_g`` is that at the facility's meter. Where no grams per kWh are stated, they are the statement's
    grams by its energy, so that ``intensity_g`` holds the rest too (``is_implied``).
    """

    region: str
    stated: Stated
    booked: Booked
    difference_g: Decimal | None
    energy_g: Decimal | None
    pue_g: Decimal | None
    intensity_g: Decimal | None
    rest_g: Decimal | None
    is_implied: bool
    untold: str | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """A statement beside the ledger: regions that both have, and those that only one of them has.

    The sums are over ``regions``; one is None where it is for any of them.
    """

    provider: str
    month: str
    covers: str | None
    regions: tuple[Compared, ...]
    only_stated: tuple[Stated, ...]
    only_booked: tuple[Booked, ...]

    @property
    def stated_g(self) -> Decimal | None:
        """Location-based grams of the statement."""
        return _total(one.stated.location_g for one in self.regions)

    @property
    def booked_g(self) -> Decimal | None:
        """Grams of the inventory book."""
        return _total(one.booked.inventory_g for one in self.regions)

    @property
    def difference_g(self) -> Decimal | None:
        """Stated - booked."""
        return _total(one.difference_g for one in self.regions)

    @property
    def market_g(self) -> Decimal | None:
        """Market-based grams of the statement, to be shown outside the comparison."""
        return _total(one.stated.market_g for one in self.regions)


def compare(statement: Statement, booked: Iterable[Booked]) -> Comparison:
    """Explain, region by region, why a statement's location-based figures are not those of the inventory book."""
    ours = {one.region: one for one in booked}
    stated = {one.region: one for one in statement.regions}
    return Comparison(
        statement.provider,
        statement.month,
        statement.covers,
        tuple(_compare(stated[region], ours[region]) for region in sorted(stated.keys() & ours.keys())),
        tuple(stated[region] for region in sorted(stated.keys() - ours.keys())),
        tuple(ours[region] for region in sorted(ours.keys() - stated.keys())),
    )


def _compare(stated: Stated, booked: Booked) -> Compared:
    if stated.location_g is None or booked.inventory_g is None:
        untold = "the statement has no location-based figure" if stated.location_g is None else "the ledger has none"
        return Compared(stated.region, stated, booked, None, None, None, None, None, False, untold)
    difference = EXACT.subtract(stated.location_g, booked.inventory_g)
    untold = _untold(stated, booked)
    if untold is not None or stated.facility_uj is None:
        return Compared(stated.region, stated, booked, difference, None, None, None, difference, False, untold)
    energy, pue, intensity = _steps(stated, booked, Fraction(stated.location_g), stated.facility_uj)
    told = [one for one in (energy, pue, intensity) if one is not None]
    rest = difference
    for one in told:
        rest = EXACT.subtract(rest, one)
    why = None if pue is not None else "the statement has no PUE: its step is in that of the energy"
    return Compared(
        stated.region,
        stated,
        booked,
        difference,
        energy,
        pue,
        intensity,
        rest,
        is_implied=stated.g_per_kwh is None,
        untold=why,
    )


def _untold(stated: Stated, booked: Booked) -> str | None:
    """Say why a difference cannot be told apart; None where it can."""
    if stated.facility_uj is None and stated.energy_uj is None:
        return "the statement has no kWh, so the difference cannot be told apart"
    if stated.facility_uj is None:
        return "the statement has no PUE to its IT energy, so the difference cannot be told apart"
    if booked.unmetered_entries or booked.unrated_entries:
        return (
            f"{booked.unmetered_entries:,} entries of the ledger have no energy and {booked.unrated_entries:,} no "
            "average rate yet, so the difference cannot be told apart"
        )
    return None if booked.facility_uj else "the ledger has no energy there, so the difference cannot be told apart"


def _steps(
    stated: Stated, booked: Booked, location_g: Fraction, facility_uj: int
) -> tuple[Decimal, Decimal | None, Decimal]:
    ours_uj, inventory_g = Fraction(booked.facility_uj), Fraction(booked.inventory_g or 0)
    rate = inventory_g / ours_uj  # grams per uJ at the facility's meter
    theirs = facility_uj * rate if stated.g_per_kwh is None else facility_uj * stated.g_per_kwh / UJ_PER_KWH
    grams = location_g if stated.g_per_kwh is None else theirs
    at_our_rate = facility_uj * rate
    if stated.pue is None or stated.energy_uj is None or not booked.energy_uj:
        return _rounded(at_our_rate - inventory_g), None, _rounded(grams - at_our_rate)
    at_our_pue = stated.energy_uj * (ours_uj / booked.energy_uj) * rate
    return _rounded(at_our_pue - inventory_g), _rounded(at_our_rate - at_our_pue), _rounded(grams - at_our_rate)


def _rounded(value: Fraction) -> Decimal:
    return from_quanta(quanta(value.numerator, value.denominator))


def _total(values: Iterable[Decimal | None]) -> Decimal | None:
    total = Decimal(0)
    for value in values:
        if value is None:
            return None
        total = EXACT.add(total, value)
    return total
