"""Read a provider's statement from CSV; units become ours here and nowhere else. Pure.

Columns that are known by name (case, spaces and punctuation do not count; ``Columns`` names others):

AWS     Data Exports, table CARBON_EMISSIONS, as CSV: https://docs.aws.amazon.com/cur/latest/userguide/carbon-emissions-columns.html
        (``usage_period_start``, ``region_code``, ``total_scope_2_lbm_emissions_value`` or, in exports from before there
        were scopes, ``total_lbm_emissions_value``, in MTCO2e as their ``_unit`` columns say). It states no kWh. The
        carbon footprint tool's own script interface was closed in favour of this export.
Google  BigQuery's Carbon Footprint table saved as CSV: https://cloud.google.com/carbon-footprint/docs/data-schema
        (``usage_month``, ``location.region``, ``carbon_footprint_kgCO2e.scope2.location_based``). It states no kWh.
Azure   https://learn.microsoft.com/azure/carbon-optimization/api-export-data documents kgCO2E (``latestMonthEmissions``
        by ``itemName``) but not whether they are location- or market-based, so nobody's name is taken for either:
        say which with ``Columns``.
generic ``month`` (or ``start`` and ``end``), ``region``, ``account``, ``service``, ``kwh`` (at the facility's meter,
        overhead included) or ``it_kwh``, ``pue``, ``g_per_kwh``, ``location_based_kgco2e``, ``market_based_kgco2e``
        (or ``_gco2e``, ``_tco2e``).
"""

from __future__ import annotations

import csv
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction

from carbonq.errors import InvalidRequest
from carbonq.statement.stated import EXACT, Stated, Statement
from carbonq.units import UJ_PER_KWH

#: Lines of a statement, and characters of one of them.
MAX_LINES, MAX_LINE_CHARS = 200_000, 20_000

_G, _KG, _T = Decimal(1), Decimal(1000), Decimal(1_000_000)

#: Grams for one of a unit that a column beside the figure may name.
_UNITS = {"gco2e": _G, "kgco2e": _KG, "tco2e": _T, "mtco2e": _T}  # AWS's M is metric

SCOPE_2 = "scope 2, location-based"
ALL_SCOPES = "all scopes that the provider counts, location-based"
UNSTATED = "location-based; the column does not say which scopes"


@dataclass(frozen=True, slots=True)
class _Known:
    """A column that is known by name: what it holds, the grams of its unit, and which scopes its figures cover."""

    name: str
    provider: str = "generic"
    unit_g: Decimal = _KG
    covers: str = UNSTATED


def _grams(kind: str) -> tuple[_Known, ...]:
    short = "lbm" if kind == "location" else "mbm"
    return (
        _Known(f"total_scope_2_{short}_emissions_value", "aws", _T, SCOPE_2),
        _Known(f"total_{short}_emissions_value", "aws", _T, ALL_SCOPES),
        _Known(f"carbon_footprint_kgco2e_scope2_{kind}_based", "google", covers=SCOPE_2),
        _Known(f"carbon_footprint_total_kgco2e_{kind}_based", "google", covers=ALL_SCOPES),
        _Known(f"{kind}_based_gco2e", unit_g=_G),
        _Known(f"{kind}_based_kgco2e"),
        _Known(f"{kind}_based_tco2e", unit_g=_T),
    )


#: Field -> columns that hold it, the best first.
_COLUMNS: Mapping[str, tuple[_Known, ...]] = {
    "month": (_Known("usage_month", "google"), _Known("month")),
    "start": (_Known("usage_period_start", "aws"), _Known("start")),
    "end": (_Known("usage_period_end", "aws"), _Known("end")),
    "region": (_Known("region_code", "aws"), _Known("location_region", "google"), _Known("region")),
    "account": (_Known("usage_account_id", "aws"), _Known("project_id", "google"), _Known("account")),
    "service": (_Known("product_code", "aws"), _Known("service_description", "google"), _Known("service")),
    "kwh": (_Known("kwh"), _Known("facility_kwh")),
    "it_kwh": (_Known("it_kwh"),),
    "pue": (_Known("pue"),),
    "g_per_kwh": (_Known("g_per_kwh"),),
    "location": _grams("location"),
    "market": _grams("market"),
}

#: What ``Columns`` may name for the figures in grams: the field and its unit.
_GRAM_FIELDS = {
    f"{kind}_{unit}": (kind, grams)
    for kind in ("location", "market")
    for unit, grams in (("g", _G), ("kg", _KG), ("t", _T))
}

#: Fields that may be named in ``Columns``.
FIELDS: tuple[str, ...] = (*(name for name in _COLUMNS if name not in {"location", "market"}), *_GRAM_FIELDS)

_NUMBER = re.compile(r"[+-]?\d{1,18}(\.\d{0,30})?([eE][+-]?\d{1,2})?\Z", re.ASCII)
_MONTH = re.compile(r"(\d{4}-(?:0[1-9]|1[0-2]))(?:-(\d\d)(.*))?\Z", re.ASCII)


