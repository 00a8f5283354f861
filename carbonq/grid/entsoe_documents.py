"""Documents of the ENTSO-E Transparency Platform: XML into series of megawatts. Pure.

A document holds series (one for each production type, or one of load) of periods of points, numbered from the period's
start in steps of its resolution, all in UTC; days when clocks change are simply longer or shorter. Under curve type A03
a point that is left out repeats the one before; under A01 it is missing. XML is parsed without entities or DTD.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Protocol

from defusedxml.common import DefusedXmlException
from defusedxml.ElementTree import ParseError, fromstring

from carbonq.errors import SignalUnavailable
from carbonq.grid.replies import shown
from carbonq.units import parse_iso

#: The kind of a series of load, which has no production type.
LOAD = "load"

_RESOLUTIONS = {
    "PT5M": timedelta(minutes=5),
    "PT15M": timedelta(minutes=15),
    "PT30M": timedelta(minutes=30),
    "PT60M": timedelta(hours=1),
    "PT1H": timedelta(hours=1),
}
_CURVES = {"A01": False, "A03": True, None: False}
_MAX_PERIOD = timedelta(days=370)
_MAX_DIGITS = 15
#: What a platform without data says, as an answer of its own or in an error's body.
NO_DATA = re.compile(r"no matching data found", re.IGNORECASE)


class NoData(SignalUnavailable):
    """The platform has nothing for the span; the message holds its reason."""


@dataclass(frozen=True, slots=True)
class Series:
    """Megawatts of one production type (or of load): the mean over ``step`` from each time on; None is missing."""

    kind: str
    is_consumption: bool
    step: timedelta
    megawatts: Mapping[datetime, Decimal | None]


class _Element(Protocol):
    tag: str
    text: str | None

    def __iter__(self) -> Iterator[_Element]: ...


def parse(text: str, area: str, where: str) -> list[Series]:
    """Return the series of a document, one for each period.

    Raises NoData with the platform's reason; SignalUnavailable for what is no such document or of another area.
    """
    try:
        root: _Element = fromstring(text, forbid_dtd=True)
    except ParseError as error:
        raise SignalUnavailable(f"{where} answered no XML: {shown(str(error))}") from error
    except DefusedXmlException as error:
        raise SignalUnavailable(f"{where} answered XML with a DTD or entities, which are not read") from error
    name = _name(root)
    if name == "Acknowledgement_MarketDocument":
        reasons = [_text(one, "text") or _text(one, "code") or "" for one in _all(root, "Reason")]
        reason = shown("; ".join(reasons)) or "no reason given"
        raise (NoData if NO_DATA.search(reason) else SignalUnavailable)(f"{where}: {reason}")
    if name != "GL_MarketDocument":
        raise SignalUnavailable(f"{where} answered a {shown(name)}, not a GL_MarketDocument; has the API changed?")
    return [one for series in _all(root, "TimeSeries") for one in _series(series, area, where)]


def _series(series: _Element, area: str, where: str) -> Iterator[Series]:
    psr = next(_all(series, "MktPSRType"), None)
    kind = LOAD if psr is None else _text(psr, "psrType") or ""
    domains = {"in": _text(series, "inBiddingZone_Domain.mRID"), "out": _text(series, "outBiddingZone_Domain.mRID")}
    told = {one for one in domains.values() if one}
    if told != {area}:
        raise SignalUnavailable(f"{where} was answered for area {shown(', '.join(sorted(told))) or 'none'}, not {area}")
    unit = _text(series, "quantity_Measure_Unit.name")
    if unit != "MAW":
        raise SignalUnavailable(f"{where}: {kind} is in {shown(str(unit))}, not in MAW (megawatts)")
    curve = _text(series, "curveType")
    if curve not in _CURVES:
        raise SignalUnavailable(f"{where}: {kind} has the curve type {shown(str(curve))}; known are A01 and A03")
    for period in _all(series, "Period"):
        step, values = _points(period, f"{where}: {kind}", is_repeated=_CURVES[curve])
        # What a plant draws comes as a series of its own, which names the area as the one it leaves.
        yield Series(kind, kind != LOAD and domains["in"] is None, step, values)


def _points(period: _Element, where: str, *, is_repeated: bool) -> tuple[timedelta, dict[datetime, Decimal | None]]:
    interval = next(_all(period, "timeInterval"), None)
    resolution = _text(period, "resolution")
    step = _RESOLUTIONS.get(resolution or "")
    if step is None:
        raise SignalUnavailable(f"{where}: resolution {shown(str(resolution))} is none of {', '.join(_RESOLUTIONS)}")
    if interval is None:
        raise SignalUnavailable(f"{where}: a period without a timeInterval")
    start, end = _time(interval, "start", where), _time(interval, "end", where)
    count, rest = divmod(end - start, step)
    if rest or count <= 0 or end - start > _MAX_PERIOD:
        raise SignalUnavailable(f"{where}: a period from {start} to {end} is no whole number of {resolution}")
    told: dict[int, Decimal | None] = {}
    for point in _all(period, "Point"):
        position = _text(point, "position") or ""
        if not (position.isascii() and position.isdigit() and 1 <= int(position) <= count):
            raise SignalUnavailable(
                f"{where}: position {shown(position) or 'none'} of {count} in a period from {start}"
            )
        value = _megawatts(_text(point, "quantity"), f"{where}, position {position}")
        place = int(position)
        # Two values for one time are in dispute: neither counts.
        told[place] = value if told.setdefault(place, value) == value else None
    values: dict[datetime, Decimal | None] = {}
    last: int | None = None
    for place in range(1, count + 1):
        last = place if place in told else last if is_repeated else None
        values[start + (place - 1) * step] = None if last is None else told[last]
    return step, values


def _megawatts(text: str | None, where: str) -> Decimal | None:
    """Read a quantity; empty is missing, and a plant that draws (negative) generates nothing."""
    if text is None or not text.strip():
        return None
    try:
        value = Decimal(text.strip())
    except InvalidOperation as error:
        raise SignalUnavailable(f"{where}: quantity {shown(repr(text))} is no number") from error
    if not value.is_finite() or (value and value.adjusted() > _MAX_DIGITS):
        raise SignalUnavailable(f"{where}: quantity {shown(text)} is no number of megawatts")
    return max(value, Decimal(0))


def _time(element: _Element, name: str, where: str) -> datetime:
    text = _text(element, name) or ""
    try:
        return parse_iso(text)
    except ValueError as error:
        raise SignalUnavailable(f"{where}: {name} is no time with a zone: {shown(text) or 'missing'}") from error


def _name(element: _Element) -> str:
    """Return an element's name without its namespace, which carries the version of the schema."""
    return element.tag.rpartition("}")[2]


def _all(element: _Element, name: str) -> Iterator[_Element]:
    return (one for one in element if _name(one) == name)


def _text(element: _Element, name: str) -> str | None:
    found = next(_all(element, name), None)
    return None if found is None or found.text is None else found.text.strip()
