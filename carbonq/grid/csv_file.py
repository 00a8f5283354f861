"""Rates from a CSV file: ``time_utc,g_per_kwh``, one row for each window start (or each longer step).

Rows whose window is over are observations; rows ahead are what the file foretells, so a file of past values gives no
forecast and a file of a coming day does. The file is read again when it changes. An empty cell is a missing value.
"""

from __future__ import annotations

import csv
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import MAXYEAR, datetime, timedelta
from decimal import Decimal
from pathlib import Path

from carbonq.errors import SignalUnavailable
from carbonq.grid.readings import UNITS, amount, scale_note
from carbonq.grid.replies import shown
from carbonq.model import Signal
from carbonq.signals import Forecast, NoteLevel, Observation, SourceNote
from carbonq.units import MAX_STEP_S, WINDOW_S, iso, parse_iso, window_at, window_index

_COLUMNS = ("time_utc", "g_per_kwh")

#: How far ahead a file is read as a forecast: every issue is stored, and no plan looks further.
_AHEAD = timedelta(days=8)

#: How far back a file that was changed is compared with what it said before.
_BACK = timedelta(days=32)

#: Twenty years of windows; stamps further apart are a typing error.
_MOST_STEPS = 2_103_840

_UNIT = UNITS["g/kwh"]


@dataclass(frozen=True, slots=True)
class _Table:
    stamp: tuple[int, int]
    start_at: datetime
    step: timedelta
    values: list[Decimal | None]

    @property
    def end_at(self) -> datetime:
        return self.start_at + len(self.values) * self.step


