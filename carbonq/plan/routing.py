"""Which region answers an interactive call: within its latency budget the cleanest one, without flapping. Pure.

Rates are the current MOER (gCO2e/kWh); regions are compared by MOER x PUE. A region without a rate counts as the worst
one that is known, so that nothing moves to it for carbon. Latencies are milliseconds of the whole answer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from carbonq.units import UJ_PER_KWH

_HOUR = timedelta(hours=1)


class Reason(StrEnum):
    """Why a call goes where it goes."""

    CLEANEST = "cleanest"  # the lowest rate within the latency budget
    STAYED = "stayed"  # the current region: what a move would gain is below the threshold
    SWITCH_LIMIT = "switch_limit"  # the current region: it has been left too often within the hour
    PINNED = "pinned"  # the session's region; what that costs is counted
    UNPINNED = "unpinned"  # staying in the session's region would cost more than building its state anew
    FORCED = "forced"  # the current or the session's region is down or too slow; the cleanest of the others
    NEAREST = "nearest"  # no rate is known: the nearest healthy region
    NONE = "none"  # no healthy region keeps within the budget


class Verdict(StrEnum):
    """What was found of one candidate."""

    CHOSEN = "chosen"
    DIRTIER = "dirtier"
    NO_RATE = "no_rate"
    PASSED_OVER = "passed_over"  # cleaner than the chosen one, but the call stays where it is
    TOO_SLOW = "too_slow"
    UNHEALTHY = "unhealthy"


@dataclass(frozen=True, slots=True)
class Rules:
    """When the current region is left: for a gain above both thresholds, and not too often.

    ``min_gain`` is a share of the current region's rate, ``min_gain_g_per_kwh`` is gCO2e/kWh, ``max_switches`` counts
    the switches for carbon in any hour.
    """

    min_gain: float = 0.08
    min_gain_g_per_kwh: float = 5.0
    max_switches: int = 4


DEFAULT_RULES = Rules()


@dataclass(frozen=True, slots=True)
class Candidate:
    """A region that could answer; ``moer_g_per_kwh`` None means that its rate is not known now."""

    region: str
    latency_ms: float
    moer_g_per_kwh: float | None
    pue: float = 1.0
    is_healthy: bool = True

    @property
    def rate(self) -> float | None:
        """MOER x PUE in gCO2e/kWh; None where it is not known."""
        moer = self.moer_g_per_kwh
        return None if moer is None or not math.isfinite(moer) else moer * self.pue


@dataclass(frozen=True, slots=True)
class Session:
    """State of a conversation that lies in a region (a warm cache, say).

    ``call_uj`` is the energy of this call and ``rebuild_uj`` what building the state anew elsewhere takes; None where
    that is not known, and then the session never leaves a region that can answer.
    """

    region: str
    call_uj: int | None = None
    rebuild_uj: int | None = None


@dataclass(frozen=True, slots=True)
class Judged:
    """A candidate and what was found of it; ``rate`` is MOER x PUE, None where unknown."""

    region: str
    latency_ms: float
    rate: float | None
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Route:
    """Where the call goes (None: nowhere) and why; ``candidates`` are in the order of preference by carbon.

    ``is_switch``: the current region is left for carbon, which counts against the limit. ``pin_cost_g_per_kwh`` is how
    much dirtier the session's region is than the best one (never below 0), ``pin_cost_g`` the same for this call's
    energy; None where no session holds the call or it is not known.
    """

    region: str | None
    reason: Reason
    candidates: tuple[Judged, ...]
    is_switch: bool = False
    pin_cost_g_per_kwh: float | None = None
    pin_cost_g: float | None = None

    def sentence(self) -> str:
        """Say it to a person."""
        rates = {one.region: one.rate for one in self.candidates}
        known = self.region is not None and rates[self.region] is not None
        here = f"{self.region} ({rates[self.region]:.0f} g/kWh)" if self.region and known else f"{self.region}"
        best = self.candidates[0] if self.candidates else None
        there = f"{best.region} ({best.rate:.0f} g/kWh)" if best and best.rate is not None else "the best"
        pin = "" if not self.pin_cost_g_per_kwh else f", {self.pin_cost_g_per_kwh:.0f} g/kWh above {there}"
        return {
            Reason.CLEANEST: f"{here} is the cleanest region within the latency budget",
            Reason.STAYED: f"stays in {here}: what {there} would gain is too little for a move",
            Reason.SWITCH_LIMIT: f"stays in {here} although {there} is cleaner: too many moves within the hour",
            Reason.PINNED: f"stays with its session in {here}{pin}",
            Reason.UNPINNED: f"leaves its session for {here}: staying would cost more than building it anew",
            Reason.FORCED: f"goes to {here}: the region it was in is down or too slow",
            Reason.NEAREST: f"no rate is known: {here} is the nearest healthy region",
            Reason.NONE: "no healthy region answers within the latency budget",
        }[self.reason]


def switches_within_hour(switched_at: Iterable[datetime], now: datetime) -> int:
    """Count the switches of the hour that ends now; those exactly an hour ago no longer count."""
    return sum(now - _HOUR < at <= now for at in switched_at)


def route(
    candidates: Sequence[Candidate],
    *,
    slo_ms: float,
    current: str | None = None,
    switches: int = 0,
    session: Session | None = None,
    rules: Rules = DEFAULT_RULES,
) -> Route:
    """Choose the region for one call; candidates' names are distinct. Same input, same answer, in any order.

    ``slo_ms`` is the call's latency budget; ``current`` where calls of this kind go now; ``switches`` how often that
    changed for carbon within the last hour (``switches_within_hour``). A region that is down or too slow is left at
    once, whatever the limits say.
    """
    able = {one.region: one for one in candidates if one.is_healthy and one.latency_ms <= slo_ms}
    known = [one.rate for one in able.values() if one.rate is not None]
    worst = max(known, default=0.0)
    costs = {name: worst if one.rate is None else one.rate for name, one in able.items()}
    ranked = sorted(able, key=lambda name: (costs[name], able[name].rate is None, able[name].latency_ms, name))
    pin_g = None
    if not ranked:
        chosen, reason = None, Reason.NONE
    elif session is not None and session.region in able:
        chosen, reason = session.region, Reason.PINNED
        if known:
            pin_g = costs[chosen] - costs[ranked[0]]
            if _is_cheaper_anew(session, pin_g, costs[ranked[0]]):
                chosen, reason, pin_g = ranked[0], Reason.UNPINNED, None
    elif not known:
        chosen, reason = min(able, key=lambda name: (able[name].latency_ms, name)), Reason.NEAREST
    elif session is not None or (current is not None and current not in able):
        chosen, reason = ranked[0], Reason.FORCED
    else:
        chosen, reason = _with_hysteresis(ranked[0], current, costs, switches, rules)
    return Route(
        region=chosen,
        reason=reason,
        candidates=_judged(candidates, ranked, costs, chosen, slo_ms),
        is_switch=reason is Reason.CLEANEST and current is not None and chosen != current,
        pin_cost_g_per_kwh=pin_g,
        pin_cost_g=None if pin_g is None or not session or session.call_uj is None else _grams(session.call_uj, pin_g),
    )


def _with_hysteresis(
    best: str, current: str | None, costs: Mapping[str, float], switches: int, rules: Rules
) -> tuple[str, Reason]:
    if current is None or current == best:
        return best, Reason.CLEANEST
    gain = costs[current] - costs[best]
    if gain <= max(rules.min_gain * costs[current], rules.min_gain_g_per_kwh):
        return current, Reason.STAYED
    return (current, Reason.SWITCH_LIMIT) if switches >= rules.max_switches else (best, Reason.CLEANEST)


def _is_cheaper_anew(session: Session, pin_g_per_kwh: float, best_g_per_kwh: float) -> bool:
    """Say whether this call and a new start in the best region cause less than this call where the session is."""
    if session.call_uj is None or session.rebuild_uj is None:
        return False
    return _grams(session.call_uj, pin_g_per_kwh) > _grams(session.rebuild_uj, best_g_per_kwh)


def _grams(energy_uj: int, g_per_kwh: float) -> float:
    return energy_uj / UJ_PER_KWH * g_per_kwh


def _judged(
    candidates: Sequence[Candidate],
    ranked: Sequence[str],
    costs: Mapping[str, float],
    chosen: str | None,
    slo_ms: float,
) -> tuple[Judged, ...]:
    """Return the usable candidates from the cleanest on, then the others by name."""
    by_name = {one.region: one for one in candidates}
    names = [*ranked, *sorted(name for name in by_name if name not in costs)]

    def verdict(one: Candidate) -> Verdict:
        if one.region == chosen:
            return Verdict.CHOSEN
        if not one.is_healthy:
            return Verdict.UNHEALTHY
        if one.latency_ms > slo_ms:
            return Verdict.TOO_SLOW
        if one.rate is None:
            return Verdict.NO_RATE
        return Verdict.PASSED_OVER if chosen and costs[one.region] < costs[chosen] else Verdict.DIRTIER

    return tuple(Judged(one.region, one.latency_ms, one.rate, verdict(one)) for one in map(by_name.__getitem__, names))
