"""GET /v1/forecasts: what grid sources foretold, exactly as they issued it, and the outlook made of it."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Query

from carbonq.api import views
from carbonq.api.auth import needs
from carbonq.api.context import Api, ApiDep, CallerDep
from carbonq.api.openapi import gives, operation
from carbonq.api.shapes.planning import Forecast as ForecastShape
from carbonq.api.shapes.planning import IssuePage
from carbonq.api.shapes.planning import Outlook as OutlookShape
from carbonq.errors import InvalidRequest, NotFound
from carbonq.model import Region, Scope, Signal
from carbonq.services.outlook import load_outlook
from carbonq.signals import Forecast
from carbonq.store import forecasts, sources
from carbonq.store.sources import SourceState
from carbonq.units import WINDOW_S, iso, parse_iso, window_of

router = APIRouter(dependencies=[needs(Scope.READ)])

#: Issues on one page at most; each may hold 864 values.
MOST_ISSUES = 100

_ID = re.compile(r"fc_(\d{1,18})")


@router.get(
    "/v1/forecasts",
    **operation(
        "get_forecast", "planning", answers={200: gives(ForecastShape)}, errors=("unknown_source", "unknown_zone")
    ),
)
def get_forecast(
    api: ApiDep,
    _caller: CallerDep,
    *,
    zone: str | None = None,
    signal: Signal = Signal.MOER,
    source: str | None = None,
    at: str | None = None,
) -> dict[str, Any]:
    """Return a zone's forecast in force now, or ``at`` a time; one that has none yet comes with empty ``values``.

    By default of the source that is used now: the most preferred one that is not stale.
    """
    known, _ = _zone(api, zone)
    now = api.clock.now()
    moment = _time(at, "at", now)
    with api.db.read() as tx:
        states = [state for state in sources.states(tx, [known]) if state.signal is signal]
        chosen = source or sources.choose(states, known, signal, now, api.max_stale_s)[1]
        found = forecasts.newest_forecast(tx, known, signal, moment, source=chosen)
        names = forecasts.sources_of(tx, known, signal)
    if source is not None and source not in {*names, *(state.source for state in states)}:
        raise NotFound(f"{known} has no source {source!r}; it has {', '.join(names) or 'none'}", code="unknown_source")
    shown = {"object": "forecast", **_common(known, signal, now), **_issue(found, now)}
    return shown | {"sources": [_state(state, now, api.max_stale_s) for state in states]}


@router.get(
    "/v1/forecasts/issues",
    **operation("list_issues", "planning", answers={200: gives(IssuePage)}, errors=("unknown_zone",)),
)
def list_issues(
    api: ApiDep,
    _caller: CallerDep,
    *,
    zone: str | None = None,
    signal: Signal = Signal.MOER,
    source: str | None = None,
    start: Annotated[str | None, Query(alias="from")] = None,
    end: Annotated[str | None, Query(alias="to")] = None,
    after: str | None = None,
    limit: Annotated[int, Query(ge=1, le=MOST_ISSUES)] = 20,
) -> dict[str, Any]:
    """List a zone's forecasts as issued, newest first; ``from`` and ``to`` (not included) bound the time of issue."""
    known, _ = _zone(api, zone)
    now = api.clock.now()
    number = None if after is None else _number(after)
    with api.db.read() as tx:
        found = forecasts.page_of_issues(
            tx,
            known,
            signal,
            source=source,
            start=None if start is None else _time(start, "from", now),
            end=None if end is None else _time(end, "to", now),
            after=number,
            limit=limit + 1,
        )
    data = [
        {"id": f"fc_{key}", "object": "forecast", "zone": known, "signal": signal.value, **_issue(issue, now)}
        for key, issue in found[:limit]
    ]
    return views.page_view(data, has_more=len(found) > limit) | _common(known, signal, now)


