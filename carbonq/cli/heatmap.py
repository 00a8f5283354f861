"""A terminal heat map of the outlook: regions by windows, put together to fit the width, with placements marked.

Works on the answer of ``GET /v1/plan?hours=``. In colour the ground says how dirty a column is and digits on it count
chunks; without colour bars say the former and a row of its own the latter. What is not known is never drawn as clean.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from rich.console import Console, Group
from rich.style import Style
from rich.text import Text

#: Windows that one column may stand for: whole parts of an hour, then whole hours.
_SPANS = (1, 2, 3, 4, 6, 12, 24, 36, 72, 144, 288)

#: Widest column, in characters.
_MOST_CELL = 4

_BARS = "▁▂▃▄▅▆▇█"

#: From clean to dirty; told apart by brightness too, for eyes that do not tell green from red.
_RAMP = ("#1a9850", "#66bd63", "#a6d96a", "#d9ef8b", "#fee08b", "#fdae61", "#f46d43", "#d73027")

#: What a window's value comes from, by the letter that stands for it; the surest first.
_BASES = {
    "blend": ("b", "blend of all that is known"),
    "forecast": ("f", "forecast as issued"),
    "held": ("h", "last observation held"),
    "seasonal": ("s", "seasonal, beyond the source's forecast"),
    "none": ("?", "not known, never counted as clean"),
}
_RANK = {name: rank for rank, name in enumerate(_BASES)}


@dataclass(frozen=True, slots=True)
class Row:
    """A region's columns: mean of the known values (None: none is), the least sure basis, chunks of the caller."""

    region: str
    levels: tuple[float | None, ...]
    bases: tuple[str, ...]
    chunks: tuple[int, ...]
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class HeatMap:
    """What is drawn: when each column starts, how many windows it stands for, how wide it is, and the rows."""

    starts: tuple[datetime, ...]
    span: int
    cell: int
    rows: tuple[Row, ...]