class CsvSource:
    """One file of one zone and one signal."""

    def __init__(self, path: Path, zone: str, signal: Signal) -> None:
        """Prepare to read ``path``; nothing is opened yet."""
        self._path = path
        self._zone = zone
        self._signal = signal
        self._table: _Table | None = None
        self._read_at: datetime | None = None
        self._changed_at: datetime | None = None

    @property
    def name(self) -> str:
        """``csv:`` and the file's name."""
        return f"csv:{self._path.name}"

    @property
    def signal(self) -> Signal:
        """The book this file feeds."""
        return self._signal

    def forecast(self, zone: str, now: datetime) -> Forecast | None:
        """Return what the file says of the running window and those after it; None when it ends before.

        It has no issue times: it counts as issued anew each hour, and when it was changed. Raises SignalUnavailable.
        """
        table = self._read(zone, now)
        issued_at = now.replace(minute=0, second=0, microsecond=0)
        if self._changed_at is not None and issued_at < self._changed_at <= now:
            issued_at = self._changed_at
        first = max(0, (issued_at - table.start_at) // table.step)
        last = max(first, -((table.start_at - issued_at - _AHEAD) // table.step))
        values = table.values[first:last]
        if now >= table.end_at or not any(value is not None for value in values):
            return None
        return Forecast(
            zone=zone,
            signal=self._signal,
            source=self.name,
            model=None,
            gas="co2e",
            method=None,
            issued_at=issued_at,
            retrieved_at=now,
            start_at=table.start_at + first * table.step,
            step_s=int(table.step.total_seconds()),
            values=values,
            raw_unit="g/kWh",
            raw_per_g_per_kwh=Decimal(1),
            is_estimated=False,
            may_settle=True,
        )

    def observations(self, zone: str, start: datetime, end: datetime, now: datetime) -> Sequence[Observation]:
        """Return the rows in ``[start, end)`` whose step is over by ``now``, oldest first. Raises SignalUnavailable."""
        table = self._read(zone, now)
        first = max(0, -((table.start_at - start) // table.step))
        found: list[Observation] = []
        for position in range(first, len(table.values)):
            at, value = table.start_at + position * table.step, table.values[position]
            if at >= end or at + table.step > now:
                break
            if at < start or value is None:
                continue
            found.append(
                Observation(
                    zone=zone,
                    signal=self._signal,
                    source=self.name,
                    model=None,
                    gas="co2e",
                    method=None,
                    window_at=at,
                    step_s=int(table.step.total_seconds()),
                    retrieved_at=now,
                    g_per_kwh=value,
                    raw=value,
                    raw_unit="g/kWh",
                    is_estimated=False,
                    may_settle=True,
                )
            )
        return found

    def revisions(self, zone: str, since: datetime, now: datetime) -> Sequence[Observation]:
        """Return the rows of the last 32 days if the file was read anew since: any of them may have changed."""
        self._read(zone, now)
        is_new = self._read_at is not None and self._read_at >= since
        return self.observations(zone, now - _BACK, now, now) if is_new else ()

    def check(self, zone: str, now: datetime) -> Sequence[SourceNote]:
        """Say what the file holds: its span and step, how far ahead it goes, whether it could be an index."""
        try:
            table = self._read(zone, now)
        except SignalUnavailable as error:
            return [SourceNote(NoteLevel.FAIL, error.message)]
        known = sum(value is not None for value in table.values)
        step_min = table.step.total_seconds() / 60
        text = f"{known} values every {step_min:.0f} min from {iso(table.start_at)} to {iso(table.end_at)}"
        notes = [SourceNote(NoteLevel.OK, text)]
        if known < len(table.values):
            notes.append(SourceNote(NoteLevel.WARN, f"{len(table.values) - known} of its steps have no value"))
        if table.end_at <= now:
            notes.append(
                SourceNote(NoteLevel.WARN, f"it ends at {iso(table.end_at)}: nothing is known of now or later")
            )
        if table.start_at > now:
            notes.append(SourceNote(NoteLevel.WARN, f"it begins at {iso(table.start_at)}: nothing is known of now"))
        scale = scale_note(table.values)
        return [*notes, scale] if scale else notes

    def close(self) -> None:
        """Nothing to close."""

    def _read(self, zone: str, now: datetime) -> _Table:
        if zone != self._zone:
            raise SignalUnavailable(f"{self._path} holds the rates of {self._zone}, not of {zone}")
        try:
            status = self._path.stat()
            stamp = (status.st_mtime_ns, status.st_size)
            if self._table is None or self._table.stamp != stamp:
                with self._path.open(encoding="utf-8-sig", newline="") as file:
                    table = _parse(self._path.name, list(csv.reader(file)), stamp)
                self._changed_at = None if self._table is None else now
                self._table, self._read_at = table, now
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise SignalUnavailable(f"cannot read {self._path}: {error}") from error
        return self._table


def _parse(name: str, rows: list[list[str]], stamp: tuple[int, int]) -> _Table:
    header = [cell.strip() for cell in rows[0]] if rows else []
    missing = [column for column in _COLUMNS if column not in header]
    if missing:
        raise SignalUnavailable(
            f"{name}, line 1: the columns {', '.join(_COLUMNS)} are needed (absolute g/kWh, no percentiles "
            f"or index values), but {', '.join(missing)} is not among {', '.join(header) or 'none'}"
        )
    time_column, value_column = (header.index(column) for column in _COLUMNS)
    points: dict[datetime, Decimal | None] = {}
    for line, row in enumerate(rows[1:], start=2):
        if not any(cell.strip() for cell in row):
            continue
        at, value = _point(name, line, row, time_column, value_column)
        if points and at <= next(reversed(points)):
            raise SignalUnavailable(f"{name}, line {line}: {row[time_column]} does not come after the line before")
        points[at] = value
    times = list(points)
    if not times:
        raise SignalUnavailable(f"{name} has no rows")
    step = min((b - a for a, b in itertools.pairwise(times)), default=timedelta(seconds=WINDOW_S))
    if step > timedelta(seconds=MAX_STEP_S):
        raise SignalUnavailable(f"{name}: its rows are {step.days} days apart; a step may be a day long at most")
    count = (times[-1] - times[0]) // step + 1
    if count > _MOST_STEPS:
        raise SignalUnavailable(
            f"{name}: from {iso(times[0])} to {iso(times[-1])} there are {count:,} steps of {step}; is a time wrong?"
        )
    values: list[Decimal | None] = [None] * count
    for at, value in points.items():
        place, rest = divmod(at - times[0], step)
        if rest or step % timedelta(seconds=WINDOW_S):
            raise SignalUnavailable(f"{name}: its times are not evenly spaced by whole windows of 5 minutes")
        values[place] = value
    return _Table(stamp, times[0], step, values)


def _point(
    name: str, line: int, row: list[str], time_column: int, value_column: int
) -> tuple[datetime, Decimal | None]:
    where = f"{name}, line {line}"
    try:
        text = row[value_column].strip()
        at = parse_iso(row[time_column].strip())
    except (IndexError, ValueError, OverflowError) as error:
        raise SignalUnavailable(f"{where}: not a time with a zone and a number: {shown(','.join(row))}") from error
    if at.year >= MAXYEAR:
        raise SignalUnavailable(f"{where}: {row[time_column]} is too far ahead")
    if window_at(window_index(at)) != at:
        raise SignalUnavailable(f"{where}: {row[time_column]} is not the start of a 5-minute window")
    try:
        return at, amount(text, _UNIT)
    except ValueError as error:
        raise SignalUnavailable(f"{where}: {shown(text)} {error}") from error
