"""WattTime v3: marginal rates (``co2_moer``) of a region, with forecasts as issued and revisions. Needs an account.

Forecasts come from ``/v3/forecast`` (earlier issues from ``/v3/forecast/historical``), observations and what was
changed in them from ``/v3/historical``. Both ends of WattTime's ranges are inclusive, so a piece ends one second before
the next begins. Units, region and signal of every answer are checked: the signal index is a percentile in the same
clothes, and is refused by name.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import cast

from carbonq.errors import SignalUnavailable
from carbonq.grid.account import Account
from carbonq.grid.http import Refused
from carbonq.grid.ranges import pieces, stamp
from carbonq.grid.readings import (
    Origin,
    Reading,
    Unit,
    forecast_of,
    list_of,
    number,
    object_of,
    observations_of,
    refuse_index,
    scale_note,
    time_of,
    unit_of,
)
from carbonq.grid.replies import Json, shown
from carbonq.model import Signal
from carbonq.signals import Forecast, NoteLevel, Observation, SourceNote

logger = logging.getLogger(__name__)

SIGNAL_TYPE = "co2_moer"
#: WattTime allows 32 days of observations and 24 h of issue times in a call.
MOST_OBSERVED = timedelta(days=31)
MOST_ISSUED = timedelta(hours=24)
#: A forecast stamped this far ahead of the grid clock is still the present one: clocks differ.
MAX_SKEW = timedelta(minutes=5)
#: How far back an earlier issue is looked for: they come every 5 minutes, with holes.
_LOOK_BACK = timedelta(minutes=30)
#: Words of warnings which say that the data are not what was asked for.
_SUBSTITUTED = re.compile(r"substitut|imput|fall.?back|back.?up|missing|unavailab|stale|outdated|delay|persist", re.I)


class NotReadable(SignalUnavailable):
    """The account's plan does not include this."""


