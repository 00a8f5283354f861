"""Units, windows and exact decimals: the only place where one unit becomes another.

Energy is whole microjoules (uJ, int) inside; watt-hours and joules appear only at the edges. Emission rates are
gCO2e/kWh as ``Decimal``; times are aware UTC datetimes; a window is 300 s, aligned to UTC, half-open.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import ROUND_HALF_EVEN, Context, Decimal

#: Length of a window in seconds (mission.md: five minutes, aligned to UTC).
WINDOW_S = 300
WINDOW = timedelta(seconds=WINDOW_S)

#: Microjoules in a kilowatt-hour: 3.6e6 J x 1e6.
UJ_PER_KWH = 3_600_000_000_000

#: 1 lb = 453.59237 g exactly, so lb/MWh x this = g/kWh.
G_PER_KWH_PER_LB_PER_MWH = Decimal("0.45359237")

#: Decimals of the ledger: 34 significant digits, half-even (docs/methodology.md).
LEDGER_CONTEXT = Context(prec=34, rounding=ROUND_HALF_EVEN)

#: Grams are rounded once, at the end, to this quantum.
GRAM_QUANTUM = Decimal("1E-15")
QUANTA_PER_GRAM = 10**15

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

#: Longest step that a rate may have, a day: look-ups of the rate that covers a window reach back that far.
MAX_STEP_S = 86_400


def window_of(at: datetime) -> datetime:
    """Return the start of the window that holds ``at``."""
    seconds = int((at - _EPOCH) // timedelta(seconds=1))
    return _EPOCH + timedelta(seconds=seconds - seconds % WINDOW_S)


def window_index(at: datetime) -> int:
    """Return the number of whole windows between the Unix epoch and ``at``."""
    return int((at - _EPOCH) // WINDOW)


def window_at(index: int) -> datetime:
    """Return the start of window number ``index`` (inverse of ``window_index``)."""
    return _EPOCH + index * WINDOW


def iso(at: datetime) -> str:
    """Format a time as ``YYYY-MM-DDTHH:MM:SS.ffffffZ`` (fixed width, so that text order is time order)."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def parse_iso(text: str) -> datetime:
    """Parse an ISO 8601 time with ``Z`` or an offset into aware UTC.

    Raises ValueError when the text is no time or names no zone.
    """
    at = datetime.fromisoformat(text)
    if at.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone; write it with Z or an offset such as +01:00")
    return at.astimezone(UTC)


def quanta(numerator: int, denominator: int) -> int:
    """Return ``numerator / denominator`` as a whole number of gram quanta (1e-15), rounded once, half to even.

    Whole-number arithmetic, so that no intermediate result is ever rounded. ``denominator`` must be positive.
    """
    quotient, remainder = divmod(numerator * QUANTA_PER_GRAM, denominator)
    twice = 2 * remainder
    return quotient + (twice > denominator or (twice == denominator and quotient & 1))


def from_quanta(count: int) -> Decimal:
    """Return gram quanta as grams with 15 decimals."""
    return Decimal(count).scaleb(-15, LEDGER_CONTEXT)


def grams_text(count: int) -> str:
    """Write gram quanta as ``plain(from_quanta(count))`` would, several times faster."""
    digits = "%016d" % count if count >= 0 else "%017d" % count  # noqa: UP031 - an f-string takes twice as long
    return f"{digits[:-15]}.{digits[-15:]}"


def grams(energy_uj: int, pue: Decimal, g_per_kwh: Decimal) -> Decimal:
    """Return ``energy_uj / 3.6e12 x pue x g_per_kwh`` in grams, rounded once, half-even, to 15 decimals."""
    pue_num, pue_den = pue.as_integer_ratio()
    rate_num, rate_den = g_per_kwh.as_integer_ratio()
    return from_quanta(quanta(energy_uj * pue_num * rate_num, UJ_PER_KWH * pue_den * rate_den))


def kwh(energy_uj: int) -> float:
    """Return microjoules as kilowatt-hours, for display."""
    return energy_uj / UJ_PER_KWH


def wh(energy_uj: int) -> float:
    """Return microjoules as watt-hours, for display and API edges."""
    return energy_uj / (UJ_PER_KWH / 1000)


def plain(value: Decimal) -> str:
    """Write a decimal without an exponent, as the ledger's CSV does."""
    return format(value, "f")
