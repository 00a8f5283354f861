"""ENTSO-E Transparency: average rates of a European area, computed from its generation by production type.

Observed: actual generation (A75), an hour to half a day late and revised; the last two days are read again. Foreseen:
day-ahead load (A65) less day-ahead wind and sun (A69), the rest shared over the dispatchable types as of late; marked
estimated, and counted as issued when it was fetched. ``entsoe_mix`` has the formulas and the factors; imports are
ignored, which every value says as its method.

The token is a query parameter and is shown nowhere. 400 calls a minute are allowed, and 10 minutes of silence follow
when there are more: carbonq stops itself before that, and keeps still for as long as it is told.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta

from carbonq.errors import SignalUnavailable
from carbonq.grid.entsoe_documents import LOAD, NO_DATA, NoData, Series, parse
from carbonq.grid.entsoe_mix import MODEL, Generation, fleet, foreseen, generation, intensities
from carbonq.grid.http import DEFAULT_RETRY, Http, Refused
from carbonq.grid.pace import Kept
from carbonq.grid.ranges import pieces
from carbonq.grid.readings import Origin, forecast_of, observations_of, scale_note, unit_of
from carbonq.model import Signal
from carbonq.signals import Forecast, NoteLevel, Observation, SourceNote

logger = logging.getLogger(__name__)

#: A 429 is a ban of ten minutes, which asking again would only prolong.
RETRY = DEFAULT_RETRY.copy_with(status_forcelist=(500, 502, 503, 504))
BAN_S = 600.0
#: Of the 400 calls in a minute; repeated ones count there too.
MOST_CALLS = 250
#: Machine seconds for which a refused token is not tried.
REST_S = 15 * 60.0

MOST_OBSERVED = timedelta(days=7)
#: What was generated is published late, and which types there are shows in a day or two.
LOOK_BACK = timedelta(hours=48)
FLEET = timedelta(hours=36)
AHEAD = timedelta(hours=48)
ASK_EVERY = timedelta(minutes=15)
READ_EVERY = timedelta(minutes=5)

METHOD = "lifecycle, imports ignored"
FORECAST_METHOD = "lifecycle, imports ignored, rest of load as of late"


class EntsoeAccount:
    """Calls with one token, counted for all zones; safe between threads. Raises as ``Http`` does, and NoData."""

    def __init__(
        self,
        http: Http,
        *,
        token: str,
        most_calls: int = MOST_CALLS,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare; nothing is sent. ``http`` should have the schedule ``RETRY``; ``most_calls`` are in a minute."""
        self.http = http
        self._token = token
        self._most_calls = most_calls
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._calls: deque[float] = deque()
        self._hold_until = 0.0
        self._hold_reason = ""

    def series(self, params: Mapping[str, str], area: str, where: str) -> list[Series]:
        """GET one document and return its series."""
        self._take_turn(where)
        try:
            text = self.http.text(
                "",
                params={"securityToken": self._token, **params},
                headers={"Accept": "application/xml"},
                secrets=("securityToken",),
            )
        except Refused as error:
            if NO_DATA.search(error.said):
                raise NoData(f"{where}: {error.said}") from error
            if error.status == 429:
                self._hold(max(BAN_S, error.retry_after_s), "ENTSO-E takes no more calls of this token for now (429)")
            elif error.status == 401:
                self._hold(REST_S, f"ENTSO-E refused the token with 401 ({error.said}); set accounts.entsoe.token")
            else:
                raise
            raise self._held(error.status, error) from error
        # A document may repeat what it was asked, the token too.
        return parse(text.replace(self._token, "***"), area, where)

    def _take_turn(self, where: str) -> None:
        with self._lock:
            now = self._monotonic()
            if now < self._hold_until:
                raise self._held(429, None)
            while self._calls and self._calls[0] <= now - 60:
                self._calls.popleft()
            if len(self._calls) >= self._most_calls:
                left_s = self._calls[0] + 60 - now
                raise SignalUnavailable(
                    f"{where}: {self._most_calls} calls in a minute are enough, as ENTSO-E shuts out who makes "
                    f"400; asked again in {left_s:.0f} s",
                    retry_after_s=left_s,
                )
            self._calls.append(now)

    def _hold(self, seconds: float, reason: str) -> None:
        with self._lock:
            self._hold_until, self._hold_reason = self._monotonic() + seconds, reason

    def _held(self, status: int, error: Refused | None) -> SignalUnavailable:
        left_s = max(0.0, self._hold_until - self._monotonic())
        text = f"{self._hold_reason}. Asked again in {left_s / 60:.0f} min"
        if error is None:
            return SignalUnavailable(text, retry_after_s=left_s)
        return Refused(text, status=status, said=error.said, body=error.body, retry_after_s=left_s)


