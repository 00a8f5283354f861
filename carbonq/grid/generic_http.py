"""Any JSON over HTTP, fully from settings: addresses, parameters, headers, JSON paths, unit, step, signal.

In addresses and parameters ``{zone}``, ``{start}`` and ``{end}`` are filled in (UTC, ISO 8601, ``Z``). Everything
wrong with the settings is a ConfigError naming one; a path that matches nothing in an answer is a SignalUnavailable
naming it. A parameter without a placeholder may be a key and is shown in no message; nor are headers, nor a login in
the address. Where no setting says when a forecast was issued, it counts as issued when it was fetched (anew every
10 minutes).
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import cast
from urllib.parse import parse_qsl, quote, unquote, urlsplit

import jsonpath

from carbonq.errors import ConfigError, SignalUnavailable
from carbonq.grid.http import Http
from carbonq.grid.pace import Kept
from carbonq.grid.ranges import pieces, stamp
from carbonq.grid.readings import (
    Origin,
    Reading,
    Unit,
    forecast_of,
    number,
    observations_of,
    refuse_index,
    scale_note,
    time_of,
    unit_of,
)
from carbonq.grid.replies import Json, shown
from carbonq.model import Signal
from carbonq.signals import Forecast, NoteLevel, Observation, SourceNote
from carbonq.units import window_of

#: How far ahead a forecast is asked for, where the template has {end}.
AHEAD = timedelta(hours=72)
ASK_EVERY = timedelta(minutes=10)
#: A forecast stamped this far ahead of the grid clock is still the present one: clocks differ.
MAX_SKEW = timedelta(minutes=5)

_PLACEHOLDERS = ("zone", "start", "end")
_WILDCARD = re.compile(r"(\[\*\]|\.\*)$")


class HttpSource:
    """One provider's values of one zone, as the settings say."""

    def __init__(
        self,
        http: Http,
        *,
        zone: str,
        signal: Signal,
        name: str,
        url: str | None,
        forecast_url: str | None,
        rows: str,
        unit: str,
        gas: str,
        step_s: int,
        time: str = "time",
        value: str = "value",
        issued_at: str | None = None,
        method: str | None = None,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        span_h: int = 336,
        is_estimated: bool = False,
        may_settle: bool = True,
        setting: str = "",
    ) -> None:
        """Check the settings and prepare; nothing is asked. ``setting`` is the table to name. Raises ConfigError."""
        where = f"{setting}." if setting else ""
        if url is None and forecast_url is None:
            raise ConfigError(f"{where}url and {where}forecast_url are both unset; set the one that there is")
        self._params = dict(params or {})
        for word, template in (("url", url), ("forecast_url", forecast_url)):
            if template is not None:
                _check_address(template, f"{where}{word}")
        for word, template in self._params.items():
            _check_template(template, f"{where}params.{word}")
        self._unit = _unit(unit, f"{where}unit", gas)
        self._rows = _Path(rows, f"{where}rows")
        self._time = _Path(time, f"{where}time")
        self._value = _Path(value, f"{where}value")
        self._issued_at = None if issued_at is None else _Path(issued_at, f"{where}issued_at")
        self._http = http
        self._lease = http.lease()
        self._zone = zone
        self._signal = signal
        self._name = name
        self._url = url
        self._forecast_url = forecast_url
        self._headers = dict(headers or {})
        self._step_s = step_s
        self._span = timedelta(hours=span_h)
        self._is_estimated = is_estimated
        self._may_settle = may_settle
        self._where = f"{name} {zone}"
        self._kept: Kept[Forecast | None] = Kept(ASK_EVERY)
        self._origin = Origin(zone, signal, name, None, gas, method)

    @property
    def name(self) -> str:
        """The name that the settings give it."""
        return self._name

    @property
    def signal(self) -> Signal:
        """The book that the settings put it under."""
        return self._signal

    def forecast(self, zone: str, now: datetime) -> Forecast | None:
        """Return the forecast; None where the settings name none, or where it is issued later than ``now``."""
        self._check_zone(zone)
        if self._forecast_url is None:
            return None
        if self._issued_at is not None:
            return self._ask_forecast(self._forecast_url, now)
        if self._kept.is_older(now):
            return None
        url = self._forecast_url
        return self._kept.get(now, lambda: self._ask_forecast(url, now))[1]

    def _ask_forecast(self, url: str, now: datetime) -> Forecast | None:
        begin = window_of(now)
        body = self._ask(url, begin, begin + AHEAD)
        issued_at = now
        if self._issued_at is not None:
            told = {time_of(one, self._where, 0, "issued_at") for one in self._issued_at.some(body)}
            if len(told) != 1:
                raise SignalUnavailable(f"{self._where}: {self._issued_at} gives {len(told)} different times of issue")
            issued_at = told.pop()
        if issued_at > now + MAX_SKEW:
            return None
        return forecast_of(
            self._read(body),
            self._origin,
            self._unit,
            where=self._where,
            step_s=self._step_s,
            issued_at=issued_at,
            retrieved_at=now,
            is_estimated=self._is_estimated,
            may_settle=self._may_settle,
        )

    def observations(self, zone: str, start: datetime, end: datetime, now: datetime) -> Sequence[Observation]:
        """Return what it says of ``[start, end)``, oldest first; asked for in pieces where the template has a span."""
        self._check_zone(zone)
        if self._url is None:
            return ()
        found: dict[datetime, Observation] = {}
        has_span = any("{start}" in one or "{end}" in one for one in (self._url, *self._params.values()))
        spans = list(pieces(start, min(end, now), self._span))
        for first, last in spans if has_span else spans[:1]:
            observed = observations_of(
                self._read(self._ask(self._url, first, last)),
                self._origin,
                self._unit,
                where=self._where,
                step_s=self._step_s,
                start=start,
                end=end,
                now=now,
                may_settle=self._may_settle,
            )
            found |= {one.window_at: one for one in observed}
        return [found[at] for at in sorted(found)]

    def revisions(self, zone: str, since: datetime, now: datetime) -> Sequence[Observation]:
        """Return nothing: no setting says what was changed."""
        return ()

    def check(self, zone: str, now: datetime) -> Sequence[SourceNote]:
        """Ask both addresses once and say what they hold."""
        try:
            found = self.forecast(zone, now)
            seen = self.observations(zone, now - timedelta(hours=6), now, now)
        except SignalUnavailable as error:
            return [SourceNote(NoteLevel.FAIL, error.message)]
        unit = f"values are {self._unit.name} x {self._unit.g_per_kwh.normalize():f} = g/kWh"
        notes = [SourceNote(NoteLevel.OK, f"{self._name} is readable; {unit}, every {self._step_s} s")]
        if self._url is not None and not seen:
            notes.append(SourceNote(NoteLevel.WARN, f"{self._name} has no observation of the last 6 h"))
        if self._url is None or not self._may_settle or self._is_estimated:
            why = "it has no url of observations" if self._url is None else "its settings say so"
            notes.append(SourceNote(NoteLevel.WARN, f"entries do not settle by {self._name}: {why}"))
        missing = sum(value is None for value in found.values) if found else 0
        if found and 2 * missing > len(found.values):
            text = f"{missing} of the {len(found.values)} steps of its forecast have no value; is step_s right?"
            notes.append(SourceNote(NoteLevel.WARN, text))
        scale = scale_note(found.values if found else [one.g_per_kwh for one in seen])
        return [*notes, scale] if scale else notes

    def close(self) -> None:
        """Give up the share in the provider's connections."""
        self._lease.close()

    def _ask(self, template: str, start: datetime, end: datetime) -> Json:
        values = {"zone": self._zone, "start": stamp(start), "end": stamp(end)}
        parts = urlsplit(template)
        login, _, host = parts.netloc.rpartition("@")
        # What the address itself holds is treated like parameters and a login, so that it is hidden like them.
        given = {**dict(parse_qsl(parts.query, keep_blank_values=True)), **self._params}
        user, _, password = login.partition(":")
        path = parts.path.format(**{name: quote(value, safe=":") for name, value in values.items()})
        return self._http.json(
            f"{parts.scheme}://{host}{path}",
            params={name: text.format(**values) for name, text in given.items()},
            headers=self._headers,
            basic=(unquote(user), unquote(password)) if login else None,
            secrets=[name for name, text in given.items() if "{" not in text],
        )

    def _read(self, body: Json) -> list[Reading]:
        rows = self._rows.rows(body)
        readings: list[Reading] = []
        valued = 0
        for i, row in enumerate(rows):
            told = self._value.find(row)
            valued += bool(told)
            raw = self._value.only(told, i) if told else None
            at = time_of(self._time.only(self._time.some(row), i), self._where, i, str(self._time))
            readings.append(Reading(at, number(raw, self._where, i, str(self._value)), self._is_estimated))
        if rows and not valued:
            raise SignalUnavailable(f"{self._where}: {self._value} matches nothing in any of {len(rows)} rows")
        return readings

    def _check_zone(self, zone: str) -> None:
        if zone != self._zone:
            raise SignalUnavailable(f"this source gives the rates of {self._zone}, not of {zone}")


