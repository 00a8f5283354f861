"""One factor for a whole year from a table: ``zone,year,value,unit,reference``, one row for each zone and year.

A factor says nothing of the hours within its year, so it is flat: every forecast has one value from end to end, also
across New Year, and nothing can be gained by moving work in time on it. Its values are estimates that never settle,
their method is ``annual`` and their model names the year and the reference, so that each entry shows what it rests on.
The factor in force is that of the newest year up to the present one; factors are published a year or two late.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from pathlib import Path

from carbonq.errors import SignalUnavailable
from carbonq.grid.readings import MAX_G_PER_KWH, Unit, number, unit_of
from carbonq.model import Signal
from carbonq.signals import Forecast, NoteLevel, Observation, SourceNote
from carbonq.units import LEDGER_CONTEXT

METHOD = "annual"

#: Hours that each forecast covers; it is issued anew every hour.
HOURS = 72

_COLUMNS = ("zone", "year", "value", "unit", "reference")

#: Published factors are a year or two late; an older one is worth a word.
_LATE_YEARS = 3


@dataclass(frozen=True, slots=True)
class _Factor:
    year: int
    raw: Decimal
    unit: Unit
    reference: str

    @property
    def g_per_kwh(self) -> Decimal:
        return LEDGER_CONTEXT.multiply(self.raw, self.unit.g_per_kwh)


class AnnualSource:
    """The factors of one zone; the table is read again when it changes."""

    def __init__(self, path: Path, zone: str, signal: Signal, *, area: str | None = None) -> None:
        """Prepare to read ``path``; nothing is opened yet. ``area`` is the zone as the table calls it."""
        self._path = path
        self._zone = zone
        self._signal = signal
        self._area = area or zone
        self._stamp: tuple[int, int] | None = None
        self._factors: dict[int, _Factor] = {}

    @property
    def name(self) -> str:
        """``annual:`` and the file's name."""
        return f"annual:{self._path.name}"

    @property
    def signal(self) -> Signal:
        """The book these factors feed."""
        return self._signal

    def forecast(self, zone: str, now: datetime) -> Forecast | None:
        """Return the factor in force at ``now``, as it is, for the coming days. Raises SignalUnavailable."""
        factor = self._in_force(zone, now)
        issued_at = now.replace(minute=0, second=0, microsecond=0)
        return Forecast(
            zone=zone,
            signal=self._signal,
            source=self.name,
            model=f"{factor.year}, {factor.reference}",
            gas=factor.unit.gas or "co2",
            method=METHOD,
            issued_at=issued_at,
            retrieved_at=now,
            start_at=issued_at,
            step_s=3600,
            values=[factor.g_per_kwh] * HOURS,
            raw_unit=factor.unit.name,
            raw_per_g_per_kwh=factor.unit.raw_per_g_per_kwh,
            is_estimated=True,
            may_settle=False,
        )

    def observations(self, zone: str, start: datetime, end: datetime, now: datetime) -> Sequence[Observation]:
        """Return nothing: nobody observed a factor."""
        return ()

    def revisions(self, zone: str, since: datetime, now: datetime) -> Sequence[Observation]:
        """Return nothing."""
        return ()

    def check(self, zone: str, now: datetime) -> Sequence[SourceNote]:
        """Say which factor is in force, and that nothing is shifted on it."""
        try:
            factor = self._in_force(zone, now)
        except SignalUnavailable as error:
            return [SourceNote(NoteLevel.FAIL, error.message)]
        text = f"{factor.raw} {factor.unit.name} of {factor.year} ({factor.reference})"
        notes = [SourceNote(NoteLevel.WARN, f"one factor for the year, {text}: no work is moved in time on it")]
        if now.year - factor.year >= _LATE_YEARS:
            notes.append(SourceNote(NoteLevel.WARN, f"the factor is of {factor.year}; is there a newer one?"))
        return notes

    def close(self) -> None:
        """Nothing to close."""

    def _in_force(self, zone: str, now: datetime) -> _Factor:
        if zone != self._zone:
            raise SignalUnavailable(f"this source gives the factors of {self._zone}, not of {zone}")
        try:
            status = self._path.stat()
            stamp = (status.st_mtime_ns, status.st_size)
            if stamp != self._stamp:
                with self._path.open(encoding="utf-8-sig", newline="") as file:
                    self._factors = _parse(self._path.name, list(csv.reader(file)), self._area)
                self._stamp = stamp
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise SignalUnavailable(f"cannot read {self._path}: {error}") from error
        years = [year for year in self._factors if year <= now.year]
        if not years:
            known = ", ".join(map(str, sorted(self._factors))) or "none"
            raise SignalUnavailable(
                f"{self._path.name} has no factor of {self._area} up to {now.year} (its years: {known})"
            )
        return self._factors[max(years)]


def _parse(name: str, rows: list[list[str]], area: str) -> dict[int, _Factor]:
    header = [cell.strip() for cell in rows[0]] if rows else []
    missing = [column for column in _COLUMNS if column not in header]
    if missing:
        raise SignalUnavailable(
            f"{name}, line 1: the columns {', '.join(_COLUMNS)} are needed, but {', '.join(missing)} is not among "
            f"{', '.join(header) or 'none'}"
        )
    places = [header.index(column) for column in _COLUMNS]
    factors: dict[int, _Factor] = {}
    for line, row in enumerate(rows[1:], start=2):
        if not any(cell.strip() for cell in row):
            continue
        where = f"{name}, line {line}"
        if len(row) <= max(places):
            raise SignalUnavailable(f"{where}: {len(row)} cells, but the header has {len(header)}")
        zone, year, value, unit, reference = (row[place].strip() for place in places)
        if zone != area:
            continue
        factor = _factor(where, year, value, unit, reference)
        if factor.year in factors:
            raise SignalUnavailable(f"{where}: {zone} has a factor of {factor.year} already")
        factors[factor.year] = factor
    return factors


def _factor(where: str, year: str, value: str, unit: str, reference: str) -> _Factor:
    if not (year.isascii() and year.isdigit() and len(year) == len("2023")):
        raise SignalUnavailable(f"{where}: year is {year!r}, not a year such as 2023")
    raw = number(value, where, 0, "value")
    if raw is None:
        raise SignalUnavailable(f"{where}: value is empty; leave the line out if there is none")
    if not reference:
        raise SignalUnavailable(f"{where}: reference is empty; an auditor needs to know where the figure comes from")
    factor = _Factor(int(year), raw, unit_of(unit, where), reference)
    if factor.g_per_kwh > MAX_G_PER_KWH:
        raise SignalUnavailable(f"{where}: {raw} {unit} is {factor.g_per_kwh:.0f} g/kWh; is the unit right?")
    return factor
