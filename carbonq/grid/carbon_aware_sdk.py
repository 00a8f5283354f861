"""A Carbon Aware SDK WebAPI of your own: whatever its provider gives, so the signal is as you state.

Values are g/kWh. Three traps are looked for in every answer. Parameters that the WebAPI does not know it ignores
without a word, so the times of observations must lie where they were asked for. Forecasts are rolling means of
``windowSize`` minutes: none is asked for, and points that cover more than their distance are refused. A missing value
comes as -1 from some of its providers, and counts as missing. Nothing says which values are estimates, so they settle
entries only if you say that they may.
"""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal

from carbonq.errors import SignalUnavailable
from carbonq.grid.http import Http
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

logger = logging.getLogger(__name__)

#: Its providers take between 10 and 32 days in a call.
MOST_OBSERVED = timedelta(days=7)
#: A forecast stamped this far ahead of the grid clock is still the present one: clocks differ.
MAX_SKEW = timedelta(minutes=5)
_DURATION = re.compile(r"(?:(\d+)\.)?(\d{1,2}):(\d{2}):(\d{2})(?:\.\d+)?")


class CarbonAwareSdkSource:
    """One location of a WebAPI for one zone."""

    name = "carbon-aware-sdk"

    def __init__(
        self, http: Http, *, zone: str, location: str, signal: Signal, gas: str, may_settle: bool = False
    ) -> None:
        """Take the zone, the location as the WebAPI calls it, and what its provider counts."""
        self._http = http
        self._lease = http.lease()
        self._zone = zone
        self._location = location
        self._signal = signal
        self._may_settle = may_settle
        self._where = f"{self.name} {location}"
        self._unit = unit_of("g/kWh", self._where)
        self._origin = Origin(zone, signal, self.name, None, gas, None)
        self._nulls = 0

    @property
    def signal(self) -> Signal:
        """The book that the settings say its values belong to."""
        return self._signal

    def forecast(self, zone: str, now: datetime) -> Forecast | None:
        """Return its provider's newest forecast; None for a time before that was issued, as no earlier one is kept."""
        self._check_zone(zone)
        body = list_of(self._ask("/emissions/forecasts/current", {}), self._where)
        if len(body) != 1:
            raise SignalUnavailable(f"{self._where} answered with {len(body)} forecasts, not with one")
        one = object_of(body[0], self._where)
        if one.get("location") != self._location:
            raise SignalUnavailable(f"{self._where} was answered for {shown(str(one.get('location')))}")
        issued_at = time_of(one.get("generatedAt"), self._where, 0, "generatedAt")
        if issued_at > now + MAX_SKEW:
            return None
        rows = [
            object_of(row, f"{self._where}: row {i + 1}")
            for i, row in enumerate(list_of(one.get("forecastData"), f"{self._where}: forecastData"))
        ]
        readings = self._read(rows, "timestamp", "value")
        return forecast_of(
            readings,
            self._origin,
            self._unit,
            where=self._where,
            step_s=self._step_s(rows, sorted({one.at for one in readings})),
            issued_at=issued_at,
            retrieved_at=now,
            may_settle=self._may_settle,
        )

    def observations(self, zone: str, start: datetime, end: datetime, now: datetime) -> Sequence[Observation]:
        """Return what it says of ``[start, end)``, oldest first. Raises SignalUnavailable for times not asked for."""
        self._check_zone(zone)
        found: dict[datetime, Observation] = {}
        for first, last in pieces(start, min(end, now), MOST_OBSERVED):
            params = {"time": stamp(first), "toTime": stamp(last)}
            body = list_of(self._ask("/emissions/bylocation", params), self._where)
            rows = [object_of(row, f"{self._where}: row {i + 1}") for i, row in enumerate(body)]
            if not rows:
                continue
            readings = self._read(rows, "time", "rating")
            step_s = self._step_s(rows, None)
            inside = [one for one in readings if one.at <= last and one.at + timedelta(seconds=step_s) > first]
            if not inside and any(one.at > last for one in readings):
                raise SignalUnavailable(
                    f"{self._where} was asked for {stamp(first)} to {stamp(last)} and answered for "
                    f"{stamp(min(one.at for one in readings))}: does this version know the parameters time and toTime?"
                )
            observed = observations_of(
                inside,
                self._origin,
                self._unit,
                where=self._where,
                step_s=step_s,
                start=start,
                end=end,
                now=now,
                may_settle=self._may_settle,
            )
            found |= {one.window_at: one for one in observed}
        return [found[at] for at in sorted(found)]

    def revisions(self, zone: str, since: datetime, now: datetime) -> Sequence[Observation]:
        """Return nothing: the WebAPI does not say what its provider changed."""
        return ()

    def check(self, zone: str, now: datetime) -> Sequence[SourceNote]:
        """Say whether the WebAPI answers for the location, and what it cannot say about its values."""
        self._nulls = 0
        try:
            seen = self.observations(zone, now - timedelta(hours=6), now, now)
        except SignalUnavailable as error:
            return [SourceNote(NoteLevel.FAIL, error.message)]
        notes: list[SourceNote] = []
        found: Forecast | None = None
        try:
            found = self.forecast(zone, now)
        except SignalUnavailable as error:
            notes.append(SourceNote(NoteLevel.WARN, f"it has no forecast: {error.message}"))
        word = "marginal" if self._signal is Signal.MOER else "average"
        notes.insert(0, SourceNote(NoteLevel.OK, f"{self._location} is readable; you state that its values are {word}"))
        if not seen:
            notes.append(SourceNote(NoteLevel.WARN, f"{self._location} has no observation of the last 6 h"))
        if self._nulls:
            text = f"{self._nulls} of its values are -1, which stands for a missing one; they count as missing"
            notes.append(SourceNote(NoteLevel.WARN, text))
        if not self._may_settle:
            text = "the WebAPI does not mark estimates: entries do not settle by it (may_settle says otherwise)"
            notes.append(SourceNote(NoteLevel.WARN, text))
        scale = scale_note(found.values) if found else None
        return [*notes, scale] if scale else notes

    def close(self) -> None:
        """Give up the share in the WebAPI's connections."""
        self._lease.close()

    def _ask(self, path: str, params: Mapping[str, str]) -> Json:
        return self._http.json(path, params={"location": self._location, **params})

    def _read(self, rows: Sequence[Mapping[str, Json]], time: str, value: str) -> list[Reading]:
        readings: list[Reading] = []
        nulls = 0
        for i, row in enumerate(rows):
            raw = row.get(value)
            if isinstance(raw, int | Decimal) and raw == -1:
                raw, nulls = None, nulls + 1
            readings.append(Reading(time_of(row.get(time), self._where, i, time), number(raw, self._where, i, value)))
        if nulls and not self._nulls:
            logger.warning("%s gives -1 for %d values: they count as missing", self._where, nulls)
        self._nulls += nulls
        return readings

    def _step_s(self, rows: Sequence[Mapping[str, Json]], times: Sequence[datetime] | None) -> int:
        """Return how long a value holds; of a forecast's ``times`` the distance too, which must be the same."""
        durations = {_seconds(row.get("duration")) for row in rows}
        step_s = durations.pop() if len(durations) == 1 else None
        if step_s is None or step_s <= 0:
            said = sorted({str(row.get("duration")) for row in rows})
            raise SignalUnavailable(
                f"{self._where}: duration is {shown(', '.join(said) or 'missing')}, not one length: does its "
                "provider give single points?"
            )
        apart = min((after - before for before, after in itertools.pairwise(times or ())), default=None)
        if apart is not None and apart < timedelta(seconds=step_s):
            raise SignalUnavailable(
                f"{self._where}: points {apart} apart are means of {step_s / 60:.0f} min; single points are needed, so "
                "the WebAPI must not be given a windowSize"
            )
        return step_s

    def _check_zone(self, zone: str) -> None:
        if zone != self._zone:
            raise SignalUnavailable(f"this source gives the rates of {self._zone}, not of {zone}")


def _seconds(duration: Json) -> int | None:
    """Read whole minutes (forecasts) or a .NET time span such as 01:00:00 (observations)."""
    if isinstance(duration, int) and not isinstance(duration, bool):
        return duration * 60
    match = _DURATION.fullmatch(duration) if isinstance(duration, str) else None
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds
