"""Read recorded forecasts and observations for ``carbonq bench outlook``: files are known by their columns, not names.

Times are numbers of 5-minute windows; values are gCO2/kWh, NaN where a cell is empty.
"""

from __future__ import annotations

import csv
import gzip
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

import numpy as np

from carbonq.plan.evidence import IntArray
from carbonq.plan.forecaster import FloatArray, Series
from carbonq.units import parse_iso, window_index

#: Windows in an hour, and in half of one.
HOUR, HALF_HOUR = 12, 6


@dataclass(frozen=True, slots=True)
class Issued:
    """Forecasts of one zone as issued: row i was issued at the start of window ``origins[i]``.

    ``values[i, k]`` covers the ``step`` windows from ``origins[i] + starts + k * step`` on.
    """

    origins: IntArray
    values: FloatArray
    step: int
    starts: int

    def at(self, origin: int) -> Series | None:
        """Return the newest forecast issued by a window; None if there was none."""
        place = int(np.searchsorted(self.origins, origin, side="right")) - 1
        if place < 0:
            return None
        return Series(int(self.origins[place]) + self.starts, np.repeat(self.values[place], self.step))


@dataclass(slots=True)
class Recordings:
    """What a folder holds; ``notes`` says what was left out and why."""

    five_minute: dict[str, Issued] = field(default_factory=dict[str, Issued])
    hourly: dict[str, Issued] = field(default_factory=dict[str, Issued])
    half_hourly: dict[str, Issued] = field(default_factory=dict[str, Issued])
    observed: dict[str, Series] = field(default_factory=dict[str, Series])
    files: list[str] = field(default_factory=list[str])
    notes: list[str] = field(default_factory=list[str])


def read(folder: Path) -> Recordings:
    """Read every CSV file (or .csv.gz) of a folder whose columns are known.

    Raises ValueError naming the file for columns or cells that cannot be read.
    """
    found = Recordings()
    observed: defaultdict[str, dict[int, float]] = defaultdict(dict)
    paths = sorted([*folder.glob("*.csv"), *folder.glob("*.csv.gz")])
    for path in paths:
        columns = _columns(path)
        names = set(columns)
        if {"region", "generated_at_utc", "actual"} <= names:
            _read_five_minute(path, found, observed)
        elif {"region", "issue_utc", "lead_h", "forecast_direct"} <= names:
            _read_long(path, ("region", "issue_utc", "lead_h", "forecast_direct", "actual_direct"), found, observed)
        elif {"captured_utc", "from_utc", "forecast", "actual"} <= names:
            _read_captured(path, found, observed)
        elif {"region", "time_utc", "direct"} <= names:
            for row in _rows(path):
                _put(observed[row["region"]], _window(row["time_utc"]), row["direct"], HOUR)
        elif {"time_utc", "forecast"} <= names:
            found.notes.append(f"{path.name}: its forecasts are not as they were issued, so it is left out")
            continue
        elif columns[:1] == ["time_utc"]:
            for row in _rows(path):
                for zone in columns[1:]:
                    _put(observed[zone], _window(row["time_utc"]), row[zone], 1)
        else:
            continue
        found.files.append(path.name)
    found.observed = {zone: _series(values) for zone, values in observed.items() if values}
    return found


def _read_five_minute(path: Path, found: Recordings, observed: dict[str, dict[int, float]]) -> None:
    leads = [name for name in _columns(path) if re.fullmatch(r"f\d+", name)]
    expected = [f"f{5 * (place + 1):03d}" for place in range(len(leads))]
    if leads != expected:
        raise ValueError(f"{path.name}, line 1: the columns of leads must be {expected[0]}, {expected[1]} and so on")
    rows: defaultdict[str, list[tuple[int, list[float]]]] = defaultdict(list)
    for row in _rows(path):
        window = _window(row["generated_at_utc"])
        rows[row["region"]].append((window, [_number(row[name]) for name in leads]))
        _put(observed[row["region"]], window, row["actual"], 1)
    for zone, listed in rows.items():
        found.five_minute[zone] = _issued(listed, step=1, starts=1)


def _read_long(
    path: Path, names: tuple[str, str, str, str, str], found: Recordings, observed: dict[str, dict[int, float]]
) -> None:
    zone_name, issue, lead, forecast, actual = names
    rows: defaultdict[str, defaultdict[int, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    for row in _rows(path):
        window = _window(row[issue])
        rows[row[zone_name]][window][int(row[lead])] = _number(row[forecast])
        _put(observed[row[zone_name]], window + int(row[lead]) * HOUR, row[actual], HOUR)
    for zone, issues in rows.items():
        length = max(max(values) for values in issues.values()) + 1
        listed = [(w, [values.get(k, np.nan) for k in range(length)]) for w, values in issues.items()]
        found.hourly[zone] = _issued(listed, step=HOUR, starts=0)


def _read_captured(path: Path, found: Recordings, observed: dict[str, dict[int, float]]) -> None:
    issues: defaultdict[int, dict[int, float]] = defaultdict(dict)
    for row in _rows(path):
        window = _window(row["from_utc"])
        issues[_window(row["captured_utc"])][window] = _number(row["forecast"])
        _put(observed["GB"], window, row["actual"], HALF_HOUR)
    # A capture's forecast begins at the half-hour that holds it; a row begins at its first window.
    listed: list[tuple[int, list[float]]] = []
    for values in issues.values():
        first, last = min(values), max(values)
        listed.append((first, [values.get(w, np.nan) for w in range(first, last + 1, HALF_HOUR)]))
    length = max(len(values) for _, values in listed)
    padded = [(window, values + [np.nan] * (length - len(values))) for window, values in listed]
    found.half_hourly["GB"] = _issued(padded, step=HALF_HOUR, starts=0)


def _issued(listed: list[tuple[int, list[float]]], *, step: int, starts: int) -> Issued:
    ordered = sorted(listed)
    origins = np.array([window for window, _ in ordered], dtype=np.int64)
    return Issued(origins, np.array([values for _, values in ordered]), step, starts)


def _columns(path: Path) -> list[str]:
    with _open(path) as lines:
        return next(csv.reader(lines), [])


def _rows(path: Path) -> Iterator[dict[str, str]]:
    with _open(path) as lines:
        yield from csv.DictReader(lines)


def _open(path: Path) -> TextIO:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8", newline="")
    return path.open(encoding="utf-8", newline="")


def _window(text: str) -> int:
    return window_index(parse_iso(text))


def _number(text: str) -> float:
    return float(text) if text else np.nan


def _put(values: dict[int, float], window: int, text: str, step: int) -> None:
    if text:
        value = float(text)
        for place in range(step):
            values[window + place] = value


def _series(values: dict[int, float]) -> Series:
    first, last = min(values), max(values)
    series = np.full(last - first + 1, np.nan)
    series[np.fromiter(values, dtype=np.int64) - first] = np.fromiter(values.values(), dtype=np.float64)
    return Series(first, series)