@dataclass(frozen=True, slots=True)
class Columns:
    """How a statement names things: ``names`` its column for some of ``FIELDS``, ``regions`` our name for its regions.

    A key of ``regions`` is the provider's name for a region, or ``aws:`` or ``google:`` and that name. A region that is
    not named there is taken for ours of the same name. ``accounts`` and ``services``, where given, are all that counts.
    """

    names: Mapping[str, str] = field(default_factory=dict[str, str])
    regions: Mapping[str, str] = field(default_factory=dict[str, str])
    accounts: Collection[str] = ()
    services: Collection[str] = ()

    def region_of(self, provider: str, name: str) -> str:
        """Return our name for a region of the provider's."""
        return self.regions.get(f"{provider}:{name}", self.regions.get(name, name))


class _Sum:
    """Sums of a region's lines; a column that a line leaves empty is unknown for the region."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.lines = 0
        self.unknown: set[str] = set()
        self.totals: dict[str, Decimal] = {}
        self.weighted: dict[str, Decimal] = {}  # by energy: PUE and grams per kWh are no sums

    def add(self, name: str, values: Mapping[str, Decimal | None]) -> None:
        self.names.add(name)
        self.lines += 1
        energy = values.get("kwh") if values.get("kwh") is not None else values.get("it_kwh")
        for column, value in values.items():
            is_mean = column in {"pue", "g_per_kwh"}
            if value is None or (is_mean and energy is None):
                self.unknown.add(column)
            elif is_mean and energy is not None:
                part = EXACT.multiply(value, energy)
                self.weighted[column] = EXACT.add(self.weighted.get(column, Decimal(0)), part)
            else:
                self.totals[column] = EXACT.add(self.totals.get(column, Decimal(0)), value)

    def stated(self, region: str) -> Stated:
        known = {name: value for name, value in self.totals.items() if name not in self.unknown}
        energies = {name: round(Fraction(known[name]) * UJ_PER_KWH) for name in ("kwh", "it_kwh") if name in known}
        weight = known.get("kwh", known.get("it_kwh"))
        pue, g_per_kwh = (
            Fraction(self.weighted[name]) / Fraction(weight)
            if name in self.weighted and name not in self.unknown and weight
            else None
            for name in ("pue", "g_per_kwh")
        )
        facility, energy = energies.get("kwh"), energies.get("it_kwh")
        if pue is not None and facility is None and energy is not None:
            facility = round(energy * pue)
        if pue is not None and energy is None and facility is not None:
            energy = round(facility / pue)
        if pue is None and energy and facility is not None:
            pue = Fraction(facility, energy)
        grams = (known.get("location"), known.get("market"))
        return Stated(region, tuple(sorted(self.names)), self.lines, energy, facility, pue, g_per_kwh, *grams)


def read(lines: Iterable[str], month: str, columns: Columns | None = None) -> Statement:
    """Read the month (``2026-11``) of a statement from CSV lines with a header; commas or semicolons between cells.

    Memory follows the number of regions. Raises InvalidRequest naming line and field for what cannot be read, for a
    missing column, a period over more than a month, more than ``MAX_LINES`` lines, and for a statement without a line
    of the month.
    """
    columns = columns or Columns()
    if (found := _MONTH.match(month)) is None or found[2]:
        raise InvalidRequest(f"month is {month!r}; write it as 2026-11", param="month")
    rows = _rows(lines)
    header = next(rows, (1, []))[1]
    where = _Where(header, columns)
    sums: dict[str, _Sum] = {}
    counted = left_out = 0
    for number, row in rows:
        if len(row) != len(header):
            raise _wrong(number, f"{len(row)} fields instead of {len(header)}")
        cells = where.cells(row)
        is_other = any(
            wanted and cells.get(name, "") not in wanted
            for name, wanted in (("account", columns.accounts), ("service", columns.services))
        )
        if is_other or _month_of(cells, number) != month:
            left_out += 1
            continue
        counted += 1
        name = cells.get("region", "")
        region = columns.region_of(where.provider, name)
        sums.setdefault(region, _Sum()).add(name, where.values(row, cells, number))
    if not counted:
        raise InvalidRequest(f"the statement has no line of {month} that counts ({left_out} others)", param="statement")
    return Statement(
        where.provider,
        month,
        where.covers,
        counted,
        left_out,
        tuple(one.stated(region) for region, one in sorted(sums.items())),
    )


def _wrong(line: int, what: str, name: str | None = None) -> InvalidRequest:
    return InvalidRequest(f"line {line} of the statement: {what}", param=name or "statement", line=line)


def _rows(lines: Iterable[str]) -> Iterator[tuple[int, list[str]]]:
    """Give the number and cells of each line that is not blank."""

    def bounded() -> Iterator[str]:
        for number, line in enumerate(lines, 1):
            if number > MAX_LINES or len(line) > MAX_LINE_CHARS:
                raise _wrong(number, f"a statement has at most {MAX_LINES:,} lines of {MAX_LINE_CHARS:,} characters")
            yield line.removeprefix("\ufeff") if number == 1 else line

    text = iter(bounded())
    first = next(text, "")
    separator = ";" if first.count(";") > first.count(",") else ","
    reader = csv.reader(_again(first, text), delimiter=separator, strict=True)
    try:
        for row in reader:
            if any(cell.strip() for cell in row):
                yield reader.line_num, row
    except csv.Error as error:
        raise _wrong(reader.line_num, str(error)) from error


def _again(first: str, rest: Iterator[str]) -> Iterator[str]:
    yield first
    yield from rest


class _Where:
    """Which column holds which field."""

    def __init__(self, header: Sequence[str], columns: Columns) -> None:
        plain = [_plain(name) for name in header]
        places = {name: place for place, name in reversed(list(enumerate(plain)))}
        self.provider = "generic"
        self._known: dict[str, tuple[int, _Known]] = {}
        for name, known in _COLUMNS.items():
            for one in known:
                if one.name in places and name not in self._known:
                    self._known[name] = (places[one.name], one)
                    self.provider = one.provider if self.provider == "generic" else self.provider
        for name, given in columns.names.items():
            if name not in FIELDS:
                raise InvalidRequest(f"there is no field {name!r}; fields are {', '.join(FIELDS)}", param="columns")
            if _plain(given) not in places:
                raise InvalidRequest(f"the statement has no column {given!r} for {name}", param="columns")
            kind, unit = _GRAM_FIELDS.get(name, (name, _KG))
            self._known[kind] = (places[_plain(given)], _Known(_plain(given), self.provider, unit))
        self._units = {
            name: places[one.name.replace("_value", "_unit")]
            for name, (_, one) in self._known.items()
            if one.name.endswith("_value") and one.name.replace("_value", "_unit") in places
        }
        unread = sorted({name for name in header if places[_plain(name)] not in {at for at, _ in self._known.values()}})
        missing = [] if {"month", "start"} & set(self._known) else ["month (or start)"]
        missing += [] if {"location", "market"} & set(self._known) else ["location_based_kgco2e or market_based_kgco2e"]
        if missing:
            raise InvalidRequest(
                f"the statement has no column for {' nor for '.join(missing)}; its other columns are "
                f"{', '.join(map(repr, unread[:40])) or 'none'}: name the right one",
                param="columns",
            )

    @property
    def covers(self) -> str | None:
        """Which scopes the location-based figures hold."""
        return self._known["location"][1].covers if "location" in self._known else None

    def cells(self, row: Sequence[str]) -> dict[str, str]:
        return {name: row[place].strip() for name, (place, _) in self._known.items()}

    def values(self, row: Sequence[str], cells: Mapping[str, str], line: int) -> dict[str, Decimal | None]:
        """Return the figures of a line, grams in grams. Raises InvalidRequest for one that is none."""
        found: dict[str, Decimal | None] = {}
        for name in ("kwh", "it_kwh", "pue", "g_per_kwh", "location", "market"):
            if name not in cells:
                continue
            text, column = cells[name], self._known[name][1]
            if text and _NUMBER.match(text) is None:
                raise _wrong(line, f"{column.name} is {text!r}, not a number like 1234.5", column.name)
            value = Decimal(text) if text else None
            if value is not None and name in {"location", "market"}:
                value = EXACT.multiply(value, self._unit(name, row, line))
            elif value is not None and value < (1 if name == "pue" else 0):
                raise _wrong(line, f"{column.name} is {text}, below {1 if name == 'pue' else 0}", column.name)
            found[name] = value
        return found

    def _unit(self, name: str, row: Sequence[str], line: int) -> Decimal:
        column = self._known[name][1]
        if name not in self._units:
            return column.unit_g
        text = row[self._units[name]].strip()
        unit = _UNITS.get(text.lower())
        if unit is None:
            raise _wrong(line, f"the unit of {column.name} is {text!r}, none of {', '.join(_UNITS)}", column.name)
        return unit


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")


def _month_of(cells: Mapping[str, str], line: int) -> str:
    start = cells.get("month") or cells.get("start", "")
    found = _MONTH.match(start)
    if found is None:
        raise _wrong(line, f"{start!r} is no month or date like 2026-11 or 2026-11-01", "month")
    end = "" if cells.get("month") else cells.get("end", "")
    last = _MONTH.match(end)
    if end and last is None:
        raise _wrong(line, f"{end!r} is no date like 2026-11-30", "end")
    if last is not None and last[1] != found[1] and not _is_next(found[1], last):
        raise _wrong(line, f"{start} to {end} is more than a month", "end")
    return found[1]


def _is_next(month: str, end: re.Match[str]) -> bool:
    """Say whether a time is the first instant after a month."""
    year, number = map(int, month.split("-"))
    following = f"{year + number // 12:04d}-{number % 12 + 1:02d}"
    return end[1] == following and end[2] in {None, "01"} and not re.search("[1-9]", end[3] or "")


def read_region_map(given: Iterable[str]) -> dict[str, str]:
    """Read ``aws:eu-west-3=fr`` (or ``eu-west-3=fr``) for ``Columns.regions``. Raises InvalidRequest."""
    found: dict[str, str] = {}
    for text in given:
        name, _, region = text.rpartition("=")
        if not name or not region:
            raise InvalidRequest(f"{text!r} maps no region; write it as aws:eu-west-3=fr", param="region_map")
        found[name] = region
    return found
