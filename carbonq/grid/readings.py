"""What every source does with what it read: units, numbers, times, and rows into forecasts and observations. Pure.

Built for the parsers in this folder; they all say ``where`` they read (a source and zone), which begins each message:

    unit = unit_of(meta["units"], where)                                  # closed table, exact factors
    readings = [Reading(time_of(row["point_time"], where, i, "point_time"),
                        number(row["value"], where, i, "value")) for i, row in enumerate(rows)]
    forecast_of(readings, origin, unit, where=where, step_s=300, issued_at=..., retrieved_at=now)
    observations_of(readings, origin, unit, where=where, step_s=300, start=start, end=end, now=now)

Everything wrong is one SignalUnavailable that names field and row. The rules:

* A missing value (null, empty text) stays missing: None in a forecast, no observation. 0 is real. Negative, infinite,
  not-a-number, boolean and absurd values (over 10,000 g/kWh) are refused, never clipped.
* Rows may come in any order. Rows of one time that agree are one row. Of rows that differ, the one updated last counts
  where the provider says when; otherwise the time is in dispute, and its value is missing (and logged).
* Values are converted once, to gCO2e/kWh, exactly. A value covers ``[at, at + step_s)``: hourly values cover their
  windows; nothing is interpolated.
"""

from __future__ import annotations

import logging
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import cast

from carbonq.errors import ConfigError, SignalUnavailable
from carbonq.grid.replies import Json, shown
from carbonq.model import Signal
from carbonq.signals import Forecast, NoteLevel, Observation, SourceNote
from carbonq.units import LEDGER_CONTEXT, MAX_STEP_S, WINDOW_S, iso, parse_iso, window_of

logger = logging.getLogger(__name__)

