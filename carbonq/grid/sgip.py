"""SGIP Signal: California's marginal rates, free with an account and free to pass on; made by WattTime.

Values are kg CO2/kWh every 5 minutes (as text or as numbers, newest first or oldest first), valid from their
``point_time`` on. Nothing on the wire says which are estimates or when one was changed: none is marked, and windows
that a refresh asks for again are all that is corrected. Forecasts begin with the window after their issue.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta

from carbonq.errors import SignalUnavailable
from carbonq.grid.account import Account
from carbonq.grid.ranges import pieces, stamp
from carbonq.grid.readings import (
    Origin,
    Reading,
    forecast_of,
    list_of,
    number,
    object_of,
    observations_of,
    scale_note,
    time_of,
    unit_of,
)
from carbonq.grid.replies import Json, shown
from carbonq.model import Signal
from carbonq.signals import Forecast, NoteLevel, Observation, SourceNote
from carbonq.units import WINDOW_S

#: 31 days of observations and one day of issue times in a call; issues are kept for about a year.
MOST_OBSERVED = timedelta(days=31)
MOST_ISSUED = timedelta(days=1)
#: A forecast stamped this far ahead of the grid clock is still the present one: clocks differ.
MAX_SKEW = timedelta(minutes=5)
_LOOK_BACK = timedelta(minutes=30)


class SgipSource:
    """One balancing area for one zone; all zones share the account."""

    name = "sgip-signal"
    signal = Signal.MOER

    def __init__(self, account: Account, *, zone: str, area: str | None = None) -> None:
        """Take the zone and the area's name at SGIP Signal, the zone's own where ``area`` is None."""
        self._account = account
        self._lease = account.http.lease()
        self._zone = zone
        self._area = area or zone
        self._where = f"{self.name} {self._area}"
        self._unit = unit_of("kg CO2/kWh", self._where)
        self._newest_at: datetime | None = None

    def forecast(self, zone: str, now: datetime) -> Forecast | None:
        """Return the newest forecast issued by ``now``, an earlier issue where the newest is later than that."""
        self._check_zone(zone)
        if self._newest_at is None or self._newest_at <= now:
            found = max(self._issued({}, now), key=lambda one: one.issued_at, default=None)
            if found is None:
                raise SignalUnavailable(f"{self._where} answered without a forecast")
            self._newest_at = found.issued_at
            if found.issued_at <= now + MAX_SKEW:
                return found
        earlier = self.issues(zone, now - _LOOK_BACK, now + timedelta(seconds=1), now)
        return max((one for one in earlier if one.issued_at <= now), key=lambda one: one.issued_at, default=None)

    def issues(self, zone: str, start: datetime, end: datetime, now: datetime) -> Iterator[Forecast]:
        """Yield the forecasts issued in ``[start, end)``, oldest first, a day of issues for each call."""
        self._check_zone(zone)
        for first, last in pieces(start, end, MOST_ISSUED):
            span = {"starttime": stamp(first), "endtime": stamp(last)}
            yield from sorted(self._issued(span, now), key=lambda one: one.issued_at)

    def observations(self, zone: str, start: datetime, end: datetime, now: datetime) -> Sequence[Observation]:
        """Return what is published for ``[start, end)``, oldest first; each carries its version as the model."""
        self._check_zone(zone)
        found: dict[datetime, Observation] = {}
        for first, last in pieces(start, min(end, now), MOST_OBSERVED):
            span = {"starttime": stamp(first), "endtime": stamp(last)}
            body = self._account.json("/sgipmoer", params={"ba": self._area, **span})
            # A span of one point is answered as an object.
            rows = [body] if isinstance(body, dict) else list_of(body, f"{self._where}: moer")
            for version, of_version in sorted(self._by_version(rows).items()):
                readings, step_s = self._read_moer(of_version)
                same = observations_of(
                    readings,
                    self._origin(version),
                    self._unit,
                    where=self._where,
                    step_s=step_s,
                    start=start,
                    end=end,
                    now=now,
                )
                # Where two versions give a window, the later method counts.
                found |= {one.window_at: one for one in same}
        return [found[at] for at in sorted(found)]

    def revisions(self, zone: str, since: datetime, now: datetime) -> Sequence[Observation]:
        """Return nothing: SGIP Signal does not say what it changed."""
        return ()

    def check(self, zone: str, now: datetime) -> Sequence[SourceNote]:
        """Say whether the account may log in and the area has a forecast and observations."""
        try:
            forecast = self.forecast(zone, now)
            seen = self.observations(zone, now - timedelta(hours=2), now, now)
        except SignalUnavailable as error:
            return [SourceNote(NoteLevel.FAIL, error.message)]
        model = forecast.model if forecast else None
        notes = [SourceNote(NoteLevel.OK, f"{self._area} is readable; its forecast is of version {model}")]
        if not seen:
            notes.append(SourceNote(NoteLevel.WARN, f"{self._area} has no observation of the last 2 h"))
        scale = scale_note(forecast.values) if forecast else None
        return [*notes, scale] if scale else notes

    def close(self) -> None:
        """Give up the share in the provider's connections."""
        self._lease.close()

    def _issued(self, span: Mapping[str, str], now: datetime) -> Iterator[Forecast]:
        body = self._account.json("/sgipforecast", params={"ba": self._area, **span})
        issues = [body] if isinstance(body, dict) else list_of(body, f"{self._where}: forecasts")
        for i, one in enumerate(issues):
            issue = object_of(one, f"{self._where}: issue {i + 1}")
            rows = list_of(issue.get("forecast"), f"{self._where}: forecast")
            by_version = self._by_version(rows)
            if not rows and span:
                continue
            if len(by_version) != 1:
                raise SignalUnavailable(f"{self._where}: a forecast of versions {', '.join(by_version) or 'none'}")
            (version,) = by_version
            yield forecast_of(
                [self._reading(row, k, "value") for k, row in enumerate(by_version[version])],
                self._origin(version),
                self._unit,
                where=self._where,
                step_s=WINDOW_S,
                issued_at=time_of(issue.get("generated_at"), self._where, i, "generated_at"),
                retrieved_at=now,
            )

    def _by_version(self, rows: Sequence[Json]) -> dict[str, list[Mapping[str, Json]]]:
        """Return checked rows by their version; all must be of this area."""
        found: dict[str, list[Mapping[str, Json]]] = {}
        for i, one in enumerate(rows):
            row = object_of(one, f"{self._where}: row {i + 1}")
            if row.get("ba") != self._area:
                raise SignalUnavailable(f"{self._where} was answered for {shown(str(row.get('ba')))} in row {i + 1}")
            found.setdefault(shown(str(row.get("version"))), []).append(row)
        return found

    def _read_moer(self, rows: Sequence[Mapping[str, Json]]) -> tuple[list[Reading], int]:
        steps = {row.get("freq") for row in rows}
        (step_s,) = steps if len(steps) == 1 else (None,)
        if isinstance(step_s, bool) or not isinstance(step_s, int):
            raise SignalUnavailable(f"{self._where}: freq is {shown(str(sorted(map(str, steps))))}, not one step")
        return [self._reading(row, i, "moer") for i, row in enumerate(rows)], step_s

    def _reading(self, row: Mapping[str, Json], i: int, field: str) -> Reading:
        at = time_of(row.get("point_time"), self._where, i, "point_time")
        return Reading(at, number(row.get(field), self._where, i, field))

    def _origin(self, version: str) -> Origin:
        return Origin(self._zone, self.signal, self.name, version, self._unit.gas or "co2", None)

    def _check_zone(self, zone: str) -> None:
        if zone != self._zone:
            raise SignalUnavailable(f"this source gives the rates of {self._zone}, not of {zone}")
