"""GB Carbon Intensity (NESO): average rates of Great Britain or of one of its 17 regions. No key.

Values are gCO2/kWh of generation, half-hour by half-hour. National rows have an ``actual`` about half an hour after
their end, revised for a day or more; the API does not say when, so the last two days are read again. Its ``forecast``
column of past rows is overwritten later and is never taken for an observation. Rows of a region have no ``actual`` at
all: entries cannot settle by them. No answer carries an issue time: a forecast counts as issued when it was fetched.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta

from carbonq.errors import SignalUnavailable
from carbonq.grid.http import Http
from carbonq.grid.pace import Kept
from carbonq.grid.ranges import pieces
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

STEP = timedelta(minutes=30)
#: The API takes 14 days in a call; a forecast changes with each half-hour.
MOST_OBSERVED = timedelta(days=13)
ASK_EVERY = timedelta(minutes=10)
READ_EVERY = timedelta(minutes=5)
#: How far back values are read again for what was revised.
REVISED = timedelta(days=2)


class UkSource:
    """Great Britain, or one of its regions, for one zone."""

    signal = Signal.AER

    def __init__(self, http: Http, *, zone: str, region_id: int | None = None) -> None:
        """Take the zone and the region's number, 1 to 17; None is the nation."""
        self._http = http
        self._lease = http.lease()
        self._zone = zone
        self._region_id = region_id
        self._where = self.name
        self._unit = unit_of("gCO2/kWh", self._where)
        self._origin = Origin(zone, self.signal, self.name, None, "co2", "direct")
        self._forecast: Kept[Forecast] = Kept(ASK_EVERY)
        self._actual: Kept[list[Reading]] = Kept(READ_EVERY)

    @property
    def name(self) -> str:
        """``uk-carbon-intensity``, with the number of a region."""
        return "uk-carbon-intensity" if self._region_id is None else f"uk-carbon-intensity-{self._region_id}"

    def forecast(self, zone: str, now: datetime) -> Forecast | None:
        """Return the forecast of the coming 48 h; None for a time before the last one was fetched: none is kept."""
        self._check_zone(zone)
        if self._forecast.is_older(now):
            return None
        return self._forecast.get(now, lambda: self._ask_forecast(now))[1]

    def observations(self, zone: str, start: datetime, end: datetime, now: datetime) -> Sequence[Observation]:
        """Return the ``actual`` values of ``[start, end)``, oldest first; none for a region, which has none."""
        self._check_zone(zone)
        return self._observed(start, end, now)

    def revisions(self, zone: str, since: datetime, now: datetime) -> Sequence[Observation]:
        """Return the values of the last two days as they are now: the API does not say which it changed."""
        self._check_zone(zone)
        return self._observed(min(since, now - REVISED), now, now)

    def check(self, zone: str, now: datetime) -> Sequence[SourceNote]:
        """Say what is there: how far the forecast goes, how late the observations are, that regions have none."""
        try:
            found = self.forecast(zone, now)
            seen = self.observations(zone, now - timedelta(hours=6), now, now)
        except SignalUnavailable as error:
            return [SourceNote(NoteLevel.FAIL, error.message)]
        notes: list[SourceNote] = []
        if found is not None:
            hours = (found.start_at + len(found.values) * STEP - now) / timedelta(hours=1)
            notes.append(SourceNote(NoteLevel.OK, f"readable without a key; its forecast covers {hours:.0f} h"))
            scale = scale_note(found.values)
            notes += [scale] if scale else []
        if self._region_id is not None:
            text = f"region {self._region_id} has forecasts but no observations: entries of this zone cannot settle"
            notes.append(SourceNote(NoteLevel.WARN, f"{text} by it (the nation's do)"))
        elif not seen:
            notes.append(SourceNote(NoteLevel.WARN, "it has no observation of the last 6 h"))
        return notes

    def close(self) -> None:
        """Give up the share in the provider's connections."""
        self._lease.close()

    def _ask_forecast(self, now: datetime) -> Forecast:
        # The first row covers the time asked for: it begins before.
        readings = self._ask(f"{_minute(now)}/fw48h", "forecast")
        return forecast_of(
            readings,
            self._origin,
            self._unit,
            where=self._where,
            step_s=int(STEP.total_seconds()),
            issued_at=now,
            retrieved_at=now,
            may_settle=self._region_id is None,
        )

    def _observed(self, start: datetime, end: datetime, now: datetime) -> list[Observation]:
        if self._region_id is not None or start >= min(end, now):
            return []
        asked_at, readings = self._actual.get(now, lambda: self._ask_actual(start, now), since=start)
        return observations_of(
            readings,
            self._origin,
            self._unit,
            where=self._where,
            step_s=int(STEP.total_seconds()),
            start=start,
            end=end,
            now=asked_at,
        )

    def _ask_actual(self, start: datetime, now: datetime) -> list[Reading]:
        found: list[Reading] = []
        for first, last in pieces(start, now, MOST_OBSERVED):
            found += self._ask(f"{_minute(first)}/{_minute(last)}", "actual")
        return found

    def _ask(self, span: str, column: str) -> list[Reading]:
        path = f"/intensity/{span}"
        if self._region_id is not None:
            path = f"/regional{path}/regionid/{self._region_id}"
        body = object_of(self._http.json(path, headers={"Accept": "application/json"}), self._where)
        return [self._reading(row, i, column) for i, row in enumerate(self._rows(body))]

    def _rows(self, body: Mapping[str, Json]) -> Iterator[Mapping[str, Json]]:
        """Yield the half-hours of this area from any of the nestings that the API's paths answer with."""
        if body.get("data") is None:
            raise SignalUnavailable(f"{self._where} answered without data: {shown(str(body)) if body else 'empty'}")
        data = body["data"]
        for one in [data] if isinstance(data, dict) else list_of(data, f"{self._where}: data"):
            entry = object_of(one, f"{self._where}: data")
            if "regions" in entry:  # all regions of a half-hour
                regions = [object_of(inner, self._where) for inner in list_of(entry["regions"], self._where)]
                mine = [inner for inner in regions if inner.get("regionid") == self._region_id]
                if not mine:
                    raise SignalUnavailable(f"{self._where} was answered without region {self._region_id}")
                yield {**entry, **mine[0]}
            elif "data" in entry:  # one region's half-hours
                self._check_region(entry)
                for inner in list_of(entry["data"], f"{self._where}: data of the region"):
                    yield object_of(inner, self._where)
            elif self._region_id is not None:
                raise SignalUnavailable(f"{self._where} was answered for the nation, not for the region")
            else:
                yield entry

    def _check_region(self, entry: Mapping[str, Json]) -> None:
        if entry.get("regionid") != self._region_id:
            raise SignalUnavailable(
                f"{self._where} was answered for region {shown(str(entry.get('regionid')))}, not {self._region_id}"
            )

    def _reading(self, row: Mapping[str, Json], i: int, column: str) -> Reading:
        at = time_of(row.get("from"), self._where, i, "from")
        if time_of(row.get("to"), self._where, i, "to") - at != STEP:
            raise SignalUnavailable(f"{self._where}: row {i + 1} is no half-hour: {row.get('from')} to {row.get('to')}")
        intensity = object_of(row.get("intensity"), f"{self._where}: intensity of row {i + 1}")
        return Reading(at, number(intensity.get(column), self._where, i, column))

    def _check_zone(self, zone: str) -> None:
        if zone != self._zone:
            raise SignalUnavailable(f"this source gives the rates of {self._zone}, not of {zone}")


def _minute(at: datetime) -> str:
    """Write a time as this API does: UTC, no seconds."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%MZ")