#: No grid emits more; a larger value is one in another unit.
MAX_G_PER_KWH = 10_000
#: The longest forecast that is taken; stamps further apart are an error of the provider.
MAX_FORECAST = timedelta(days=370)
#: Fewer values say nothing about their scale.
_FEWEST_TO_JUDGE = 12
_MAX_EXPONENT = 30


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit of intensity: its canonical name, what 1 of it is in g/kWh (exact), and the gas it names, if any."""

    name: str
    g_per_kwh: Decimal
    gas: str | None

    @property
    def raw_per_g_per_kwh(self) -> Decimal:
        """How many of this unit make 1 g/kWh, to 28 digits (``Forecast.raw_per_g_per_kwh``)."""
        return (Decimal(1) / self.g_per_kwh).normalize()


_MASSES_G = {
    "g": (Decimal(1), ("g", "gram", "grams")),
    "kg": (Decimal(1000), ("kg", "kilogram", "kilograms")),
    "t": (Decimal(1_000_000), ("t", "tonne", "tonnes", "metricton", "metrictons")),
    "lb": (Decimal("453.59237"), ("lb", "lbs", "pound", "pounds")),
}
_ENERGIES_KWH = {"kWh": Decimal(1), "MWh": Decimal(1000), "GWh": Decimal(1_000_000)}
_GASES = {
    "": None,
    "co2": "co2",
    **dict.fromkeys(("co2e", "co2eq", "co2-e", "co2-eq", "co2equivalent", "co2equivalents"), "co2e"),
}


def _table() -> dict[str, Unit]:
    table: dict[str, Unit] = {}
    for mass, (mass_g, spellings) in _MASSES_G.items():
        for energy, energy_kwh in _ENERGIES_KWH.items():
            for suffix, gas in _GASES.items():
                unit = Unit(f"{mass}/{energy}", mass_g / energy_kwh, gas)
                low = energy.lower()
                for spelling in spellings:
                    head = spelling + suffix
                    table |= dict.fromkeys((f"{head}/{low}", f"{head}per{low}", f"{head}{low}-1"), unit)
    return table


#: Every spelling that is understood (see ``_plain``); nothing else is.
UNITS: Mapping[str, Unit] = _table()

_NO_INTENSITY = {
    **dict.fromkeys(
        ("percentile", "percentiles", "percent", "%", "pct", "index", "rank", "score", "relative", "ratio"),
        "a relative figure, which cannot be compared between zones or multiplied by energy; ask for absolute values",
    ),
    **dict.fromkeys(
        ("usd/mwh", "$/mwh", "usdpermwh", "dollarspermwh", "healthdamage", "healthdamages"),
        "damage in money, not an emission rate; ask for co2_moer",
    ),
    **dict.fromkeys(
        ("ton/mwh", "tons/mwh", "tonco2/mwh", "tonsco2/mwh", "tonpermwh", "tonspermwh", "tonsco2permwh"),
        "ambiguous: 907 kg or 1,000 kg; write t/MWh for tonnes",
    ),
}


def unit_of(text: Json, where: str) -> Unit:
    """Return the unit that a provider or a setting names, in any known spelling.

    Case, spaces and underscores do not count. Raises SignalUnavailable naming the unit, and what is known.
    """
    known = ", ".join(f"{mass}/{energy}" for mass in _MASSES_G for energy in _ENERGIES_KWH)
    if not isinstance(text, str) or not text.strip():
        raise SignalUnavailable(f"{where} names no unit; known are {known}, also with CO2 or CO2eq")
    spelling = _plain(text)
    if spelling in UNITS:
        return UNITS[spelling]
    if spelling in _NO_INTENSITY:
        raise SignalUnavailable(f"{where} is in {shown(text)}: {_NO_INTENSITY[spelling]}")
    raise SignalUnavailable(
        f"{where} is in {shown(text)!r}, which is unknown; known are {known}, also with CO2 or CO2eq"
    )


def _plain(text: str) -> str:
    folded = unicodedata.normalize("NFKC", text).casefold().replace("−", "-")
    return "".join(one for one in folded if not (one.isspace() or one in "_·()^"))


def number(value: Json, where: str, row: int, field: str) -> Decimal | None:
    """Return a figure of a row (counted from 0), as number or text; None for null or empty text.

    Raises SignalUnavailable for what is no figure: booleans, other text, NaN, infinities, negatives.
    """
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    place = f"{where}: {field} of row {row + 1}"
    # A bool is an int to Python, but its text is no number to Decimal.
    if not isinstance(value, int | float | str | Decimal):
        raise SignalUnavailable(f"{place} is {shown(repr(value))}, not a number")
    try:
        figure = Decimal(value.strip()) if isinstance(value, str) else Decimal(str(value))
    except InvalidOperation as error:
        raise SignalUnavailable(f"{place} is {shown(repr(value))}, not a number") from error
    if not figure.is_finite():
        raise SignalUnavailable(f"{place} is {figure}, not a number; a missing value is null")
    if figure < 0:
        raise SignalUnavailable(f"{place} is {shown(str(figure))}; an intensity is never negative, a missing one null")
    if figure and abs(figure.adjusted()) > _MAX_EXPONENT:
        raise SignalUnavailable(f"{place} is {shown(str(figure))}, no intensity")
    return abs(figure)  # -0 is 0


def amount(text: str, unit: Unit) -> Decimal | None:
    """Return the figure in a cell of a file, in its own unit; None for an empty cell.

    Raises ValueError with what is wrong, to be put after the text: no number, no intensity, too large.
    """
    if not text.strip():
        return None
    try:
        figure = Decimal(text.strip())
    except InvalidOperation as error:
        raise ValueError("is no number; leave the cell empty if it is missing") from error
    if not figure.is_finite() or figure < 0:
        raise ValueError("is no intensity; leave the cell empty if it is missing")
    if figure and (figure.adjusted() > _MAX_EXPONENT or figure * unit.g_per_kwh > MAX_G_PER_KWH):
        raise ValueError(f"{unit.name} is more than {MAX_G_PER_KWH:,} g/kWh, which no grid emits; is the unit right?")
    if figure and figure.adjusted() < -_MAX_EXPONENT:
        raise ValueError(f"is no intensity: it is below 1e-{_MAX_EXPONENT}")
    return abs(figure)  # -0 is 0


def time_of(value: Json, where: str, row: int, field: str) -> datetime:
    """Return a time of a row (counted from 0) in UTC: ISO 8601 with Z or an offset; seconds may be left out.

    Raises SignalUnavailable for anything else, a time without a zone included.
    """
    if not isinstance(value, str):
        raise SignalUnavailable(f"{where}: {field} of row {row + 1} is {shown(repr(value))}, not a time")
    try:
        return parse_iso(value.strip())
    except (ValueError, OverflowError) as error:
        text = shown(str(error))
        raise SignalUnavailable(f"{where}: {field} of row {row + 1} is no time with a zone: {text}") from error


def object_of(value: Json, where: str) -> Mapping[str, Json]:
    """Return a JSON object as such. Raises SignalUnavailable."""
    if not isinstance(value, dict):
        raise SignalUnavailable(f"{where} is {_kind(value)}, not an object; has the API changed?")
    return cast("Mapping[str, Json]", value)


def list_of(value: Json, where: str) -> Sequence[Json]:
    """Return a JSON array as such. Raises SignalUnavailable."""
    if not isinstance(value, list):
        raise SignalUnavailable(f"{where} is {_kind(value)}, not a list; has the API changed?")
    return cast("Sequence[Json]", value)


def _kind(value: Json) -> str:
    if value is None:
        return "missing"
    return "an object" if isinstance(value, dict) else "a list" if isinstance(value, list) else shown(repr(value))


def refuse_index(url: str) -> None:
    """Refuse an address that gives percentiles whatever unit it is said to have. Raises ConfigError."""
    if "signal-index" in url or "/forecast/index" in url:
        raise ConfigError(
            f"{url} is WattTime's signal index, a percentile of the coming day: it cannot be compared between zones or "
            "multiplied by energy. Use the source watttime, which reads absolute rates (co2_moer)"
        )


@dataclass(frozen=True, slots=True)
class Reading:
    """One row as read: its window's start, the figure in the provider's unit, and what it says about the figure."""

    at: datetime
    raw: Decimal | None
    is_estimated: bool = False
    updated_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Origin:
    """Where readings come from: the fields that all values of an answer share."""

    zone: str
    signal: Signal
    source: str
    model: str | None
    gas: str
    method: str | None


def settled(readings: Iterable[Reading], where: str) -> list[Reading]:
    """Return one reading for each time, oldest first; see the module's text for rows of one time."""
    by_time: dict[datetime, Reading] = {}
    disputed: dict[datetime, tuple[Decimal | None, Decimal | None]] = {}
    for one in readings:
        other = by_time.setdefault(one.at, one)
        if one.updated_at is not None and other.updated_at is not None and one.updated_at != other.updated_at:
            by_time[one.at] = max(one, other, key=_updated)
        elif other.raw != one.raw:
            disputed[one.at] = (other.raw, one.raw)
        elif one.is_estimated:
            by_time[one.at] = one
    for at, (first, second) in disputed.items():
        logger.warning("%s gives both %s and %s for %s; its value counts as missing", where, first, second, iso(at))
        by_time[at] = Reading(at, None)
    return [by_time[at] for at in sorted(by_time)]


