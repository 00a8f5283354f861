"""Forecasts as issued, from files known by their columns. Values are g/kWh, NaN where a cell is empty.

``region,generated_at_utc,f005,f010,...`` holds one issue a row, leads in minutes; ``region,issue_utc,lead_h,VALUE`` and
``captured_utc,from_utc,VALUE`` hold one value a row. A forecast is known from the first window that begins at or after
its issue.
"""

from __future__ import annotations

import re
from collections import defaultdict
from itertools import pairwise

import numpy as np

from carbonq.replay.grids import STEPS, Issued, value_column
from carbonq.replay.rows import Reader, Source, opened
from carbonq.units import WINDOW_S, parse_iso

_HOUR = 12

#: The longest forecast that is read, in windows: ten days.
_MAX_LEAD = 2880


def read_issued(source: Source) -> dict[str, Issued]:
    """Read one file's forecasts by zone. Raises InvalidRequest naming file, line and limit."""
    with opened(source) as reader:
        names = set(reader.columns)
        if {"region", "generated_at_utc"} <= names:
            found = _read_leads(reader)
        elif {"region", "issue_utc", "lead_h"} <= names:
            found = _read_lead_rows(reader)
        elif {"captured_utc", "from_utc"} <= names:
            found = _read_captured(reader)
        else:
            raise source.error(
                f"has the columns {', '.join(reader.columns[:6])}; forecasts as issued are known as "
                "region,generated_at_utc,f005,f010,..., as region,issue_utc,lead_h,VALUE and as "
                "captured_utc,from_utc,VALUE",
                1,
            )
    if not found:
        raise source.error("holds no row")
    return found


def _read_leads(reader: Reader) -> dict[str, Issued]:
    leads = [(place, int(name[1:])) for place, name in enumerate(reader.columns) if re.fullmatch(r"f\d+", name)]
    steps = {after[1] - before[1] for before, after in pairwise(leads)} or {5}
    step = steps.pop()
    if not leads or steps or step // 5 not in STEPS or step % 5 or leads[0][1] % 5:
        raise reader.source.error("its columns of leads must be f005, f010 and so on, in equal steps of minutes", 1)
    region, issue = reader.place("region"), reader.place("generated_at_utc")
    places, names = [place for place, _ in leads], [f"f{lead:03d}" for _, lead in leads]
    rows: defaultdict[str, dict[int, list[float]]] = defaultdict(dict)
    for line, cells in reader.rows():
        window = reader.window(cells[issue], line, "generated_at_utc")
        if window in rows[cells[region]]:
            raise reader.source.error(f"{cells[region]} has a second forecast issued at {cells[issue]}", line)
        rows[cells[region]][window] = reader.rates([cells[place] for place in places], line, names)
    return {
        zone: _issued(issues, {w: w + leads[0][1] // 5 for w in issues}, step // 5) for zone, issues in rows.items()
    }


def _read_lead_rows(reader: Reader) -> dict[str, Issued]:
    column = value_column(reader, {"region", "issue_utc", "lead_h"}, prefix="forecast_")
    region, issue, lead, place = (reader.place(name) for name in ("region", "issue_utc", "lead_h", column))
    rows: defaultdict[str, defaultdict[int, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    windows: dict[str, int] = {}
    for line, cells in reader.rows():
        if cells[issue] not in windows:
            windows[cells[issue]] = reader.window(cells[issue], line, "issue_utc")
        hours = reader.number(cells[lead], line, "lead_h")
        if not (0 <= hours * _HOUR <= _MAX_LEAD and float(hours).is_integer()):
            raise reader.source.error(f"lead_h is {cells[lead]!r}; it must be whole hours from 0 to 240", line)
        values = rows[cells[region]][windows[cells[issue]]]
        if int(hours) in values:
            raise reader.source.error(f"{cells[region]} has lead_h {int(hours)} of {cells[issue]} twice", line)
        values[int(hours)] = reader.rate(cells[place], line, column)
    return {zone: _issued(_filled(issues), {w: w for w in issues}, _HOUR) for zone, issues in rows.items()}


def _filled(issues: dict[int, dict[int, float]]) -> dict[int, list[float]]:
    return {w: [values.get(k, np.nan) for k in range(max(values) + 1)] for w, values in issues.items()}


def _read_captured(reader: Reader) -> dict[str, Issued]:
    if not reader.source.chosen:
        raise reader.source.error("names no zone; say whose it is, as in FILE:forecast=GB", 1)
    column, zone = reader.source.chosen[0]
    captured, start, place = (reader.place(name) for name in ("captured_utc", "from_utc", column))
    rows: defaultdict[int, dict[int, float]] = defaultdict(dict)
    for line, cells in reader.rows():
        try:
            # Caught between two windows, it is known from the second on.
            known = -int(-parse_iso(cells[captured]).timestamp() // WINDOW_S)
        except ValueError as error:
            raise reader.source.error(f"captured_utc is {cells[captured]!r}: {error}", line) from error
        window = reader.window(cells[start], line, "from_utc")
        rows[known][window] = reader.rate(cells[place], line, column)
    stamps = np.unique(np.concatenate([np.fromiter(values, dtype=np.int64) for values in rows.values()] or [[]]))
    step = int(np.diff(stamps).min()) if len(stamps) > 1 else 1
    if step not in STEPS:
        raise reader.source.error(f"has a value every {5 * step} minutes; steps of 5 to 60 minutes are read")
    starts = {known: min(values) for known, values in rows.items()}
    lists = {
        known: [values.get(w, np.nan) for w in range(min(values), max(values) + 1, step)]
        for known, values in rows.items()
    }
    return {zone: _issued(lists, starts, step)} if rows else {}


def _issued(issues: dict[int, list[float]], starts: dict[int, int], step: int) -> Issued:
    origins = sorted(issues)
    length = max(len(values) for values in issues.values())
    table = np.full((len(origins), length), np.nan)
    for row, origin in enumerate(origins):
        table[row, : len(issues[origin])] = issues[origin]
    return Issued(
        np.array(origins, dtype=np.int64), np.array([starts[o] for o in origins], dtype=np.int64), table, step
    )
