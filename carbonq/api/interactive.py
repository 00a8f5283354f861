"""Where interactive calls go: the cleanest region within their latency budget, by ``plan/routing.py``, from memory.

Keeps what the rule needs between calls: which region calls of a model go to now, when that changed, and in which region
each session is. Thread-safe; no database on the way.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from carbonq import telemetry
from carbonq.api.directory import Directory
from carbonq.api.load import Load
from carbonq.clock import Clock
from carbonq.errors import Unavailable
from carbonq.model import Model, Region, RegionState, Signal
from carbonq.plan.routing import DEFAULT_RULES, Candidate, Route, Rules, Session, Verdict, route, switches_within_hour
from carbonq.services.rates import RateCache
from carbonq.units import window_of

#: Sessions remembered at most, and for how long after their last call, in machine seconds.
_MOST_SESSIONS, _SESSION_KEPT_S = 100_000, 3600.0


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a call asks: its model, regions it may use (None: all), latency budget, session and estimated energy."""

    tenant: str
    model: Model
    allowed: Collection[str] | None
    slo_ms: float
    session: str | None = None
    call_uj: int | None = None


@dataclass(slots=True)
class _Standing:
    """Where calls of a model go now, and when that changed for carbon (grid times)."""

    region: str | None = None
    switched_at: deque[datetime] = field(default_factory=lambda: deque[datetime](maxlen=64))


class Router:
    """Answers where an interactive call goes, and why."""

    def __init__(
        self,
        directory: Directory,
        load: Load,
        rates: RateCache,
        clock: Clock,
        *,
        rules: Rules = DEFAULT_RULES,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start without history: the first call of a model goes to the cleanest region."""
        self._directory, self._load, self._rates, self._clock = directory, load, rates, clock
        self._rules, self._monotonic = rules, monotonic
        self._standings: dict[str, _Standing] = {}
        self._sessions: OrderedDict[tuple[str, str], tuple[str, float]] = OrderedDict()
        self._lock = threading.Lock()

    def choose(self, wanted: Wanted) -> tuple[Region, Route]:
        """Return the region for a call and how it was found.

        Raises InvalidRequest for an unknown region, Unavailable when no region can answer within the budget.
        """
        able = self._directory.serving(wanted.model, wanted.allowed)
        now = self._clock.now()
        names = {region.name for region in able}
        candidates = [self._candidate(region, wanted.model.name, now) for region in able]
        with self._lock:
            standing = self._standings.setdefault(wanted.model.name, _Standing())
            made = route(
                candidates,
                slo_ms=wanted.slo_ms,
                # A region that the call rules out is no place it was in: the answer would say that it is down.
                current=standing.region if standing.region in names else None,
                switches=switches_within_hour(standing.switched_at, now),
                session=self._session(wanted, names),
                rules=self._rules,
            )
            if made.region is None:
                raise Unavailable(
                    f"{made.sentence()} of {wanted.slo_ms:g} ms: {_figures(able, candidates)}",
                    code="no_region_available",
                    retry_after_s=2.0,
                )
            before = standing.region
            self._keep(wanted, standing, made, now)
            _count(made, None if standing.region == before else before)
        return next(region for region in able if region.name == made.region), made

    def _candidate(self, region: Region, model: str, now: datetime) -> Candidate:
        rate, _ = self._rates.book().lookup(Signal.MOER, region.zone, window_of(now))
        way_ms = self._directory.measured_ms(region.name)
        waits_s = self._load.wait_s(region.name, model, self._directory.lanes(region.name))
        engine_s = (self._load.engine_s(region.name, model) or 0.0) + waits_s
        return Candidate(
            region=region.name,
            latency_ms=(region.latency_ms if way_ms is None else way_ms) + 1000 * engine_s,
            moer_g_per_kwh=None if rate is None else float(rate.g_per_kwh),
            pue=float(region.pue),
            is_healthy=region.is_healthy and region.state is RegionState.ACTIVE,
        )

    def _session(self, wanted: Wanted, among: Collection[str]) -> Session | None:
        if wanted.session is None:
            return None
        region, at = self._sessions.get((wanted.tenant, wanted.session), ("", float("-inf")))
        if region not in among or self._monotonic() - at > _SESSION_KEPT_S:
            return None
        return Session(region, wanted.call_uj)

    def _keep(self, wanted: Wanted, standing: _Standing, made: Route, now: datetime) -> None:
        assert made.region is not None
        if wanted.session is not None:
            key = (wanted.tenant, wanted.session)
            self._sessions[key] = (made.region, self._monotonic())
            self._sessions.move_to_end(key)
            while len(self._sessions) > _MOST_SESSIONS:
                self._sessions.popitem(last=False)
        if made.pin_cost_g_per_kwh is None and wanted.allowed is None:
            # A call that is bound to a session or to some regions says nothing of where the others should go.
            if made.is_switch:
                standing.switched_at.append(now)
            standing.region = made.region


def route_view(made: Route) -> dict[str, Any]:
    """Return how a region was found, for the answer."""
    return {
        "reason": made.reason.value,
        "sentence": made.sentence(),
        "pin_cost_g_per_kwh": made.pin_cost_g_per_kwh,
        "pin_cost_g": made.pin_cost_g,
        "candidates": [
            {
                "region": one.region,
                "latency_ms": round(one.latency_ms, 3),
                "moer_pue_g_per_kwh": one.rate,
                "verdict": one.verdict.value,
            }
            for one in made.candidates
        ],
    }


def _count(made: Route, left: str | None) -> None:
    """Count a call by why it goes where, with what that costs in latency; ``left``: the region that is left by it."""
    assert made.region is not None
    telemetry.INTERACTIVE_ROUTES.labels(made.region, made.reason.value).inc()
    if left is not None:
        telemetry.INTERACTIVE_SWITCHES.labels(made.region, made.reason.value).inc()
    latencies_ms = {one.region: one.latency_ms for one in made.candidates if one.verdict is not Verdict.UNHEALTHY}
    telemetry.INTERACTIVE_EXTRA_SECONDS.observe((latencies_ms[made.region] - min(latencies_ms.values())) / 1000)


def _figures(regions: Collection[Region], candidates: Collection[Candidate]) -> str:
    states = {one.name: "down" if one.state is RegionState.ACTIVE else one.state.value for one in regions}
    said = [
        f"{one.region} {one.latency_ms:.0f} ms{'' if one.is_healthy else f', {states[one.region]}'}"
        for one in candidates
    ]
    return "; ".join(said) or "none serves the model"
