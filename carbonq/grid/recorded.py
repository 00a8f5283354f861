"""The demo grid that ships: 14 recorded days of the MOER of two Californian areas, with forecasts as issued then.

On a clock that runs inside the recorded days (the demo, replays) the values are what was really published, and settle.
On any other clock the days are replayed over and over, shifted by whole weeks: every value is then marked estimated
and never settles, because that was not the grid of that day. See ``data/grid/ATTRIBUTION.md`` for origin and licence.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from importlib.resources import files

import numpy as np
import numpy.typing as npt

from carbonq.clock import Clock, ClockKind
from carbonq.errors import SignalUnavailable
from carbonq.model import Signal
from carbonq.signals import Forecast, NoteLevel, Observation, SourceNote
from carbonq.units import WINDOW, WINDOW_S, parse_iso, window_at, window_index

SOURCE = "recorded-demo"
SHIFTED_SOURCE = "recorded-demo-shifted"

_FILE = "data/grid/sgip_caiso_2021-06-07.csv.gz"
_MISSING = -1
_GAS = "co2"
_RAW_UNIT = "kg/kWh"
_RAW_PER_G = Decimal("0.001")
_OBSERVED_MODEL = "sgip-moer-1.0"
_FORECAST_MODEL = "sgip-moer-1.0-1.0.0"


@dataclass(frozen=True, slots=True)
class Recording:
    """The recorded days: ``observed[zone][i]`` is window number ``first_window + i`` in whole g/kWh, -1 where missing.

    ``forecast[zone][i, k]`` is what was issued at the start of that window for the one ``k + 1`` later.
    """

    first_window: int
    windows: int
    observed: dict[str, npt.NDArray[np.int16]]
    forecast: dict[str, npt.NDArray[np.int16]]

    @property
    def start_at(self) -> datetime:
        """The start of the first window."""
        return window_at(self.first_window)

    @property
    def end_at(self) -> datetime:
        """The end of the last window."""
        return window_at(self.first_window + self.windows)


@lru_cache(maxsize=1)
def recording() -> Recording:
    """Read the file that ships, once a process (about 0.1 s)."""
    packed = files("carbonq").joinpath(_FILE).read_bytes()
    rows = csv.reader(gzip.decompress(packed).decode("ascii").splitlines())
    next(rows)
    first: int | None = None
    values: dict[str, list[list[int]]] = {}
    for zone, time_utc, *cells in rows:
        if first is None:
            first = window_index(parse_iso(time_utc))
        values.setdefault(zone, []).append([int(cell) if cell else _MISSING for cell in cells])
    assert first is not None
    arrays = {zone: np.array(table, dtype=np.int16) for zone, table in values.items()}
    return Recording(
        first_window=first,
        windows=min(len(table) for table in arrays.values()),
        observed={zone: table[:, 0] for zone, table in arrays.items()},
        forecast={zone: table[:, 1:] for zone, table in arrays.items()},
    )


def shift_for(clock: Clock) -> timedelta:
    """Return the whole weeks by which the recording is shifted for a clock; none if that runs inside it."""
    days, now = recording(), clock.now()
    if clock.kind is not ClockKind.REAL and days.start_at <= now < days.end_at:
        return timedelta(0)
    return (now - days.start_at) // timedelta(weeks=1) * timedelta(weeks=1)


class RecordedSource:
    """A grid source over the recording; ``shift`` is added to its times, and any shift makes it go round for ever."""

    def __init__(self, shift: timedelta = timedelta(0)) -> None:
        """Raises ValueError when the shift is no multiple of a week: hours and weekdays must stay what they are."""
        if shift % timedelta(weeks=1):
            raise ValueError(f"a recording can only be shifted by whole weeks, not by {shift}")
        self._days = recording()
        self._shift = shift // WINDOW
        self._is_shifted = bool(shift)

    @property
    def name(self) -> str:
        """``recorded-demo``, or ``recorded-demo-shifted`` where the days are not those of the clock."""
        return SHIFTED_SOURCE if self._is_shifted else SOURCE

    @property
    def signal(self) -> Signal:
        """The marginal signal; the recording has no average one."""
        return Signal.MOER

    def forecast(self, zone: str, now: datetime) -> Forecast | None:
        """Return the forecast issued at the start of the running window (after the end: the last); None before."""
        window = window_index(now) - self._shift
        if not self._is_shifted:
            window = min(window, self._days.first_window + self._days.windows - 1)
        place = self._place(window)
        table = self._table(self._days.forecast, zone)
        if place is None:
            return None
        issued_at = window_at(window + self._shift)
        return Forecast(
            zone=zone,
            signal=Signal.MOER,
            source=self.name,
            model=_FORECAST_MODEL,
            gas=_GAS,
            method=None,
            issued_at=issued_at,
            retrieved_at=now,
            start_at=issued_at + WINDOW,
            step_s=WINDOW_S,
            values=[None if value == _MISSING else Decimal(value) for value in table[place].tolist()],
            raw_unit=_RAW_UNIT,
            raw_per_g_per_kwh=_RAW_PER_G,
            is_estimated=self._is_shifted,
            may_settle=not self._is_shifted,
        )

    def observations(self, zone: str, start: datetime, end: datetime, now: datetime) -> Sequence[Observation]:
        """Return the windows in ``[start, end)`` that are over by ``now``, oldest first; gaps are left out."""
        table = self._table(self._days.observed, zone)
        first = window_index(start) + (window_at(window_index(start)) < start)
        last = min(window_index(end) + (window_at(window_index(end)) < end), window_index(now))
        found: list[Observation] = []
        for window in range(first, last):
            place = self._place(window - self._shift)
            if place is None or table[place] == _MISSING:
                continue
            value = Decimal(int(table[place]))
            found.append(
                Observation(
                    zone=zone,
                    signal=Signal.MOER,
                    source=self.name,
                    model=_OBSERVED_MODEL,
                    gas=_GAS,
                    method=None,
                    window_at=window_at(window),
                    step_s=WINDOW_S,
                    retrieved_at=now,
                    g_per_kwh=value,
                    raw=value * _RAW_PER_G,
                    raw_unit=_RAW_UNIT,
                    is_estimated=self._is_shifted,
                    may_settle=not self._is_shifted,
                )
            )
        return found

    def revisions(self, zone: str, since: datetime, now: datetime) -> Sequence[Observation]:
        """Return nothing: recorded days do not change."""
        return ()

    def check(self, zone: str, now: datetime) -> Sequence[SourceNote]:
        """Say whether it has the zone; each of its forecasts says itself that it is replayed."""
        if zone not in self._days.observed:
            known = ", ".join(sorted(self._days.observed))
            return [SourceNote(NoteLevel.FAIL, f"the recorded grid has no zone {zone}; it has {known}")]
        return ()

    def close(self) -> None:
        """Nothing to close."""

    def _place(self, window: int) -> int | None:
        place = window - self._days.first_window
        if self._is_shifted:
            return place % self._days.windows
        return place if 0 <= place < self._days.windows else None

    def _table(self, tables: dict[str, npt.NDArray[np.int16]], zone: str) -> npt.NDArray[np.int16]:
        if zone not in tables:
            known = ", ".join(sorted(tables))
            raise SignalUnavailable(f"the recorded demo grid has no zone {zone!r}; it has {known}")
        return tables[zone]
