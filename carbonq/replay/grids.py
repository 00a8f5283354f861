"""Recorded grids: what was observed in each zone and window. Values are g/kWh of one signal, NaN where missing.

Two shapes of CSV file are read, known by their columns: wide (``time_utc,ZONE,...``) and long
(``region,time_utc,VALUE``). A row holds from its time until the next; steps of 5 minutes to an hour are taken.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from carbonq.model import Signal
from carbonq.plan.evidence import IntArray
from carbonq.plan.forecaster import FloatArray, Series
from carbonq.replay.rows import Reader, Source, opened

#: Steps that are read, in windows: 5, 10, 15, 20, 30 and 60 minutes.
STEPS = (1, 2, 3, 4, 6, 12)


@dataclass(frozen=True, slots=True)
class Issued:
    """Forecasts of one zone as issued: row i was known from the start of window ``origins[i]`` on.

    ``values[i, k]`` covers the ``step`` windows from ``starts[i] + k * step`` on.
    """

    origins: IntArray
    starts: IntArray
    values: FloatArray
    step: int

    def age(self, windows: IntArray) -> IntArray:
        """Return how old the newest forecast is at each window; very old where there is none yet."""
        place = np.searchsorted(self.origins, windows, side="right") - 1
        return np.where(place < 0, np.iinfo(np.int64).max, windows - self.origins[np.maximum(place, 0)])

    def at(self, window: int) -> Series | None:
        """Return the newest forecast known at the start of a window; None if there was none."""
        place = int(np.searchsorted(self.origins, window, side="right")) - 1
        return None if place < 0 else Series(int(self.starts[place]), np.repeat(self.values[place], self.step))


@dataclass(frozen=True, slots=True)
class Grid:
    """What was recorded of some zones: observed values by window, their step in windows, and forecasts as issued."""

    signal: Signal
    observed: Mapping[str, Series]
    steps: Mapping[str, int]
    issued: Mapping[str, Issued] = field(default_factory=dict[str, Issued])

    @property
    def zones(self) -> tuple[str, ...]:
        """The zones in the order they were read."""
        return tuple(self.observed)

    def span(self) -> tuple[int, int]:
        """Return the first window for which any zone has a value, and the one after the last."""
        first = min(series.first_window for series in self.observed.values())
        return first, max(series.end_window for series in self.observed.values())

    def rates(self, zones: Sequence[str], first: int, end: int) -> FloatArray:
        """Return ``[zone, window]`` for windows ``[first, end)``; NaN where nothing was observed."""
        windows = np.arange(first, end, dtype=np.int64)
        return np.array([self.observed[zone].at(windows) for zone in zones]).reshape(len(zones), len(windows))


def read(intensity: Sequence[Source], forecast: Sequence[Source] = (), *, signal: Signal) -> Grid:
    """Read recorded files into one grid; the zones of all intensity files are its zones.

    Raises InvalidRequest naming file, line and limit for what cannot be read, for a zone that two files tell
    differently, and for forecasts of no zone that is known.
    """
    from carbonq.replay.issued import read_issued

    values: dict[str, _Values] = {}
    for source in intensity:
        _read_observed(source, values)
    observed = {zone: found.series() for zone, found in values.items()}
    steps = {zone: found.step() for zone, found in values.items()}
    issued: dict[str, Issued] = {}
    for source in forecast:
        for zone, one in read_issued(source).items():
            if zone in issued:
                raise source.error(f"forecasts of {zone} are in an earlier file too; give one file for a zone")
            issued[zone] = one
        if not set(issued) & set(observed):
            raise source.error(
                f"has forecasts of {', '.join(issued) or 'no zone'}, none of which is among {', '.join(observed)}"
            )
    return Grid(signal, observed, steps, {zone: one for zone, one in issued.items() if zone in observed})


@dataclass(slots=True)
class _Values:
    """One zone's values as they are read: window -> (value, line)."""

    zone: str
    source: Source
    by_window: dict[int, float] = field(default_factory=dict[int, float])

    def put(self, window: int, value: float, source: Source, line: int) -> None:
        before = self.by_window.get(window)
        if before is not None and before != value and not (np.isnan(before) or np.isnan(value)):
            raise source.error(f"{self.zone} has {value:g} g/kWh at a time at which it had {before:g} before", line)
        if before is None or np.isnan(before):
            self.by_window[window] = value
        self.source = source

    def step(self) -> int:
        windows = np.sort(np.fromiter(self.by_window, dtype=np.int64))
        if len(windows) < 2:
            return 1
        step = int(np.diff(windows).min())
        if step not in STEPS:
            allowed = ", ".join(str(5 * one) for one in STEPS)
            raise self.source.error(f"{self.zone} has a value every {5 * step} minutes; steps of {allowed} are read")
        if (windows % step).any():
            raise self.source.error(f"{self.zone} has values that do not lie on multiples of its {5 * step} minutes")
        return step

    def series(self) -> Series:
        step = self.step()
        windows = np.fromiter(self.by_window, dtype=np.int64)
        if not len(windows):
            return Series(0, np.empty(0))
        first, end = int(windows.min()), int(windows.max()) + step
        held = np.full(end - first, np.nan)
        told = np.fromiter(self.by_window.values(), dtype=np.float64)
        for place in range(step):
            held[windows - first + place] = told
        return Series(first, held)