def fold(plan: dict[str, Any], width: int) -> HeatMap:
    """Put the outlook's windows together so that a row fits into ``width`` characters; columns begin at round times."""
    outlook = plan["outlook"]
    start_at, step = datetime.fromisoformat(outlook["start_at"]), timedelta(seconds=outlook["step_s"])
    first = int(start_at.timestamp()) // outlook["step_s"]
    windows = max((len(one["values"]) for one in outlook["regions"]), default=0)
    room = max(10, width - _label_width(plan) - len("  1234 to 1234"))
    span = next((one for one in _SPANS if _columns(first, windows, one) <= room), _SPANS[-1])
    columns = _columns(first, windows, span)
    placed: Counter[tuple[str, int]] = Counter()
    for one in plan["placements"]:
        # What runs, or waits for a slot though its window has come, stands at now.
        at = max((datetime.fromisoformat(one["window_at"]) - start_at) // step, 0)
        placed[one["region"], (first + at) // span - first // span] += one["chunks"]
    rows: list[Row] = []
    for one in outlook["regions"]:
        parts: list[list[int]] = [[] for _ in range(columns)]
        for window in range(len(one["values"])):
            parts[(first + window) // span - first // span].append(window)
        values = [None if value is None else float(value) for value in one["values"]]
        known = [value for value in values if value is not None]
        rows.append(
            Row(
                region=one["region"],
                levels=tuple(_mean([values[window] for window in part]) for part in parts),
                bases=tuple(max((one["basis"][window] for window in part), key=_RANK.__getitem__) for part in parts),
                chunks=tuple(placed[one["region"], column] for column in range(columns)),
                low=min(known, default=None),
                high=max(known, default=None),
            )
        )
    starts = tuple(max(start_at, start_at + ((first // span + c) * span - first) * step) for c in range(columns))
    return HeatMap(starts, span, max(1, min(_MOST_CELL, room // max(columns, 1))), tuple(rows))


def render(plan: dict[str, Any], console: Console) -> Group:
    """Return the map with its heading and legend for a console's width and colours."""
    made = fold(plan, console.width)
    is_coloured = console.color_system is not None and not console.no_color
    label = _label_width(plan)
    known = [level for row in made.rows for level in row.levels if level is not None]
    low, high = min(known, default=0.0), max(known, default=0.0)
    lines = [_heading(plan, made), *_ticks(made, label)]
    for row in made.rows:
        lines += _row(row, made.cell, label, (low, high), is_coloured=is_coloured)
    return Group(*lines, *_legend(plan, made, (low, high) if known else None, is_coloured=is_coloured))


def _columns(first: int, windows: int, span: int) -> int:
    return 0 if not windows else (first + windows - 1) // span - first // span + 1


def _label_width(plan: dict[str, Any]) -> int:
    return max([len(one["region"]) for one in plan["outlook"]["regions"]] + [len("  chunks")]) + 2


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _heading(plan: dict[str, Any], made: HeatMap) -> Text:
    minutes = made.span * plan["outlook"]["step_s"] // 60
    size = f"{minutes} min" if minutes < 60 else f"{minutes // 60} h"
    kind = "marginal rates (MOER)" if plan["outlook"]["signal"] == "moer" else "average rates (AER)"
    now = datetime.fromisoformat(plan["clock"]["now"])
    each = "one window of" if made.span == 1 else "the mean of"
    return Text(f"{kind}, gCO2e/kWh, as they are thought of at {now:%a %d %b %H:%M}Z; a column is {each} {size}")


def _ticks(made: HeatMap, label: int) -> list[Text]:
    """Write the time above every few columns; a new day is named."""
    line = [" "] * (len(made.starts) * made.cell + 10)
    every = next(
        hours
        for hours in (1, 2, 3, 6, 12, 24, 48, 96)
        if hours * 12 / made.span * made.cell >= len("Mon 01 ") or hours == 96
    )
    end, day = -1, None
    for column, at in enumerate(made.starts):
        place = column * made.cell
        is_round = at.minute == 0 and (int(at.timestamp()) // 3600) % every == 0
        if place <= end or not (column == 0 or is_round):
            continue
        is_new_day = day is not None and at.date() != day
        text = f"{at:%H:%M}" if not is_new_day else f"{at:%a %d}" if at.hour == 0 else f"{at:%a %H:%M}"
        line[place : place + len(text)] = text
        end, day = place + len(text), at.date()
    return [Text(" " * label + "".join(line).rstrip(), style="dim")]


def _row(row: Row, cell: int, label: int, scale: tuple[float, float], *, is_coloured: bool) -> list[Text]:
    level = Text(row.region.ljust(label))
    for column, value in enumerate(row.levels):
        count = _count(row.chunks[column], cell)
        if value is None:
            level.append((count if is_coloured and count else "?").ljust(cell, "?"), style="dim reverse")
        elif is_coloured:
            ground = _RAMP[_step(value, scale, len(_RAMP))]
            level.append(count.ljust(cell), style=Style(color="black", bgcolor=ground, bold=True))
        else:
            level.append(_BARS[_step(value, scale, len(_BARS))] * cell)
    level.append("  not known" if row.low is None else f"  {row.low:.0f} to {row.high:.0f}")
    basis = Text("  basis".ljust(label) + "".join(_BASES[one][0] * cell for one in row.bases), style="dim")
    lines = [level, basis]
    if not is_coloured and any(row.chunks):
        counts = "".join(_count(one, cell).ljust(cell) for one in row.chunks)
        lines.append(Text(("  chunks".ljust(label) + counts).rstrip()))
    return lines


def _count(chunks: int, cell: int) -> str:
    """Write a count into a column's width; + where it does not fit."""
    return "" if not chunks else str(chunks) if len(str(chunks)) <= cell else "+"


def _step(value: float, scale: tuple[float, float], steps: int) -> int:
    low, high = scale
    return steps // 2 if high <= low else min(steps - 1, int((value - low) / (high - low) * steps))


def _legend(plan: dict[str, Any], made: HeatMap, scale: tuple[float, float] | None, *, is_coloured: bool) -> list[Text]:
    legend = Text("")
    if scale is None:
        legend.append("no rate is known of any region: work runs in the nearest one, by its deadline")
    elif is_coloured:
        for ground in _RAMP:
            legend.append("  ", style=Style(bgcolor=ground))
        legend.append(f" {scale[0]:.0f} to {scale[1]:.0f} gCO2e/kWh")
    else:
        legend.append(f"{_BARS[0]} {scale[0]:.0f} to {_BARS[-1]} {scale[1]:.0f} gCO2e/kWh")
    placed = sum(one["chunks"] for one in plan["placements"])
    digits = (
        f"digits count your chunks{', + is more than fits' if any(c > 9 for r in made.rows for c in r.chunks) else ''}"
    )
    legend.append(f"; {digits}" if placed else "; no chunk of yours is placed")
    used = {one for row in made.rows for one in row.bases}
    words = "; ".join(f"{letter} {meaning}" for name, (letter, meaning) in _BASES.items() if name in used)
    return [legend, Text(f"basis: {words}", style="dim")]
