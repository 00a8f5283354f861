"""GET /v1/regions: the places that run work, whether they can now, and what their grid emits now."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from fastapi import APIRouter

from carbonq.api import views
from carbonq.api.auth import needs
from carbonq.api.context import Api, ApiDep, CallerDep
from carbonq.api.openapi import gives, operation
from carbonq.api.shapes.planning import RegionPage
from carbonq.model import Rate, RateKind, RateStatus, Region, Scope, Signal
from carbonq.ratebook import RateBook
from carbonq.store import dispatch, installation, rates, sources
from carbonq.store.sources import SourceState
from carbonq.units import WINDOW, iso, plain, window_of

router = APIRouter(dependencies=[needs(Scope.READ)])


@router.get("/v1/regions", **operation("list_regions", "planning", answers={200: gives(RegionPage)}))
def list_regions(api: ApiDep, _caller: CallerDep) -> dict[str, Any]:
    """List the regions with state, health, slots and the present MOER and AER, each with its own stamps."""
    now = api.clock.now()
    found = api.directory.snapshot.regions
    book = _rates_now(api, list(found.values()), now)
    with api.db.read() as tx:
        kept = installation.load(tx)
        taken = dispatch.occupied(tx)
    digest = None if kept is None else kept.settings_digest
    data = [
        _view(api, region, book, now) | {"slots_taken": taken[region.name]} | _workers(api, region, digest)
        for region in found.values()
    ]
    page = views.page_view(data, has_more=False)
    return page | {"clock": views.clock_view(api.clock), "decides_by": book.decides_by.value}


@dataclass(frozen=True, slots=True)
class _Now:
    """The rates of now, and where they come from."""

    rates: RateBook
    states: list[SourceState]
    decides_by: Signal


def _rates_now(api: Api, regions: list[Region], now: datetime) -> _Now:
    zones = {region.name: region.zone for region in regions}
    span = rates.Span(window_of(now), window_of(now) + WINDOW)
    wanted = sorted(set(zones.values()))
    with api.db.read() as tx:
        known = [*rates.observed(tx, wanted, span), *rates.foretold(tx, wanted, span, now=now)]
        standings = sources.standings(tx, wanted, now=now, max_stale_s=api.max_stale_s)
        states = sources.states(tx, wanted)
        decides_by = sources.decision_signal(tx)
    book = RateBook.of(zones, known, now=now, settle_after_s=api.settle_after_s, standings=standings)
    return _Now(book, states, decides_by)


def _view(api: Api, region: Region, found: _Now, now: datetime) -> dict[str, Any]:
    book = found.rates
    return {
        "id": region.name,
        "object": "region",
        "name": region.name,
        "zone": region.zone,
        "state": region.state.value,
        "is_healthy": region.is_healthy,
        "live_workers": len(api.directory.snapshot.workers.get(region.name, ())),
        "slots": region.slots,
        "realtime_slots": region.realtime_slots,
        "maintenance": [
            {"start_at": iso(one.start_at), "end_at": iso(one.end_at), "slots": one.slots}
            for one in sorted(region.maintenance, key=lambda one: one.start_at)
            if one.end_at > now
        ],
        "models": [name for name in api.models if region.serves(name)],
        "hardware": region.hardware,
        "ownership": region.ownership,
        "pue": plain(region.pue),
        "pue_source": region.pue_source,
        "latency_ms": {"stated": region.latency_ms, "measured": api.directory.measured_ms(region.name)},
        "is_home": region.name == api.home_region,
        "moer": _rate_view(api, *book.lookup(Signal.MOER, region.zone, now), now),
        "aer": _rate_view(api, *book.lookup(Signal.AER, region.zone, now), now),
        "sources": {signal.value: _sources(api, region, signal, found.states, now) for signal in Signal},
    }


def _sources(
    api: Api, region: Region, signal: Signal, states: list[SourceState], now: datetime
) -> list[dict[str, Any]]:
    """Show the sources of one signal, preferred first; none: that book of the region stays empty."""
    mine = [state for state in states if (state.zone, state.signal) == (region.zone, signal)]
    return [{"source": one.source, "is_stale": one.is_stale(now, api.max_stale_s)} for one in mine]


def _workers(api: Api, region: Region, digest: str | None) -> dict[str, Any]:
    """Show who serves a region; ``agrees``: whether it runs with the installation's present settings."""
    workers = api.directory.snapshot.workers.get(region.name, ())
    shown = [
        {
            "id": worker.worker_id,
            "host": worker.host,
            "pid": worker.pid,
            "software_version": worker.software_version,
            "clock_offset_s": worker.clock_offset_s,
            "agrees": None if None in {digest, worker.settings_digest} else worker.settings_digest == digest,
            "gpus": list(worker.gpus),
            "last_seen_at": iso(worker.last_seen_at),
        }
        for worker in workers
    ]
    return {"workers": shown}


def _rate_view(api: Api, rate: Rate | None, status: RateStatus, now: datetime) -> dict[str, Any] | None:
    """Show a rate; null where there is none, never 0."""
    if rate is None:
        return None
    said_at = rate.issued_at if rate.kind is RateKind.FORECAST else rate.retrieved_at
    return {
        "g_per_kwh": plain(rate.g_per_kwh),
        "gas": rate.gas,
        "status": status.value,
        "kind": rate.kind.value,
        "source": rate.source,
        "zone": rate.zone,
        "window_at": iso(rate.window_at),
        "step_s": rate.step_s,
        "issued_at": views.time_or_none(rate.issued_at),
        "retrieved_at": iso(rate.retrieved_at),
        "is_estimated": rate.is_estimated,
        "is_stale": said_at is not None and now - said_at > timedelta(seconds=api.max_stale_s),
    }
