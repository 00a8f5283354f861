"""Store rates from a CSV file: observations (``time_utc,value``) or forecasts as issued (``issued_at,time_utc,value``).

The file is read as a stream and stored in batches, so it may be of any length; importing it again stores nothing new.
What was imported carries the name of its source and never takes the place of another source's values.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from itertools import chain, pairwise
from typing import TypeVar

from carbonq.errors import InvalidRequest, SignalUnavailable
from carbonq.grid.readings import Unit, amount, unit_of
from carbonq.grid.replies import shown
from carbonq.model import Signal
from carbonq.signals import Forecast, Observation
from carbonq.store import forecasts
from carbonq.store.database import Database
from carbonq.units import LEDGER_CONTEXT, MAX_STEP_S, WINDOW, WINDOW_S, iso, parse_iso, window_of

T = TypeVar("T")

#: Observations, and issues of a forecast, stored in one transaction.
BATCH_ROWS = 2_000
BATCH_ISSUES = 100

#: Steps of a forecast at most: a year of windows.
_MOST_STEPS = 105_408


@dataclass(frozen=True, slots=True)
class Label:
    """What the file's values are: where, of which book, from whom, in what unit."""

    zone: str
    signal: Signal
    source: str
    unit: str
    gas: str | None = None
    is_estimated: bool = False
    may_settle: bool = True


@dataclass(slots=True)
class Imported:
    """What an import came to; ``missing`` are lines without a value."""

    lines: int = 0
    missing: int = 0
    observations: int = 0
    forecasts: int = 0


@dataclass(frozen=True, slots=True)
class _Line:
    number: int
    issued_at: datetime | None
    at: datetime
    raw: Decimal | None


def import_rates(
    db: Database,
    text: Iterable[str],
    label: Label,
    *,
    now: datetime,
    report: Callable[[int], None] = lambda _lines: None,
) -> Imported:
    """Store the rates of a CSV text and say how many were new. ``report`` sees the lines read so far.

    Raises InvalidRequest naming the line; what stood before it is stored, and importing the mended file goes on there.
    """
    try:
        unit = unit_of(label.unit, "--unit")
    except SignalUnavailable as error:
        raise InvalidRequest(error.message, param="unit") from error
    done = Imported()
    lines = _lines(_rows(text), unit)
    first = next(lines, None)
    if first is None:
        raise InvalidRequest("the file has no rows")
    make = _Maker(label, unit, now)
    every = _chained(first, lines, done, report)
    if first.issued_at is None:
        for rows in _batches(every, BATCH_ROWS):
            found = make.observations(rows)
            with db.write() as tx:
                done.observations += forecasts.add_observations(tx, found)
    else:
        for issues in _batches(map(make.forecast, _issues(every)), BATCH_ISSUES):
            with db.write() as tx:
                done.forecasts += sum(forecasts.add_forecast(tx, one) for one in issues)
    report(done.lines)
    return done


def _chained(first: _Line, rest: Iterable[_Line], done: Imported, report: Callable[[int], None]) -> Iterator[_Line]:
    for line in chain((first,), rest):
        done.lines += 1
        done.missing += line.raw is None
        if done.lines % BATCH_ROWS == 0:
            report(done.lines)
        yield line


def _lines(rows: Iterator[list[str]], unit: Unit) -> Iterator[_Line]:
    header = [cell.strip().removeprefix("\ufeff") for cell in next(rows, [])]
    missing = [name for name in ("time_utc", "value") if name not in header]
    if missing:
        raise InvalidRequest(
            f"the columns time_utc and value are needed (and issued_at for forecasts), but {', '.join(missing)} is not "
            f"among {', '.join(header) or 'none'}",
            line=1,
        )
    time_place, value_place = header.index("time_utc"), header.index("value")
    issue_place = header.index("issued_at") if "issued_at" in header else None
    for number, row in enumerate(rows, start=2):
        if not any(cell.strip() for cell in row):
            continue
        if len(row) != len(header):
            raise InvalidRequest(f"{len(row)} cells, but the header has {len(header)}", line=number)
        issued_at = None if issue_place is None else _time(row[issue_place], "issued_at", number)
        at = _time(row[time_place], "time_utc", number)
        if window_of(at) != at:
            raise InvalidRequest(f"time_utc {row[time_place]} is not the start of a 5-minute window", line=number)
        yield _Line(number, issued_at, at, _value(row[value_place], unit, number))


def _rows(text: Iterable[str]) -> Iterator[list[str]]:
    try:
        yield from csv.reader(text)
    except csv.Error as error:
        raise InvalidRequest(f"no CSV: {error}") from error
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"the file is no UTF-8 text: {error}") from error


def _time(text: str, column: str, line: int) -> datetime:
    try:
        return parse_iso(text.strip())
    except (ValueError, OverflowError) as error:
        raise InvalidRequest(
            f"{column} {text!r} is no time with a zone, such as 2026-05-01T10:05Z", line=line
        ) from error


