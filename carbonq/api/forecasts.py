"""GET /v1/forecasts: the newest forecast of a grid zone, exactly as its source issued it."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from fastapi import APIRouter

from carbonq.api import views
from carbonq.api.context import ApiDep, CallerDep
from carbonq.errors import InvalidRequest, NotFound
from carbonq.model import Signal
from carbonq.signals import Forecast
from carbonq.store import forecasts
from carbonq.units import WINDOW_S, iso, window_of

router = APIRouter()


@router.get("/v1/forecasts")
def get_forecast(
    api: ApiDep, _caller: CallerDep, zone: str | None = None, signal: Signal = Signal.MOER
) -> dict[str, Any]:
    """Return a zone's newest forecast; one that has none yet comes with empty ``values``."""
    zones = sorted({region.zone for region in api.directory.snapshot.regions.values()})
    if not zone:
        raise InvalidRequest(f"zone is missing; known zones: {', '.join(zones) or 'none'}", param="zone")
    if zone not in zones:
        raise NotFound(f"there is no zone {zone!r}; known zones: {', '.join(zones) or 'none'}", code="unknown_zone")
    now = api.clock.now()
    with api.db.read() as tx:
        newest = forecasts.newest_forecast(tx, zone, signal, now)
    return _view(zone, signal, newest, now)


def _view(zone: str, signal: Signal, forecast: Forecast | None, now: datetime) -> dict[str, Any]:
    common = {"object": "forecast", "zone": zone, "signal": signal.value, "now": iso(now), "unit": "gCO2e/kWh"}
    if forecast is None:
        nothing = dict.fromkeys(("source", "model", "gas", "method", "issued_at", "retrieved_at", "raw_unit"))
        return {**common, **nothing, "start_at": iso(window_of(now)), "step_s": WINDOW_S, "values": []}
    return {
        **common,
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
