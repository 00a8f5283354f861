"""Interactive routing: within the budget the cleanest region, without flapping."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carbonq.plan.routing import (
    Candidate,
    Reason,
    Route,
    Rules,
    Session,
    Verdict,
    route,
    switches_within_hour,
)

START = datetime(2021, 6, 14, 12, tzinfo=UTC)

#: A region by number: latency, rate (None: unknown), PUE, health.
SITE = st.tuples(
    st.integers(1, 300), st.none() | st.floats(0, 900), st.sampled_from([1.0, 1.2, 2.0]), st.sampled_from([True, False])
)
SITES = st.lists(SITE, max_size=6)


def made(sites: list[tuple[int, float | None, float, bool]]) -> list[Candidate]:
    return [Candidate(f"r{i}", float(ms), moer, pue, ok) for i, (ms, moer, pue, ok) in enumerate(sites)]


def two(here: float | None, there: float | None, **changes: object) -> list[Candidate]:
    return [Candidate("here", 20.0, here), Candidate("there", 30.0, there, **changes)]  # type: ignore[arg-type]


@settings(max_examples=30)
@given(SITES, st.integers(0, 300), st.none() | st.integers(0, 5), st.none() | st.integers(0, 5), st.integers(0, 6))
def test_never_outside_the_budget_never_a_dead_region_and_always_one_that_can(
    sites: list[tuple[int, float | None, float, bool]],
    slo_ms: int,
    current: int | None,
    pinned: int | None,
    switches: int,
) -> None:
    candidates = made(sites)
    given_ = {
        "slo_ms": float(slo_ms),
        "current": None if current is None else f"r{current}",
        "switches": switches,
        "session": None if pinned is None else Session(f"r{pinned}", 1000, 500),
    }
    found = route(candidates, **given_)  # type: ignore[arg-type]
    usable = {one.region: one for one in candidates if one.is_healthy and one.latency_ms <= slo_ms}
    assert (found.region in usable) if usable else (found.region is None and found.reason is Reason.NONE)
    assert sorted(one.region for one in found.candidates) == sorted(one.region for one in candidates)
    assert [one.verdict for one in found.candidates].count(Verdict.CHOSEN) == (1 if usable else 0)
    assert found.sentence()
    assert found.pin_cost_g_per_kwh is None or found.pin_cost_g_per_kwh >= 0
    shuffled = random.Random(1).sample(candidates, len(candidates))
    assert route(shuffled, **given_) == found  # type: ignore[arg-type]


@settings(max_examples=30)
@given(SITES, st.integers(0, 5), st.integers(0, 6))
def test_a_region_is_left_for_carbon_only_beyond_both_thresholds(
    sites: list[tuple[int, float | None, float, bool]], current: int, switches: int
) -> None:
    candidates = {one.region: one for one in made(sites)}
    name = f"r{current}"
    found = route(list(candidates.values()), slo_ms=250.0, current=name, switches=switches)
    if not found.is_switch:
        return
    assert found.region is not None and switches < 4
    now, best = candidates[name].rate, candidates[found.region].rate
    assert best is not None
    known = [
        one.rate for one in candidates.values() if one.is_healthy and one.latency_ms <= 250 and one.rate is not None
    ]
    now = max(known) if now is None else now
    assert now - best > max(0.08 * now, 5.0)
    assert best == min(known)


@settings(max_examples=8)
@given(st.lists(st.tuples(st.integers(0, 900), st.integers(0, 900), st.integers(1, 40)), min_size=30, max_size=60))
def test_switches_in_any_hour_are_bounded_however_wild_the_rates(steps: list[tuple[int, int, int]]) -> None:
    now, current, switched = START, "here", list[datetime]()
    for here, there, minutes in steps:
        now += timedelta(minutes=minutes)
        found = route(two(here, there), slo_ms=100, current=current, switches=switches_within_hour(switched, now))
        assert found.region is not None
        if found.is_switch:
            switched.append(now)
        assert found.is_switch == (found.region != current)
        current = found.region
        assert switches_within_hour(switched, now) <= Rules().max_switches


@pytest.mark.parametrize(
    ("here", "there", "reason"),
    [
        (100, 91.9, Reason.CLEANEST),
        (100, 92, Reason.STAYED),  # 8 % exactly is not above it
        (40, 34.9, Reason.CLEANEST),
        (40, 35, Reason.STAYED),  # 12.5 %, but 5 g/kWh only
        (100, 130, Reason.CLEANEST),
        (None, 130, Reason.STAYED),  # the unknown one counts as the worst known, so there is nothing to gain
        (130, None, Reason.CLEANEST),
        (None, None, Reason.NEAREST),
    ],
)
def test_hysteresis(here: float | None, there: float | None, reason: Reason) -> None:
    found = route(two(here, there), slo_ms=100, current="here")
    assert found.reason is reason
    assert found.region == ("there" if reason is Reason.CLEANEST and there and here and there < here else "here")


def test_pue_counts() -> None:
    found = route(two(100, 90, pue=1.5), slo_ms=100)
    assert (found.region, found.candidates[1].rate, found.candidates[1].verdict) == ("here", 135.0, Verdict.DIRTIER)


def test_the_limit_holds_it_and_says_so() -> None:
    found = route(two(400, 100), slo_ms=100, current="here", switches=4)
    assert (found.region, found.reason, found.is_switch) == ("here", Reason.SWITCH_LIMIT, False)
    assert found.candidates[0].verdict is Verdict.PASSED_OVER
    assert found.sentence() == (
        "stays in here (400 g/kWh) although there (100 g/kWh) is cleaner: too many moves within the hour"
    )


@pytest.mark.parametrize("changes", [{"is_healthy": False}, {"moer_g_per_kwh": 100, "latency_ms": 101.0}])
def test_a_region_that_is_down_or_too_slow_is_left_whatever_the_limit(changes: dict[str, object]) -> None:
    gone = Candidate(**({"region": "here", "latency_ms": 1.0, "moer_g_per_kwh": 1.0} | changes))  # type: ignore[arg-type]
    found = route([gone, Candidate("there", 30, 500)], slo_ms=100, current="here", switches=99)
    assert (found.region, found.reason, found.is_switch) == ("there", Reason.FORCED, False)
    assert found.candidates[1].verdict is (Verdict.TOO_SLOW if gone.is_healthy else Verdict.UNHEALTHY)


def test_without_any_rate_the_nearest_healthy_one_also_when_another_is_current() -> None:
    far = [Candidate("far", 50, None), Candidate("near", 5, None, is_healthy=False), Candidate("next", 9, None)]
    found = route(far, slo_ms=100, current="far")
    assert (found.region, found.reason, found.is_switch) == ("next", Reason.NEAREST, False)
    nan = route([Candidate("a", 9, float("nan")), Candidate("b", 5, None)], slo_ms=100)
    assert (nan.region, nan.reason) == ("b", Reason.NEAREST)


def test_a_session_stays_and_what_that_costs_is_counted() -> None:
    found = route(two(300, 100), slo_ms=100, session=Session("here", call_uj=3_600_000_000))
    assert (found.region, found.reason) == ("here", Reason.PINNED)
    assert (found.pin_cost_g_per_kwh, found.pin_cost_g) == (200, pytest.approx(0.2))
    assert found.sentence() == "stays with its session in here (300 g/kWh), 200 g/kWh above there (100 g/kWh)"
    assert route(two(300, 100), slo_ms=100, session=Session("here")).pin_cost_g is None
    unknown = route(two(None, None), slo_ms=100, session=Session("there", 1, 1))
    assert (unknown.region, unknown.reason, unknown.pin_cost_g_per_kwh) == ("there", Reason.PINNED, None)


@pytest.mark.parametrize(
    ("rebuild_uj", "reason"), [(1999, Reason.UNPINNED), (2000, Reason.PINNED), (None, Reason.PINNED)]
)
def test_a_session_is_left_when_building_it_anew_costs_less_than_staying(
    rebuild_uj: int | None, reason: Reason
) -> None:
    # Staying costs 1000 uJ x 200 g/kWh more; building it anew costs its energy x 100 g/kWh.
    found = route(two(300, 100), slo_ms=100, session=Session("here", 1000, rebuild_uj))
    assert found.reason is reason
    assert found.region == ("there" if reason is Reason.UNPINNED else "here")


def test_a_session_whose_region_is_gone_goes_to_the_cleanest() -> None:
    found = route([Candidate("a", 9, 200), Candidate("b", 50, 100)], slo_ms=100, session=Session("gone"))
    assert (found.region, found.reason) == ("b", Reason.FORCED)


def test_nowhere_is_said() -> None:
    found = route([Candidate("slow", 400, 1)], slo_ms=200)
    assert found == Route(None, Reason.NONE, found.candidates)
    assert found.sentence() == "no healthy region answers within the latency budget"


def test_an_hour_is_half_open() -> None:
    times = [START, START + timedelta(minutes=30), START + timedelta(minutes=90)]
    assert switches_within_hour(times, START + timedelta(minutes=60)) == 1
    assert switches_within_hour(times, START + timedelta(minutes=59)) == 2