class WattTimeSource:
    """One region for one zone; all zones share the account."""

    name = "watttime-v3"
    signal = Signal.MOER

    def __init__(
        self,
        account: Account,
        *,
        zone: str,
        area: str | None = None,
        horizon_h: int = 72,
        model: str | None = None,
        revised_days: int = 93,
    ) -> None:
        """Take the zone and the region's name at WattTime, the zone's own where ``area`` is None.

        ``revised_days`` is how far back ``revisions`` looks for changes. Raises ConfigError for a signal-index address.
        """
        refuse_index(account.http.base_url)
        self._account = account
        self._lease = account.http.lease()
        self._zone = zone
        self._area = area or zone
        self._horizon_h = horizon_h
        self._model = model
        self._revised = timedelta(days=revised_days)
        self._where = f"{self.name} {self._area}"
        self._warnings: Sequence[str] = ()
        self._newest_at: datetime | None = None
        self._has_none_until: datetime | None = None

    def forecast(self, zone: str, now: datetime) -> Forecast | None:
        """Return the newest forecast issued by ``now``, an earlier issue where the newest is later than that.

        None where the account may read no forecast of the region; that is asked again each hour.
        """
        self._check_zone(zone)
        if self._has_none_until is not None and now < self._has_none_until:
            return None
        try:
            return self._forecast_by(zone, now)
        except NotReadable as error:
            logger.warning("%s; there is no forecast", error.message)
            self._has_none_until = now + timedelta(hours=1)
            return None

    def _forecast_by(self, zone: str, now: datetime) -> Forecast | None:
        if self._newest_at is None or self._newest_at <= now:
            found = self._current(now)
            self._newest_at = found.issued_at
            if found.issued_at <= now + MAX_SKEW:
                return found
        earlier = self.issues(zone, now - _LOOK_BACK, now + timedelta(seconds=1), now)
        return max((one for one in earlier if one.issued_at <= now), key=lambda one: one.issued_at, default=None)

    def issues(self, zone: str, start: datetime, end: datetime, now: datetime) -> Iterator[Forecast]:
        """Yield the forecasts issued in ``[start, end)``, oldest first, a day of issues for each call."""
        self._check_zone(zone)
        for first, last in pieces(start, end, MOST_ISSUED):
            params = {"start": stamp(first), "end": stamp(last), "horizon_hours": str(self._horizon_h)}
            data, meta = self._ask("/v3/forecast/historical", params)
            issues: list[tuple[datetime, Json]] = []
            for i, row in enumerate(data):
                issue = object_of(row, f"{self._where}: issue {i + 1}")
                issues.append((time_of(issue.get("generated_at"), self._where, i, "generated_at"), issue))
            for issued_at, issue in sorted(issues, key=lambda one: one[0]):
                rows = list_of(issue.get("forecast"), f"{self._where}: forecast")
                if rows:
                    yield self._forecast(rows, meta, issued_at, now)

    def observations(self, zone: str, start: datetime, end: datetime, now: datetime) -> Sequence[Observation]:
        """Return what is published for ``[start, end)``; imputed values are estimated and never settle."""
        self._check_zone(zone)
        # Regions with hourly values have rows that begin before the span.
        return self._observed(start.replace(minute=0, second=0, microsecond=0), min(end, now), now, {}, start=start)

    def revisions(self, zone: str, since: datetime, now: datetime) -> Sequence[Observation]:
        """Return the values of the last ``revised_days`` that WattTime changed at or after ``since``."""
        self._check_zone(zone)
        return self._observed(now - self._revised, now, now, {"updated_since": stamp(since)}, start=None)

    def check(self, zone: str, now: datetime) -> Sequence[SourceNote]:
        """Say what the account may read of the region, and how its forecast looks."""
        try:
            self._check_zone(zone)
            notes = self._access()
            if any(note.level is NoteLevel.FAIL for note in notes):
                return notes
            found = self.forecast(zone, now)
        except SignalUnavailable as error:
            return [SourceNote(NoteLevel.FAIL, error.message)]
        notes += [SourceNote(NoteLevel.WARN, f"WattTime warns: {text}") for text in self._warnings]
        scale = scale_note(found.values) if found else None
        return [*notes, scale] if scale else notes

    def close(self) -> None:
        """Give up the share in the provider's connections."""
        self._lease.close()

    def _current(self, now: datetime) -> Forecast:
        data, meta = self._ask("/v3/forecast", {"horizon_hours": str(self._horizon_h)})
        issued_at = time_of(meta.get("generated_at"), f"{self._where}: meta", 0, "generated_at")
        return self._forecast(data, meta, issued_at, now)

    def _forecast(self, rows: Sequence[Json], meta: Mapping[str, Json], issued_at: datetime, now: datetime) -> Forecast:
        unit, step_s = self._scale(meta)
        return forecast_of(
            self._readings(rows),
            self._origin(meta, unit),
            unit,
            where=self._where,
            step_s=step_s,
            issued_at=issued_at,
            retrieved_at=now,
            is_estimated=any(_SUBSTITUTED.search(text) for text in self._warnings),
        )

    def _observed(
        self, first: datetime, end: datetime, now: datetime, params: Mapping[str, str], *, start: datetime | None
    ) -> list[Observation]:
        found: list[Observation] = []
        for begin, last in pieces(first, end, MOST_OBSERVED):
            span = {"start": stamp(begin), "end": stamp(last), "include_imputed_marker": "true"}
            data, meta = self._ask("/v3/historical", {**span, **params})
            unit, step_s = self._scale(meta)
            is_doubtful = any(_SUBSTITUTED.search(text) for text in self._warnings)
            found += observations_of(
                self._readings(data, is_doubtful=is_doubtful),
                self._origin(meta, unit),
                unit,
                where=self._where,
                step_s=step_s,
                start=start,
                end=end,
                now=now,
            )
        return found

    def _readings(self, rows: Sequence[Json], *, is_doubtful: bool = False) -> list[Reading]:
        """Read rows; ``is_doubtful`` is said of those that do not say themselves whether they are imputed."""
        readings: list[Reading] = []
        for i, one in enumerate(rows):
            row = object_of(one, f"{self._where}: row {i + 1}")
            imputed, updated = row.get("imputed_data_used"), row.get("last_updated")
            readings.append(
                Reading(
                    time_of(row.get("point_time"), self._where, i, "point_time"),
                    number(row.get("value"), self._where, i, "value"),
                    is_doubtful if imputed is None else imputed is not False,
                    None if updated is None else time_of(updated, self._where, i, "last_updated"),
                )
            )
        return readings

    def _ask(self, path: str, params: Mapping[str, str]) -> tuple[Sequence[Json], Mapping[str, Json]]:
        """Return an answer's rows and meta, which is for this region and signal; remember its warnings."""
        asked = {"region": self._area, "signal_type": SIGNAL_TYPE, **params}
        if self._model is not None:
            asked["model"] = self._model
        try:
            body = object_of(self._account.json(path, params=asked), self._where)
        except Refused as error:
            if error.status != 403 or "scope" not in error.said.lower():
                raise
            raise NotReadable(
                f"WattTime: this account may not read {path} of {self._area} ({error.said}); free accounts read "
                "CAISO_NORTH only",
                retry_after_s=error.retry_after_s,
            ) from error
        meta = object_of(body.get("meta"), f"{self._where}: meta")
        for field, value in (("region", self._area), ("signal_type", SIGNAL_TYPE)):
            if meta.get(field) != value:
                raise SignalUnavailable(f"{self._where} was answered for {field} {shown(str(meta.get(field)))}")
        self._scale(meta)
        self._warn(meta.get("warnings"))
        return list_of(body.get("data"), f"{self._where}: data"), meta

    def _warn(self, warnings: Json) -> None:
        texts: list[str] = []
        for one in cast("list[Json]", warnings) if isinstance(warnings, list) else []:
            fields = cast("Mapping[str, Json]", one) if isinstance(one, dict) else {"message": one}
            texts.append(shown(": ".join(str(fields[key]) for key in ("type", "message") if key in fields)))
        if texts and texts != self._warnings:
            logger.warning("%s came with a warning: %s", self._where, "; ".join(texts))
        self._warnings = texts

    def _scale(self, meta: Mapping[str, Json]) -> tuple[Unit, int]:
        step_s = meta.get("data_point_period_seconds")
        if isinstance(step_s, bool) or not isinstance(step_s, int):
            raise SignalUnavailable(f"{self._where}: data_point_period_seconds is {shown(repr(step_s))}, not seconds")
        return unit_of(meta.get("units"), self._where), step_s

    def _origin(self, meta: Mapping[str, Json], unit: Unit) -> Origin:
        model = meta.get("model")
        date = cast("Mapping[str, Json]", model).get("date") if isinstance(model, dict) else model
        return Origin(
            self._zone, self.signal, self.name, None if date is None else shown(str(date)), unit.gas or "co2", None
        )

    def _check_zone(self, zone: str) -> None:
        if zone != self._zone:
            raise SignalUnavailable(f"this source gives the rates of {self._zone}, not of {zone}")

    def _access(self) -> list[SourceNote]:
        try:
            mine = self._regions({"signal_type": SIGNAL_TYPE, "region": self._area}).get(self._area)
        except Refused as error:
            if error.status not in {400, 403, 404, 422}:
                raise
            mine = None
        if mine is None:
            readable = sorted(self._regions({"signal_type": SIGNAL_TYPE}))
            listed = f"it may read {', '.join(readable[:8]) or 'none'}"
            more = f" and {len(readable) - 8} more" if len(readable) > 8 else ""
            return [
                SourceNote(
                    NoteLevel.FAIL,
                    f"the WattTime account may not read {SIGNAL_TYPE} of {self._area}; {listed}{more} (free accounts "
                    "read CAISO_NORTH only): change the plan, or the zone's area",
                )
            ]
        return access_notes(self._area, mine, self._model)

    def _regions(self, params: Mapping[str, str]) -> dict[str, Mapping[str, Json]]:
        where = f"{self.name} my-access"
        body = object_of(self._account.json("/v3/my-access", params=params), where)
        found: dict[str, Mapping[str, Json]] = {}
        for signal in list_of(body.get("signal_types"), where):
            fields = object_of(signal, where)
            if fields.get("signal_type") == SIGNAL_TYPE:
                regions = [object_of(one, where) for one in list_of(fields.get("regions"), where)]
                found |= {str(one.get("region")): one for one in regions}
        return found