class EntsoeSource:
    """One area for one zone; all zones share the account."""

    name = "entsoe"
    signal = Signal.AER

    def __init__(self, account: EntsoeAccount, *, zone: str, area: str) -> None:
        """Take the zone and the area's EIC code, e.g. 10Y1001A1001A82H."""
        self._account = account
        self._lease = account.http.lease()
        self._zone = zone
        self._area = area
        self._where = f"{self.name} {area}"
        self._unit = unit_of("gCO2eq/kWh", self._where)
        self._forecast: Kept[Forecast | None] = Kept(ASK_EVERY)
        self._generation: Kept[Generation | None] = Kept(READ_EVERY)
        self._reason: str | None = None

    def forecast(self, zone: str, now: datetime) -> Forecast | None:
        """Return what day-ahead load, wind and sun make foreseeable; None where one of them is not published."""
        self._check_zone(zone)
        if self._forecast.is_older(now):
            return None
        return self._forecast.get(now, lambda: self._ask_forecast(now))[1]

    def observations(self, zone: str, start: datetime, end: datetime, now: datetime) -> Sequence[Observation]:
        """Return the intensity of what was generated in ``[start, end)``, oldest first, as far as it is published."""
        self._check_zone(zone)
        asked_at, found = self._generated(start, now)
        if found is None:
            return ()
        return observations_of(
            intensities(found),
            self._origin(METHOD),
            self._unit,
            where=self._where,
            step_s=int(found.step.total_seconds()),
            start=start,
            end=end,
            now=asked_at,
        )

    def revisions(self, zone: str, since: datetime, now: datetime) -> Sequence[Observation]:
        """Return the last two days as they are now: the platform does not say what it changed."""
        return self.observations(zone, min(since, now - LOOK_BACK), now, now)

    def check(self, zone: str, now: datetime) -> Sequence[SourceNote]:
        """Say how late what was generated is, which parts a forecast lacks, and that imports are ignored."""
        try:
            seen = self.observations(zone, now - LOOK_BACK, now, now)
            lacking = self._reason
            found = self.forecast(zone, now)
        except SignalUnavailable as error:
            return [SourceNote(NoteLevel.FAIL, error.message)]
        notes: list[SourceNote] = []
        if seen:
            late = (now - seen[-1].window_at - timedelta(seconds=seen[-1].step_s)) / timedelta(hours=1)
            text = f"generation by type of {self._area} is read, {max(late, 0.0):.1f} h late, by {MODEL}"
            notes.append(SourceNote(NoteLevel.OK, text))
        else:
            text = f"no generation by type of {self._area} in the last {LOOK_BACK / timedelta(hours=1):.0f} h"
            notes.append(SourceNote(NoteLevel.FAIL, f"{text} ({lacking or 'every step lacks a type'})"))
        notes.append(
            SourceNote(NoteLevel.WARN, "imports and storage are left out: rates are of the area's own generation")
        )
        if found is None:
            notes.append(SourceNote(NoteLevel.WARN, f"it has no forecast ({self._reason or 'the fleet is not known'})"))
        scale = scale_note([one.g_per_kwh for one in seen])
        return [*notes, scale] if scale else notes

    def close(self) -> None:
        """Give up the share in the provider's connections."""
        self._lease.close()

    def _generated(self, start: datetime, now: datetime) -> tuple[datetime, Generation | None]:
        begin = _hour(min(start, now - LOOK_BACK))
        return self._generation.get(now, lambda: self._ask_generation(begin, now), since=begin)

    def _ask_generation(self, begin: datetime, now: datetime) -> Generation | None:
        found: list[Series] = []
        for first, last in pieces(begin, _hour(now) + timedelta(hours=1), MOST_OBSERVED):
            span = _span(first, last + timedelta(seconds=1))
            found += self._ask({"documentType": "A75", "processType": "A16", "in_Domain": self._area, **span})
        return generation(found)

    def _ask_forecast(self, now: datetime) -> Forecast | None:
        span = _span(_hour(now), _hour(now) + AHEAD)
        day_ahead = {"processType": "A01", **span}
        load = [
            one
            for one in self._ask({"documentType": "A65", "outBiddingZone_Domain": self._area, **day_ahead})
            if one.kind == LOAD
        ]
        if not load:
            return None
        sun_and_wind = generation(self._ask({"documentType": "A69", "in_Domain": self._area, **day_ahead}))
        actual = self._generated(now, now)[1]
        shares = None if actual is None else fleet(actual, now - FLEET)
        if sun_and_wind is None or shares is None:
            return None
        step, readings = foreseen(load, sun_and_wind, shares)
        return forecast_of(
            readings,
            self._origin(FORECAST_METHOD),
            self._unit,
            where=self._where,
            step_s=int(step.total_seconds()),
            issued_at=now,
            retrieved_at=now,
            is_estimated=True,
        )

    def _ask(self, params: Mapping[str, str]) -> list[Series]:
        """Return a document's series; none, and the reason kept, where the platform has no data."""
        try:
            return self._account.series(params, self._area, self._where)
        except NoData as error:
            if error.message != self._reason:
                logger.info("%s", error.message)
            self._reason = error.message
            return []

    def _origin(self, method: str) -> Origin:
        return Origin(self._zone, self.signal, self.name, MODEL, "co2e", method)

    def _check_zone(self, zone: str) -> None:
        if zone != self._zone:
            raise SignalUnavailable(f"this source gives the rates of {self._zone}, not of {zone}")


def _hour(at: datetime) -> datetime:
    return at.replace(minute=0, second=0, microsecond=0)


def _span(start: datetime, end: datetime) -> Mapping[str, str]:
    """Write a span as the platform reads it: UTC, to the minute."""
    begin, until = (at.astimezone(UTC).strftime("%Y%m%d%H%M") for at in (start, end))
    return {"periodStart": begin, "periodEnd": until}