def _updated(one: Reading) -> datetime:
    assert one.updated_at is not None
    return one.updated_at


def forecast_of(
    readings: Iterable[Reading],
    origin: Origin,
    unit: Unit,
    *,
    where: str,
    step_s: int,
    issued_at: datetime,
    retrieved_at: datetime,
    is_estimated: bool = False,
    may_settle: bool = True,
) -> Forecast:
    """Return rows as a forecast that begins with the first; times without a row are None.

    ``is_estimated`` marks the whole forecast, as does any row. Raises SignalUnavailable: no value at all, a time that
    is no window's start or not a whole number of steps from the first, a step that is no whole number of windows.
    """
    rows = settled(readings, where)
    _check_step(step_s, where)
    if all(one.raw is None for one in rows):
        raise SignalUnavailable(f"{where} has a forecast of {len(rows)} rows without a value")
    if rows[-1].at - rows[0].at > MAX_FORECAST:
        raise SignalUnavailable(f"{where}: its forecast runs from {iso(rows[0].at)} to {iso(rows[-1].at)}")
    step = timedelta(seconds=step_s)
    values: list[Decimal | None] = [None] * ((rows[-1].at - rows[0].at) // step + 1)
    for one in rows:
        place, rest = divmod(one.at - rows[0].at, step)
        if rest:
            raise SignalUnavailable(f"{where}: {iso(one.at)} is no multiple of {step_s} s from {iso(rows[0].at)}")
        values[place] = None if one.raw is None else _grams(one, unit, where)
    return Forecast(
        zone=origin.zone,
        signal=origin.signal,
        source=origin.source,
        model=origin.model,
        gas=origin.gas,
        method=origin.method,
        issued_at=issued_at,
        retrieved_at=retrieved_at,
        start_at=rows[0].at,
        step_s=step_s,
        values=values,
        raw_unit=unit.name,
        raw_per_g_per_kwh=unit.raw_per_g_per_kwh,
        is_estimated=is_estimated or any(one.is_estimated for one in rows),
        may_settle=may_settle,
    )


def observations_of(
    readings: Iterable[Reading],
    origin: Origin,
    unit: Unit,
    *,
    where: str,
    step_s: int,
    start: datetime | None,
    end: datetime,
    now: datetime,
    may_settle: bool = True,
) -> list[Observation]:
    """Return rows that have a value, begin before ``end`` and by ``now``, and end after ``start``; oldest first.

    Without ``start`` they may lie however far back (revisions). Raises SignalUnavailable as ``forecast_of``, but no
    row at all is no error.
    """
    _check_step(step_s, where)
    step = timedelta(seconds=step_s)
    return [
        Observation(
            zone=origin.zone,
            signal=origin.signal,
            source=origin.source,
            model=origin.model,
            gas=origin.gas,
            method=origin.method,
            window_at=one.at,
            step_s=step_s,
            retrieved_at=now,
            g_per_kwh=_grams(one, unit, where),
            raw=one.raw,
            raw_unit=unit.name,
            is_estimated=one.is_estimated,
            may_settle=may_settle,
        )
        for one in settled(readings, where)
        if one.raw is not None and one.at < end and one.at <= now and (start is None or one.at + step > start)
    ]


def _check_step(step_s: int, where: str) -> None:
    if step_s <= 0 or step_s % WINDOW_S:
        raise SignalUnavailable(f"{where}: a step of {step_s} s is no whole number of windows of {WINDOW_S} s")
    if step_s > MAX_STEP_S:
        raise SignalUnavailable(f"{where}: a step of {step_s} s is longer than a day")


def _grams(one: Reading, unit: Unit, where: str) -> Decimal:
    assert one.raw is not None
    if window_of(one.at) != one.at:
        raise SignalUnavailable(f"{where}: {iso(one.at)} is not the start of a 5-minute window")
    g_per_kwh = LEDGER_CONTEXT.multiply(one.raw, unit.g_per_kwh)
    if g_per_kwh > MAX_G_PER_KWH:
        raise SignalUnavailable(
            f"{where}: {one.raw} {unit.name} at {iso(one.at)} is {g_per_kwh:.0f} g/kWh, more than any grid's "
            f"{MAX_G_PER_KWH:,}; is the unit right?"
        )
    return g_per_kwh


def scale_note(values: Sequence[Decimal | None]) -> SourceNote | None:
    """Return a warning when a series, said to be in g/kWh, lies wholly within 0 to 100 as an index would."""
    known = [value for value in values if value is not None]
    if len(known) < _FEWEST_TO_JUDGE or max(known) > 100 or max(known) == min(known):
        return None
    return SourceNote(
        NoteLevel.WARN,
        f"all {len(known)} values lie within 0 and 100 ({min(known):.1f} to {max(known):.1f} g/kWh): right for a very "
        "clean grid, but also what a percentile or index looks like; check the source's unit",
    )