def access_notes(area: str, region: Mapping[str, Json], model: str | None) -> list[SourceNote]:
    """Say what one region's entry in my-access allows; ``model`` is the one asked for. Raises SignalUnavailable."""
    where = f"my-access of {area}"
    endpoints: dict[str, list[Mapping[str, Json]]] = {}
    for one in list_of(region.get("endpoints"), where):
        fields = object_of(one, where)
        models = [object_of(entry, where) for entry in list_of(fields.get("models"), where)]
        endpoints[str(fields.get("endpoint")).strip("/")] = models
    notes: list[SourceNote] = []
    if "v3/forecast" not in endpoints:
        text = f"the account reads no forecast of {area}; carbonq makes its own from what was observed"
        notes.append(SourceNote(NoteLevel.WARN, text))
    if "v3/historical" not in endpoints:
        text = f"the account reads no observations of {area}; its entries stay provisional"
        notes.append(SourceNote(NoteLevel.WARN, text))
    dates = sorted({str(one.get("model")) for models in endpoints.values() for one in models})
    if model is not None and model not in dates:
        text = f"{area} has no model {model}; it has {', '.join(dates) or 'none'}"
        return [*notes, SourceNote(NoteLevel.FAIL, text)]
    newest = model or (dates[-1] if dates else "none")
    kinds = {str(one.get("type")) for models in endpoints.values() for one in models if one.get("model") == newest}
    for kind in sorted(kinds & {"proxy", "average"}):
        text = f"the rates of {area} come from a model of type {kind}, which does not follow the grid's own data"
        notes.append(SourceNote(NoteLevel.WARN, text))
    period_s = region.get("data_point_period_seconds")
    text = f"the account reads {SIGNAL_TYPE} of {area}: every {period_s} s, model {newest}"
    return [SourceNote(NoteLevel.OK, text), *notes]
