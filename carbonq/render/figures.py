"""How figures are written in a report: one unit for a whole column, so that they can be compared. Pure.

What is unknown is said to be; what is too small for the column's digits is ``< 0.001``, never 0.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import ROUND_HALF_EVEN, Decimal

from carbonq.units import LEDGER_CONTEXT, plain

#: What stands where a figure is not known, and where none belongs.
UNKNOWN = "unknown"
NONE = "–"

#: Digits of the largest figure of a column; smaller ones have the same number of decimals.
_DIGITS = 4

Figure = Decimal | float | int

#: Units by what is measured, small ones first: grams of CO2e, and whole microjoules.
GRAMS = (("ng", 1e-9), ("µg", 1e-6), ("mg", 1e-3), ("g", 1.0), ("kg", 1e3), ("t", 1e6))
ENERGY = (("µJ", 1.0), ("mJ", 1e3), ("J", 1e6), ("Wh", 3.6e9), ("kWh", 3.6e12), ("MWh", 3.6e15), ("GWh", 3.6e18))


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit for figures that belong together: a figure divided by ``size`` is in it."""

    name: str
    size: float
    decimals: int = 3

    def write(self, value: Figure | None, none: str = UNKNOWN) -> str:
        """Write a figure without its unit; ``none`` where there is none."""
        if value is None:
            return none
        number = LEDGER_CONTEXT.divide(Decimal(value), Decimal(self.size))
        if number == 0:
            return "0"
        quantum = Decimal(1).scaleb(-self.decimals)
        rounded = number.quantize(quantum, rounding=ROUND_HALF_EVEN, context=LEDGER_CONTEXT)
        if rounded == 0:
            return f"{'< ' if number > 0 else '> −'}{plain(quantum)}"
        return f"{rounded:,f}".replace("-", "−")

    def say(self, value: Figure | None) -> str:
        """Write a figure with its unit."""
        return UNKNOWN if value is None else f"{self.write(value)}\N{NO-BREAK SPACE}{self.name}"


def unit_of(units: Sequence[tuple[str, float]], values: Iterable[Figure | None], suffix: str = "") -> Unit:
    """Return the unit that suits the largest of some figures, with the decimals that give it four digits."""
    most = max((abs(float(value)) for value in values if value is not None), default=0.0)
    most = float(f"{most:.{_DIGITS}g}")  # as it is shown: 999.96 g are 1,000 g and so 1 kg
    name, size = ([one for one in units if one[1] <= most] or [units[0 if most else len(units) // 2]])[-1]
    before = 1 if most == 0 else math.floor(math.log10(most / size) + 1e-9) + 1
    return Unit(name + suffix, size, min(9, max(0, _DIGITS - before)))


def grams_of(values: Iterable[Figure | None], suffix: str = "CO2e") -> Unit:
    """Return the unit for masses given in grams."""
    return unit_of(GRAMS, values, suffix)


def energy_of(values: Iterable[Figure | None]) -> Unit:
    """Return the unit for energies given in microjoules."""
    return unit_of(ENERGY, values)


def grams(value: Figure | None) -> str:
    """Write one mass that stands alone."""
    return grams_of([value]).say(value)


def energy(value: Figure | None) -> str:
    """Write one energy that stands alone."""
    return energy_of([value]).say(value)


def count(value: int | None) -> str:
    """Write a whole number, its thousands apart."""
    return UNKNOWN if value is None else f"{value:,}"


def several(number: int, one: str, many: str = "") -> str:
    """Write a number with its noun: ``1 entry``, ``2 entries``."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def share(value: float | None, none: str = UNKNOWN) -> str:
    """Write a part of a whole in per cent; what is nearly all or nearly nothing is not rounded to either."""
    if value is None:
        return none
    if 0 < value < 0.001:
        return "< 0.1\N{NO-BREAK SPACE}%"
    if 0.999 < value < 1:
        return "> 99.9\N{NO-BREAK SPACE}%"
    return f"{100 * value:,.1f}\N{NO-BREAK SPACE}%".replace("-", "−")


def per_cent(value: float | None) -> str:
    """Write a figure that is in per cent already, with its sign."""
    return NONE if value is None else f"{value:+,.1f}\N{NO-BREAK SPACE}%".replace("-", "−")


def number(value: Figure | None, digits: int = 4) -> str:
    """Write a figure without a unit to choose, with so many digits."""
    if value is None:
        return UNKNOWN
    size = abs(float(value))
    before = 1 if size == 0 else math.floor(math.log10(size)) + 1
    return f"{float(value):,.{min(9, max(0, digits - before))}f}".replace("-", "−")


def time(at: datetime) -> str:
    """Write a time, UTC, to the minute."""
    return f"{at:%Y-%m-%d %H:%M} UTC"


def exact(value: Decimal | None, unit: str = "gCO2e") -> str:
    """Write a figure with all its digits."""
    return "" if value is None else f"{plain(value)} {unit}"


#: Joiners that emoji and some scripts are written with; other letters that cannot be seen are shown by their number.
_JOINERS = "\u200c\u200d"

#: Kinds of letters that cannot be seen, or turn what stands around them.
_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def visible(text: str) -> str:
    """Return a text whose every letter is seen: others name products, and could turn or hide what stands beside."""
    if text.isprintable():
        return text
    return "".join(
        f"\\u{ord(letter):04x}" if unicodedata.category(letter) in _UNSEEN and letter not in _JOINERS else letter
        for letter in text
    )