def _read_observed(source: Source, values: dict[str, _Values]) -> None:
    with opened(source) as reader:
        if "region" in reader.columns:
            _read_long(reader, values)
        elif reader.columns[0] == "time_utc":
            _read_wide(reader, values)
        else:
            names = ", ".join(reader.columns[:6])
            raise source.error(f"has the columns {names}; known are time_utc,ZONE,... and region,time_utc,VALUE", 1)
    if not any(found.source == source and found.by_window for found in values.values()):
        raise source.error("holds no row below the names of its columns")


def _read_wide(reader: Reader, values: dict[str, _Values]) -> None:
    chosen = reader.source.chosen or tuple((name, name) for name in reader.columns[1:])
    if not chosen:
        raise reader.source.error("has no column beside time_utc", 1)
    places = [(reader.place(column), column, _values_of(values, zone, reader)) for column, zone in chosen]
    columns = [column for _, column, _ in places]
    for line, cells in reader.rows():
        window = reader.window(cells[0], line, "time_utc")
        rates = reader.rates([cells[place] for place, _, _ in places], line, columns)
        for rate, (_, _, found) in zip(rates, places, strict=True):
            found.put(window, rate, reader.source, line)


def _read_long(reader: Reader, values: dict[str, _Values]) -> None:
    when = next((name for name in ("time_utc", "generated_at_utc") if name in reader.columns), "time_utc")
    region, time = reader.place("region"), reader.place(when)
    if when == "generated_at_utc" and not reader.source.chosen:
        column = "actual"
    else:
        column = value_column(reader, {"region", "time_utc"})
    place = reader.place(column)
    zones: defaultdict[str, _Values | None] = defaultdict(lambda: None)
    for line, cells in reader.rows():
        found = zones[cells[region]]
        if found is None:
            found = zones[cells[region]] = _values_of(values, cells[region], reader)
        found.put(reader.window(cells[time], line, when), reader.rate(cells[place], line, column), reader.source, line)


def value_column(reader: Reader, others: set[str], prefix: str = "") -> str:
    """Return the one column with values; the person chooses where there are several. Raises InvalidRequest."""
    there = [name for name in reader.columns if name not in others and name.startswith(prefix)]
    if reader.source.chosen:
        wanted = reader.source.chosen[0][0]
        return wanted if wanted in reader.columns or not prefix else prefix + wanted
    if len(there) != 1:
        raise reader.source.error(
            f"has {len(there)} columns of values ({', '.join(there)}); say which, as in {reader.source.path.name}:"
            f"{there[0] if there else 'COLUMN'}",
            1,
        )
    return there[0]


def _values_of(values: dict[str, _Values], zone: str, reader: Reader) -> _Values:
    if not zone:
        raise reader.source.error("names a zone with an empty name")
    return values.setdefault(zone, _Values(zone, reader.source))