def _value(text: str, unit: Unit, line: int) -> Decimal | None:
    try:
        return amount(text, unit)
    except ValueError as error:
        raise InvalidRequest(f"value {shown(text)} {error}", line=line) from error


def _issues(lines: Iterable[_Line]) -> Iterator[list[_Line]]:
    """Cut lines into issues: neighbours with the same time of issue."""
    issue: list[_Line] = []
    for line in lines:
        if issue and line.issued_at != issue[0].issued_at:
            assert line.issued_at is not None and issue[0].issued_at is not None
            if line.issued_at < issue[0].issued_at:
                raise InvalidRequest("issued_at goes back; sort the file by issued_at, then time_utc", line=line.number)
            yield issue
            issue = []
        issue.append(line)
        if len(issue) > _MOST_STEPS:
            raise InvalidRequest(f"an issue has more than {_MOST_STEPS:,} steps", line=line.number)
    if issue:
        yield issue


class _Maker:
    """Makes values of lines; steps are whole numbers of windows, all alike."""

    def __init__(self, label: Label, unit: Unit, now: datetime) -> None:
        self._label = label
        self._unit = unit
        self._now = now
        self._step: timedelta | None = None
        self._last: _Line | None = None

    def observations(self, lines: Sequence[_Line]) -> list[Observation]:
        """Make observations of lines; the step is the least distance of the first batch's times."""
        before = [self._last] if self._last is not None else []
        for one, following in pairwise([*before, *lines]):
            if following.at <= one.at:
                raise InvalidRequest("time_utc does not come after the line before", line=following.number)
        if self._step is None:
            self._step = _step(lines)
        for line in lines:
            if (line.at - lines[0].at) % self._step or (before and (line.at - before[0].at) % self._step):
                text = f"time_utc is no multiple of {self._step.total_seconds():g} s from those before"
                raise InvalidRequest(text, line=line.number)
            if line.raw is not None and line.at + self._step > self._now:
                text = f"its step is not over before {iso(self._now)}; what is foretold has a column issued_at"
                raise InvalidRequest(text, line=line.number)
        self._last = lines[-1]
        label = self._label
        return [
            Observation(
                zone=label.zone,
                signal=label.signal,
                source=label.source,
                model=None,
                gas=self._gas,
                method=None,
                window_at=line.at,
                step_s=int(self._step.total_seconds()),
                retrieved_at=self._now,
                g_per_kwh=LEDGER_CONTEXT.multiply(line.raw, self._unit.g_per_kwh),
                raw=line.raw,
                raw_unit=self._unit.name,
                is_estimated=label.is_estimated,
                may_settle=label.may_settle,
            )
            for line in lines
            if line.raw is not None
        ]

    def forecast(self, lines: Sequence[_Line]) -> Forecast:
        """Make a forecast of the lines of one issue."""
        for one, following in pairwise(lines):
            if following.at <= one.at:
                raise InvalidRequest("time_utc does not come after the line before", line=following.number)
        # An issue of one line says nothing of its step: it is taken to be that of the issue before.
        step = _step(lines) if len(lines) > 1 else self._step or WINDOW
        self._step = step
        count = (lines[-1].at - lines[0].at) // step + 1
        if count > _MOST_STEPS:
            raise InvalidRequest(f"an issue covers more than {_MOST_STEPS:,} steps", line=lines[-1].number)
        values: list[Decimal | None] = [None] * count
        for line in lines:
            place, rest = divmod(line.at - lines[0].at, step)
            if rest:
                raise InvalidRequest(
                    f"time_utc is no multiple of {step.total_seconds():g} s from the issue's first", line=line.number
                )
            if line.raw is not None:
                values[place] = LEDGER_CONTEXT.multiply(line.raw, self._unit.g_per_kwh)
        issued_at = lines[0].issued_at
        assert issued_at is not None
        if issued_at > self._now:
            raise InvalidRequest(f"issued_at is later than now, {iso(self._now)}", line=lines[0].number)
        label = self._label
        return Forecast(
            zone=label.zone,
            signal=label.signal,
            source=label.source,
            model=None,
            gas=self._gas,
            method=None,
            issued_at=issued_at,
            retrieved_at=self._now,
            start_at=lines[0].at,
            step_s=int(step.total_seconds()),
            values=values,
            raw_unit=self._unit.name,
            raw_per_g_per_kwh=self._unit.raw_per_g_per_kwh,
            is_estimated=label.is_estimated,
            may_settle=label.may_settle,
        )

    @property
    def _gas(self) -> str:
        return self._label.gas or self._unit.gas or "co2"


def _step(lines: Sequence[_Line]) -> timedelta:
    step = min((following.at - one.at for one, following in pairwise(lines)), default=timedelta(seconds=WINDOW_S))
    if step > timedelta(seconds=MAX_STEP_S):
        raise InvalidRequest(f"the lines are {step.days} days apart; a step may be a day at most", line=lines[1].number)
    return step


def _batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    batch: list[T] = []
    for item in items:
        batch.append(item)
        if len(batch) >= size:
            yield batch
            batch = []
    if batch:
        yield batch
