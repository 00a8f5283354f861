"""Where marks of the dashboard's drawings stand: plain geometry in user units of an SVG. Pure.

Colours are classes of the stylesheet, so that light and dark need no second drawing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

#: About how wide the label of a time is.
_LABEL = 34.0

#: Steps of the colour ramp, clean to dirty; the stylesheet has one class for each.
STEPS = 8


@dataclass(frozen=True, slots=True)
class Tick:
    """A mark on an axis."""

    place: float
    label: str
    anchor: str = "middle"


@dataclass(frozen=True, slots=True)
class Frame:
    """Where a drawing's inner part is, and what it spans: times on x, values on y."""

    left: float
    top: float
    right: float
    bottom: float
    start_at: datetime
    end_at: datetime
    low: float = 0.0
    high: float = 1.0

    def x(self, at: datetime) -> float:
        """Return where a time is."""
        share = (at - self.start_at) / (self.end_at - self.start_at)
        return round(self.left + share * (self.right - self.left), 1)

    def y(self, value: float) -> float:
        """Return where a value is."""
        share = (value - self.low) / (self.high - self.low) if self.high > self.low else 0.5
        return round(self.bottom - share * (self.bottom - self.top), 1)


def nice_ceiling(value: float) -> float:
    """Return the next round number of 1, 2, 2.5 or 5 times a power of ten."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 2.5, 4, 5, 6, 8, 10) if step * power >= value * 0.999)


def value_ticks(frame: Frame, count: int = 4) -> list[Tick]:
    """Return marks of the values."""
    steps = [frame.low + (frame.high - frame.low) * number / count for number in range(count + 1)]
    return [Tick(frame.y(value), f"{value:.0f}") for value in steps]


def time_ticks(frame: Frame, hours: int) -> list[Tick]:
    """Return marks at whole hours of the day, every few; a midnight is named by its day."""
    first = frame.start_at.replace(minute=0, second=0, microsecond=0)
    first -= timedelta(hours=first.hour % hours)
    found: list[Tick] = []
    at = first
    while at <= frame.end_at:
        if at >= frame.start_at:
            x = frame.x(at)
            # A label at the edge would be cut off.
            anchor = "end" if frame.right - x < _LABEL / 2 else "middle"
            found.append(Tick(x, f"{at:%a}" if at.hour == 0 else f"{at:%H:%M}", anchor))
        at += timedelta(hours=hours)
    return found


def line(frame: Frame, points: Sequence[tuple[datetime, float | None]]) -> str:
    """Return the path through the known points; a gap stays a gap."""
    parts: list[str] = []
    is_open = False
    for at, value in points:
        if value is None:
            is_open = False
            continue
        parts.append(f"{'L' if is_open else 'M'}{frame.x(at):g} {frame.y(value):g}")
        is_open = True
    return "".join(parts)


def band(frame: Frame, points: Sequence[tuple[datetime, float | None, float | None]]) -> str:
    """Return the area within the spread around each value; points without one are left out."""
    runs: list[list[tuple[datetime, float, float]]] = [[]]
    for at, value, spread in points:
        if value is None or spread is None:
            runs.append([])
        else:
            runs[-1].append((at, value, spread))
    areas: list[str] = []
    for run in runs:
        if len(run) < 2:
            continue
        upper = [f"{frame.x(at):g} {frame.y(min(value + spread, frame.high)):g}" for at, value, spread in run]
        lower = [f"{frame.x(at):g} {frame.y(max(value - spread, frame.low)):g}" for at, value, spread in reversed(run)]
        areas.append("M" + "L".join(upper + lower) + "Z")
    return "".join(areas)


def thinned(values: Sequence[float | None], size: int) -> list[float | None]:
    """Return the mean of the known values of each ``size`` in a row; None where none is known."""
    found: list[float | None] = []
    for start in range(0, len(values), size):
        known = [value for value in values[start : start + size] if value is not None]
        found.append(sum(known) / len(known) if known else None)
    return found


def step_of(value: float | None, scale: tuple[float, float]) -> int | None:
    """Return which step of the ramp a value has; None for one that is not known."""
    if value is None:
        return None
    low, high = scale
    return STEPS // 2 if high <= low else max(0, min(STEPS - 1, int((value - low) / (high - low) * STEPS)))


def bar_height(count: int, most: int, room: float) -> float:
    """Return how high a bar of a count is; one is seen, and many do not hide few."""
    if count <= 0:
        return 0.0
    return round(room * (0.3 + 0.7 * math.log1p(count) / math.log1p(max(most, 1))), 1)


def columns(counts: Mapping[datetime, int], start_at: datetime, size: timedelta, number: int) -> list[int]:
    """Return counts by column of ``size``; what is before the first is left out."""
    found = [0] * number
    for at, count in counts.items():
        place = (at - start_at) // size
        if 0 <= place < number:
            found[place] += count
    return found