@router.get(
    "/v1/forecasts/outlook",
    **operation("get_outlook", "planning", answers={200: gives(OutlookShape)}, errors=("unknown_zone",)),
)
def get_outlook(
    api: ApiDep,
    _caller: CallerDep,
    zone: str | None = None,
    signal: Signal | None = None,
    hours: Annotated[float, Query(gt=0, le=168)] = 24,
) -> dict[str, Any]:
    """Return what the planner thinks of a zone's coming windows: value, spread and basis of each.

    By default of the signal that the installation decides by.
    """
    known, region = _zone(api, zone)
    now = api.clock.now()
    with api.db.read() as tx:
        decides_by = sources.decision_signal(tx)
        states = sources.states(tx, [known])
    wanted = signal or decides_by
    windows = max(1, int(hours * 3600) // WINDOW_S)
    made = load_outlook(api.db, [region], now, windows, api.max_stale_s, signal=wanted)
    return {
        "object": "outlook",
        **_common(known, wanted, now),
        "decides_by": decides_by.value,
        "source": sources.choose(states, known, wanted, now, api.max_stale_s)[1],
        "issued_at": views.time_or_none(made.issued_at[0]),
        "is_down": made.is_down,
        "start_at": iso(made.window_at(0)),
        "step_s": WINDOW_S,
        "values": [views.decimal_or_none(made.rate(0, window)) for window in range(windows)],
        "spread": [None if np.isnan(one) else round(float(one), 1) for one in made.spread[0]],
        "basis": [made.basis_of(0, window).value for window in range(windows)],
    }


def _zone(api: Api, zone: str | None) -> tuple[str, Region]:
    regions = {region.zone: region for region in api.directory.snapshot.regions.values()}
    known = ", ".join(sorted(regions)) or "none"
    if not zone:
        raise InvalidRequest(f"zone is missing; known zones: {known}", param="zone")
    if zone not in regions:
        raise NotFound(f"there is no zone {zone!r}; known zones: {known}", code="unknown_zone")
    return zone, regions[zone]


def _time(text: str | None, param: str, now: datetime) -> datetime:
    if text is None:
        return now
    try:
        return parse_iso(text)
    except ValueError as error:
        raise InvalidRequest(f"{param} is no time: {error}", param=param) from error


def _number(after: str) -> int:
    found = _ID.fullmatch(after)
    if found is None:
        raise InvalidRequest(f"after is {after!r}, not the id of a forecast such as fc_1", param="after")
    return int(found[1])


def _common(zone: str, signal: Signal, now: datetime) -> dict[str, Any]:
    return {"zone": zone, "signal": signal.value, "now": iso(now), "unit": "gCO2e/kWh"}


def _issue(forecast: Forecast | None, now: datetime) -> dict[str, Any]:
    if forecast is None:
        nothing = dict.fromkeys(("source", "model", "gas", "method", "issued_at", "retrieved_at", "raw_unit"))
        return {**nothing, "is_estimated": None, "start_at": iso(window_of(now)), "step_s": WINDOW_S, "values": []}
    return {
        "source": forecast.source,
        "model": forecast.model,
        "gas": forecast.gas,
        "method": forecast.method,
        "issued_at": iso(forecast.issued_at),
        "retrieved_at": iso(forecast.retrieved_at),
        "raw_unit": forecast.raw_unit,
        "is_estimated": forecast.is_estimated,
        "start_at": iso(forecast.start_at),
        "step_s": forecast.step_s,
        "values": [views.decimal_or_none(value) for value in forecast.values],
    }


def _state(state: SourceState, now: datetime, max_stale_s: float) -> dict[str, Any]:
    """Show how a source does; what its provider said went wrong stays with the operator (doctor, log)."""
    age = None if state.fresh_at is None else max(timedelta(0), now - state.fresh_at).total_seconds()
    return {
        "source": state.source,
        "position": state.position,
        "fresh_at": views.time_or_none(state.fresh_at),
        "age_s": age,
        "is_stale": state.is_stale(now, max_stale_s),
        "is_down": state.is_down,
        "failures": state.failures,
        "last_ok_at": views.time_or_none(state.last_ok_at),
        "last_error_at": views.time_or_none(state.last_error_at),
        "may_settle": state.may_settle,
    }