class _Path:
    """A JSON path of the settings; its text is the setting and the path."""

    def __init__(self, path: str, setting: str) -> None:
        self._path = path
        self._setting = setting
        self._find = _compiled(path, setting)
        # The list itself, to tell an empty one from a path that leads nowhere.
        whole = _WILDCARD.sub("", path)
        self._find_whole = None if whole == path else _compiled(whole or "$", setting)

    def __str__(self) -> str:
        return f"{self._setting} {self._path!r}"

    def find(self, body: Json) -> Sequence[Json]:
        """Return what matches; nothing in a plain value."""
        return self._find(body) if isinstance(body, dict | list) else []

    def some(self, body: Json) -> Sequence[Json]:
        """Return what matches. Raises SignalUnavailable where nothing does."""
        found = self.find(body)
        if not found:
            raise SignalUnavailable(f"{self} matches nothing in the answer, which has {_outline(body)}")
        return found

    def rows(self, body: Json) -> Sequence[Json]:
        """Return the rows that match, or those of the one list that does; none at all only where a list is empty."""
        found = self.find(body)
        if not found and self._find_whole is not None and isinstance(body, dict | list):
            found = [one for one in self._find_whole(body) if one in ([], {})]
        if not found:
            raise SignalUnavailable(f"{self} matches nothing in the answer, which has {_outline(body)}")
        if len(found) == 1 and isinstance(found[0], list) and not _is_row(found[0]):
            return cast("Sequence[Json]", found[0])
        return [] if found == [{}] else found

    def only(self, found: Sequence[Json], row: int) -> Json:
        """Return the one match in a row. Raises SignalUnavailable for several."""
        if len(found) != 1:
            raise SignalUnavailable(f"{self} matches {len(found)} values in row {row + 1}, not one")
        return found[0]


