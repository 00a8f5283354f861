"""The two ways a report draws figures: bars by name, and columns by time. Pure.

One drawing has one axis of one unit, and figures of one book. What is unknown is marked as such, never drawn as zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from carbonq.render import svg
from carbonq.render.figures import Unit
from carbonq.render.svg import Drawing, Key

WIDTH = 720.0

#: Bars drawn at most; a table beside them has all.
MOST_BARS = 15

_TICK = 10.0
_NAME = 11.0
_ROW = 27.0
_BAR = 13.0
_NAMES = 170.0
_VALUES = 84.0
_TOP, _BOTTOM, _LEFT, _RIGHT = 26.0, 24.0, 52.0, 8.0
_COLUMNS_HEIGHT = 210.0


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a bar or column; ``kind`` is the class of its colour. None: a figure that is not known, not drawn."""

    kind: str
    value: float | None


@dataclass(frozen=True, slots=True)
class Bar:
    """A name with its segments, end to end; ``limit`` is a mark across it. ``says`` is told of it in full."""

    name: str
    segments: tuple[Segment, ...]
    says: str
    limit: float | None = None
    label: str = ""

    @property
    def total(self) -> float:
        """How long it is."""
        return sum(part.value or 0.0 for part in self.segments)


def bars(
    title: str, alt: str, rows: Sequence[Bar], unit: Unit, *, keys: Sequence[Key] = (), note: str = ""
) -> Drawing | None:
    """Draw bars from the left, the first on top; None where there is nothing to draw."""
    if not rows:
        return None
    shown = rows[:MOST_BARS]
    most = _ceiling(unit, max((max(row.total, row.limit or 0.0) for row in shown), default=0.0))
    height = 22 + len(shown) * _ROW + 6
    left, right = _NAMES, WIDTH - _VALUES
    marks = _value_lines(unit, most, (left, right), 18, height - 4)
    for number, row in enumerate(shown):
        marks += _bar(row, 22 + number * _ROW, left, (right - left) / most)
    if len(rows) > len(shown):
        note = f"{note} The {len(shown)} largest of {len(rows):,} are drawn; the table has the others.".strip()
    return Drawing(title, alt, WIDTH, height, "".join(marks), tuple(keys), note)


def _bar(row: Bar, y: float, left: float, scale: float) -> list[str]:
    top, x = y + (_ROW - _BAR) / 2, left
    middle = top + _BAR - 3
    marks = [svg.text("name", left - 8, middle, svg.shortened(row.name, _NAMES - 14, _NAME), size=_NAME, anchor="end")]
    for part in row.segments:
        if part.value:
            marks.append(svg.rect(part.kind, x, top, part.value * scale, _BAR, says=row.says, radius=2))
            x += part.value * scale
    if row.limit is not None:
        at = left + row.limit * scale
        marks.append(svg.line("limit", at, top - 4, at, top + _BAR + 4, says=row.says))
        x = max(x, at)
    return [*marks, svg.text("value", x + 6, middle, row.label, size=_TICK)] if row.label else marks


@dataclass(frozen=True, slots=True)
class Column:
    """A time with its segments, one upon the other, and ``above`` on top; ``is_unknown``: it has no figure."""

    label: str
    segments: tuple[Segment, ...]
    says: str
    is_unknown: bool = False
    above: str = ""

    @property
    def total(self) -> float:
        """How high it is."""
        return sum(part.value or 0.0 for part in self.segments)


def columns(
    title: str, alt: str, rows: Sequence[Column], unit: Unit, *, keys: Sequence[Key] = (), note: str = ""
) -> Drawing | None:
    """Draw columns from the left; None where there is nothing to draw."""
    if not rows or not any(row.total or row.is_unknown for row in rows):
        return None
    most = _ceiling(unit, max(row.total for row in rows))
    low, scale = _COLUMNS_HEIGHT - _BOTTOM, (_COLUMNS_HEIGHT - _TOP - _BOTTOM) / most
    step = (WIDTH - _LEFT - _RIGHT) / len(rows)
    width = min(step * 0.72, 46.0)
    marks = _height_lines(unit, most, low, scale)
    every = math.ceil(len(rows) / (WIDTH / (12 + svg.text_width(max((r.label for r in rows), key=len), _TICK))))
    for number, row in enumerate(rows):
        middle, y = _LEFT + step * (number + 0.5), low
        for part in row.segments:
            if part.value:
                y -= part.value * scale
                marks.append(svg.rect(part.kind, middle - width / 2, y, width, part.value * scale, says=row.says))
        if row.above:
            marks.append(svg.text("value", middle, y - 5, row.above, size=_TICK, anchor="middle"))
        if row.is_unknown:
            marks.append(svg.text("unknown", middle, y - 4, "?", size=_NAME, anchor="middle"))
        if number % every == 0:
            marks.append(svg.text("tick", middle, low + 15, row.label, size=_TICK, anchor="middle"))
    return Drawing(title, alt, WIDTH, _COLUMNS_HEIGHT, "".join(marks), tuple(keys), note)


def _ceiling(unit: Unit, value: float) -> float:
    """Return the next figure above a value that is round in its unit, so that the axis ends there."""
    if value <= 0:
        return unit.size
    power = 10.0 ** math.floor(math.log10(value / unit.size)) * unit.size
    return next(step * power for step in (1, 1.2, 1.6, 2, 2.4, 3, 4, 5, 6, 8, 10, 12) if step * power >= value * 0.999)


def _tick(unit: Unit, value: float) -> str:
    return f"{value / unit.size:,.6g}"


def _value_lines(unit: Unit, most: float, span: tuple[float, float], top: float, bottom: float) -> list[str]:
    """Draw the lines and labels of an axis that runs to the right, its unit behind the last."""
    marks: list[str] = []
    for number in range(5):
        x = span[0] + (span[1] - span[0]) * number / 4
        label = _tick(unit, most * number / 4) + (f" {unit.name}" if number == 4 else "")
        marks += [svg.line("grid", x, top, x, bottom), svg.text("tick", x, top - 6, label, size=_TICK, anchor="middle")]
    return marks


def _height_lines(unit: Unit, most: float, low: float, scale: float) -> list[str]:
    """Draw the lines and labels of an axis that runs up, its unit above the topmost."""
    marks = [svg.text("tick", _LEFT - 7, _TOP - 13, unit.name, size=_TICK, anchor="end")]
    for number in range(5):
        value = most * number / 4
        y = low - value * scale
        marks.append(svg.line("grid", _LEFT, y, WIDTH - _RIGHT, y))
        marks.append(svg.text("tick", _LEFT - 7, y + 3.5, _tick(unit, value), size=_TICK, anchor="end"))
    return marks
