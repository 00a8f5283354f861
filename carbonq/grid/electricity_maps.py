"""Electricity Maps v3 and v4: flow-traced average rates of a zone. Needs a token; the plan decides what it reads.

Values are gCO2eq/kWh by the emission factors asked for (life-cycle or direct). Without a zone the API answers for the
caller's address and looks right: ``zone`` is always sent, that look-up is off, and the zone of the answer checked. Rows
of the running hours are estimates and are rewritten for a day; a row that is still one never settles an entry. A
forecast's ``updatedAt`` is the time of the request, so it counts as issued when it was fetched. The marginal endpoints
of v3 are gone.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from difflib import get_close_matches

from carbonq.errors import SignalUnavailable
from carbonq.grid.electricity_maps_account import ElectricityMapsAccount, NotInPlan, permits
from carbonq.grid.pace import Kept
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

STEPS_S = {"hourly": 3600, "15_minutes": 900, "5_minutes": 300}
#: ``history`` is of the last 24 h; ``past-range`` takes 10 days of rows of an hour or less (100 days of daily ones).
RECENT = timedelta(hours=24)
MOST_OBSERVED = timedelta(days=10)
ASK_EVERY = timedelta(minutes=10)
READ_EVERY = timedelta(minutes=5)

_FORECAST = "carbon-intensity/forecast"
_HISTORY = "carbon-intensity/history"
_PAST = "carbon-intensity/past-range"


@dataclass(frozen=True, slots=True)
class _Rows:
    read_at: datetime
    step_s: int
    readings: Sequence[Reading]


class ElectricityMapsSource:
    """One zone of Electricity Maps for one zone here; all zones share the account."""

    signal = Signal.AER

    def __init__(
        self,
        account: ElectricityMapsAccount,
        *,
        zone: str,
        area: str | None = None,
        version: str = "v4",
        factor: str = "lifecycle",
        granularity: str = "hourly",
        horizon_h: int = 72,
    ) -> None:
        """Take the zone and its name at Electricity Maps, the zone's own where ``area`` is None."""
        self._account = account
        self._lease = account.http.lease()
        self._zone = zone
        self._area = area or zone
        self._version = version
        self._factor = factor
        self._granularity = granularity
        self._horizon_h = horizon_h
        self._where = f"{self.name} {self._area}"
        self._unit = unit_of("gCO2eq/kWh", self._where)
        self._origin = Origin(zone, self.signal, self.name, None, "co2e", factor)
        self._forecast: Kept[Forecast] = Kept(ASK_EVERY)
        self._history: Kept[_Rows] = Kept(READ_EVERY)
        self._refused_until: dict[str, datetime] = {}
        self._coarser: str | None = None

    @property
    def name(self) -> str:
        """``electricity-maps-`` and the version."""
        return f"electricity-maps-{self._version}"

    def forecast(self, zone: str, now: datetime) -> Forecast | None:
        """Return the forecast as it is now; None where the plan has none, and for a time before it was fetched."""
        self._check_zone(zone)
        if self._forecast.is_older(now) or not self._may(_FORECAST, now):
            return None
        try:
            return self._forecast.get(now, lambda: self._ask_forecast(now))[1]
        except NotInPlan as error:
            self._note_refusal(_FORECAST, now, error)
            return None

    def observations(self, zone: str, start: datetime, end: datetime, now: datetime) -> Sequence[Observation]:
        """Return what is published for ``[start, end)``: the last 24 h, and what lies before if the plan has it."""
        self._check_zone(zone)
        found: dict[datetime, Observation] = {}
        refusals: list[str] = []
        is_read = False
        for what, ask in ((_PAST, self._past), (_HISTORY, self._recent)):
            try:
                parts = ask(start, end, now) if self._may(what, now) else []
            except NotInPlan as error:
                self._note_refusal(what, now, error)
                refusals.append(error.message)
                continue
            is_read = is_read or bool(parts)
            for rows in parts:
                found |= {one.window_at: one for one in self._observed(rows, start, end)}
        if not is_read and not self._may(_HISTORY, now):
            said = "; ".join(refusals) or f"its plan includes neither {_HISTORY} nor {_PAST} of {self._area}"
            raise NotInPlan(f"{self._where}: {said}")
        return [found[at] for at in sorted(found)]

    def revisions(self, zone: str, since: datetime, now: datetime) -> Sequence[Observation]:
        """Return the rows of the last 24 h (10 days, if the plan has them) that were updated at or after ``since``."""
        self._check_zone(zone)
        found: dict[datetime, Observation] = {}
        start = now - MOST_OBSERVED
        for what, ask in ((_PAST, self._past), (_HISTORY, self._recent)):
            try:
                parts = ask(start, now, now) if self._may(what, now) else []
            except NotInPlan as error:
                self._note_refusal(what, now, error)
                continue
            for rows in parts:
                changed = [one for one in rows.readings if one.updated_at is None or one.updated_at >= since]
                mine = self._observed(_Rows(rows.read_at, rows.step_s, changed), None, now)
                found |= {one.window_at: one for one in mine}
        return [found[at] for at in sorted(found)]

    def check(self, zone: str, now: datetime) -> Sequence[SourceNote]:
        """Say what the plan may read of the zone, whether its rows are estimates, and how its forecast looks."""
        try:
            self._check_zone(zone)
            notes = self._access_notes(self._account.access(self._version))
            if any(note.level is NoteLevel.FAIL for note in notes):
                return notes
            seen = self.observations(zone, now - RECENT, now, now)
            found = self.forecast(zone, now)
        except SignalUnavailable as error:
            return [SourceNote(NoteLevel.FAIL, error.message)]
        if seen and all(one.is_estimated for one in seen):
            text = f"all {len(seen)} values of the last 24 h are estimates; entries settle only by those that are not"
            notes.append(SourceNote(NoteLevel.WARN, text))
        if self._coarser is not None:
            notes.append(SourceNote(NoteLevel.WARN, self._coarser))
        scale = scale_note(found.values) if found else None
        return [*notes, scale] if scale else notes

    def close(self) -> None:
        """Give up the share in the provider's connections."""
        self._lease.close()

    def _ask_forecast(self, now: datetime) -> Forecast:
        body = self._ask("forecast", {"horizonHours": str(self._horizon_h)})
        rows = self._rows(body, "forecast", now)
        return forecast_of(
            rows.readings,
            self._origin,
            self._unit,
            where=self._where,
            step_s=rows.step_s,
            issued_at=now,
            retrieved_at=now,
        )

    def _past(self, start: datetime, end: datetime, now: datetime) -> list[_Rows]:
        until = now - RECENT if self._may(_HISTORY, now) else now
        first, last = _hour(start), _hour(min(end, until))
        return [
            self._rows(self._ask("past-range", {"start": stamp(begin), "end": stamp(close)}), "data", now)
            for begin, close in pieces(first, last, MOST_OBSERVED)
        ]

    def _recent(self, start: datetime, end: datetime, now: datetime) -> list[_Rows]:
        if min(end, now) <= now - RECENT - timedelta(hours=1):
            return []
        return [self._history.get(now, lambda: self._rows(self._ask("history", {}), "history", now))[1]]

    def _ask(self, what: str, params: Mapping[str, str]) -> Mapping[str, Json]:
        """Ask for this zone by name and return the answer, which is for it."""
        lookup = {"disableCallerLookup": "true"}
        if self._version == "v3":
            lookup = {"shouldUseFallbackCallerLookup": "false"}
        asked = {
            "zone": self._area,
            "emissionFactorType": self._factor,
            "temporalGranularity": self._granularity,
            **lookup,
            **params,
        }
        path = f"/{self._version}/carbon-intensity/{what}"
        body = object_of(self._account.json(path, params=asked), self._where)
        self._check_answer(body, is_row=False)
        return body

    def _check_answer(self, fields: Mapping[str, Json], *, is_row: bool) -> None:
        """Compare what an answer or a row says of zone and factors; rows may leave it out."""
        zone = fields.get("zone", self._area if is_row else None)
        if zone != self._area:
            raise SignalUnavailable(
                f"{self._where} was answered for zone {shown(str(zone))}; set area as Electricity Maps calls it"
            )
        factor = fields.get("emissionFactorType", self._factor)
        if factor != self._factor:
            raise SignalUnavailable(
                f"{self._where} was answered with {shown(str(factor))} emission factors, not {self._factor} ones"
            )

    def _rows(self, body: Mapping[str, Json], field: str, now: datetime) -> _Rows:
        readings: list[Reading] = []
        for i, one in enumerate(list_of(body.get(field), f"{self._where}: {field}")):
            row = object_of(one, f"{self._where}: row {i + 1}")
            self._check_answer(row, is_row=True)
            updated = row.get("updatedAt")
            # Forecasts have no word on estimates; an observation that says nothing certain counts as one.
            is_sure = field == "forecast" or (
                row.get("isEstimated") is False and row.get("estimationMethod") in {None, ""}
            )
            readings.append(
                Reading(
                    time_of(row.get("datetime"), self._where, i, "datetime"),
                    number(row.get("carbonIntensity"), self._where, i, "carbonIntensity"),
                    not is_sure,
                    None if updated is None else time_of(updated, self._where, i, "updatedAt"),
                )
            )
        return _Rows(now, self._step_s(body), readings)

    def _step_s(self, body: Mapping[str, Json]) -> int:
        """Return the step of an answer, which may be coarser than what was asked for. Raises SignalUnavailable."""
        told = body.get("temporalGranularity", "hourly" if self._granularity == "hourly" else None)
        if told not in STEPS_S:
            raise SignalUnavailable(
                f"{self._where}: temporalGranularity is {shown(repr(told))}, not one of {[*STEPS_S]}"
            )
        self._coarser = None
        if told != self._granularity:
            self._coarser = (
                f"asked for granularity {self._granularity}, it answers {told}; does the plan include finer?"
            )
        return STEPS_S[told]

    def _observed(self, rows: _Rows, start: datetime | None, end: datetime) -> list[Observation]:
        return observations_of(
            rows.readings,
            self._origin,
            self._unit,
            where=self._where,
            step_s=rows.step_s,
            start=start,
            end=end,
            now=rows.read_at,
        )

    def _may(self, what: str, now: datetime) -> bool:
        """Say whether the plan has an endpoint, as far as is known; a refusal counts for an hour."""
        if now < self._refused_until.get(what, now):
            return False
        access = self._account.access(self._version)
        return access is None or permits(access.get(self._area), what)

    def _note_refusal(self, what: str, now: datetime, error: NotInPlan) -> None:
        logger.warning("%s: %s", self._where, error.message)
        self._refused_until[what] = now + timedelta(hours=1)

    def _access_notes(self, access: Mapping[str, Collection[str] | None] | None) -> list[SourceNote]:
        if access is None:
            return [SourceNote(NoteLevel.WARN, "the list of zones could not be read, so the plan is not known")]
        if self._area not in access:
            near = get_close_matches(self._area, access, n=3)
            hint = f"; did you mean {' or '.join(near)}?" if near else ""
            return [SourceNote(NoteLevel.FAIL, f"Electricity Maps has no zone {self._area}{hint}")]
        mine = access[self._area]
        if mine is None:
            return [
                SourceNote(NoteLevel.WARN, f"the list of zones does not say what the plan may read of {self._area}")
            ]
        can = [what for what in (_FORECAST, _HISTORY, _PAST) if permits(mine, what)]
        lacking: Iterable[tuple[str, str]] = (
            (_FORECAST, "no forecast; carbonq makes its own from what was observed"),
            (_PAST, "only the last 24 h; what changes later, or is missed for a day, is not had"),
        )
        notes = [
            SourceNote(NoteLevel.WARN, f"the plan has {word} ({what})") for what, word in lacking if what not in can
        ]
        if _HISTORY not in can and _PAST not in can:
            text = f"the plan may not read {_HISTORY} of {self._area}; change the plan, or the zone's area"
            return [SourceNote(NoteLevel.FAIL, text)]
        return [SourceNote(NoteLevel.OK, f"the plan reads {', '.join(can)} of {self._area}"), *notes]

    def _check_zone(self, zone: str) -> None:
        if zone != self._zone:
            raise SignalUnavailable(f"this source gives the rates of {self._zone}, not of {zone}")


def _hour(at: datetime) -> datetime:
    return at.replace(minute=0, second=0, microsecond=0)
