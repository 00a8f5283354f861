"""How figures look on pages: few digits for people, the exact figure beside it. Pure. Unknown is never drawn as 0."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from carbonq.units import parse_iso

#: What stands where a figure is not known.
UNKNOWN = "unknown"

_PREFIXES = ((1e6, "M"), (1e3, "k"), (1.0, ""), (1e-3, "m"), (1e-6, "µ"), (1e-9, "n"))


def scaled(value: Any, unit: str) -> str:
    """Write a figure with three digits and a prefix: ``0.00124`` and ``g`` is ``1.24 mg``."""
    if value is None:
        return UNKNOWN
    number = float(value)
    if number == 0:
        return f"0 {unit}"
    factor, prefix = next((one for one in _PREFIXES if abs(number) >= one[0] * 0.9995), _PREFIXES[-1])
    return f"{_three(number / factor)} {prefix}{unit}".replace("-", "−")


def _three(number: float) -> str:
    size = abs(number)
    return f"{number:.0f}" if size >= 99.95 else f"{number:.1f}" if size >= 9.995 else f"{number:.2f}"


def energy(energy_uj: int | None) -> str:
    """Write whole microjoules as watt-hours."""
    return scaled(None if energy_uj is None else energy_uj / 3.6e9, "Wh")


def rate(value: Any) -> str:
    """Write an emissions rate, without its unit."""
    return UNKNOWN if value is None else f"{float(value):.0f}"


def span(seconds: float | None) -> str:
    """Write a duration by its two largest parts: ``2 h 5 min``; a negative one has a minus sign."""
    if seconds is None:
        return UNKNOWN
    sign, left = ("−" if seconds <= -1 else ""), abs(int(seconds))
    for size, unit, smaller, small_unit in ((86_400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if left >= size:
            rest = left % size // smaller
            return f"{sign}{left // size} {unit}" + (f" {rest} {small_unit}" if rest else "")
    return f"{sign}{left} s"


def clock(at: str | datetime | None) -> str:
    """Write a time as ``Mon 02 Mar 12:05``, UTC."""
    if at is None:
        return UNKNOWN
    return f"{parse_iso(at) if isinstance(at, str) else at:%a %d %b %H:%M}"


def count(value: int | None) -> str:
    """Write a whole number with its thousands apart."""
    return UNKNOWN if value is None else f"{value:,}"


def share_pct(part: Any, whole: Any) -> str | None:
    """Write a part of a whole in per cent; None where there is nothing to divide."""
    if part is None or whole is None or float(whole) == 0:
        return None
    return f"{100 * float(part) / float(whole):.1f}\N{NO-BREAK SPACE}%".replace("-", "−")


def short_id(name: str) -> str:
    """Write an id's kind and its end, which tells one from another: ``job_…p1mapme``."""
    kind, separator, rest = name.partition("_")
    return name if len(rest) <= 10 or not separator else f"{kind}_…{rest[-8:]}"