def _is_row(value: Sequence[Json]) -> bool:
    """Say whether a list is a row such as [time, value] and not a list of rows."""
    return bool(value) and not isinstance(value[0], dict | list)


def _compiled(path: str, setting: str) -> Callable[[Json], Sequence[Json]]:
    try:
        found = jsonpath.compile(path)
    except jsonpath.JSONPathError as error:
        raise ConfigError(f"{setting} {path!r} is no JSON path: {shown(str(error).partition(' -> ')[0])}") from error
    if not path.strip():
        raise ConfigError(f"{setting} is empty; it is a JSON path such as $.data[*] or value")

    def find(body: Json) -> Sequence[Json]:
        try:
            return cast("Sequence[Json]", found.findall(body))
        except jsonpath.JSONPathError as error:
            raise SignalUnavailable(f"{setting} {path!r} cannot be used on the answer: {shown(str(error))}") from error

    return find


def _outline(body: Json) -> str:
    if isinstance(body, dict):
        names = ", ".join(map(str, cast("Mapping[str, Json]", body)))
        return f"the fields {shown(names)}" if names else "no fields"
    return f"a list of {len(cast('Sequence[Json]', body))}" if isinstance(body, list) else "a plain value"


def _unit(text: str, setting: str, gas: str) -> Unit:
    try:
        unit = unit_of(text, setting)
    except SignalUnavailable as error:
        raise ConfigError(error.message) from error
    if unit.gas not in {None, gas}:
        raise ConfigError(f"{setting} {text!r} counts {unit.gas}, but gas is {gas!r}; which is right?")
    return unit


def _check_address(template: str, setting: str) -> None:
    refuse_index(template)
    _check_template(template, setting)
    try:
        parts = urlsplit(template)
        host = parts.hostname
    except ValueError as error:
        raise ConfigError(f"{setting} is no address: {shown(str(error))}") from error
    if parts.scheme not in {"http", "https"} or not host:
        raise ConfigError(f"{setting} is no address; it begins with https:// or http:// and a host")
    names = [name for name, _ in parse_qsl(parts.query, keep_blank_values=True)]
    if len(names) > len(set(names)):
        raise ConfigError(f"{setting} names a parameter twice")
    if "{" in parts.netloc:
        raise ConfigError(f"{setting} has a placeholder in its host; only path and parameters may have one")


def _check_template(template: str, setting: str) -> None:
    known = ", ".join(f"{{{one}}}" for one in _PLACEHOLDERS)
    try:
        fields = [part for part in string.Formatter().parse(template) if part[1] is not None]
    except ValueError as error:
        raise ConfigError(f"{setting} is no template: {error}; a brace that is meant is written twice") from error
    for _, field, form, conversion in fields:
        if field not in _PLACEHOLDERS or form or conversion:
            raise ConfigError(f"{setting} has the placeholder {{{shown(str(field))}}}; there are {known}")
