from __future__ import annotations

import itertools
import math
import time
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carbonq.plan.capacity import Capacity
from carbonq.plan.outlook import Outlook
from carbonq.plan.planner import ChunkNeed, Plan, Reason, plan
from carbonq.units import UJ_PER_KWH, WINDOW, WINDOW_S, window_at, window_index

NOW = datetime(2021, 6, 10, 12, tzinfo=UTC)
KWH = UJ_PER_KWH


def outlook(rates: list[list[float]], now: datetime = NOW, pue: list[float] | None = None) -> Outlook:
    g = np.array(rates, dtype=np.float64)
    regions = tuple("abcdefgh"[: len(rates)])
    basis = np.where(np.isnan(g), 0, 1).astype(np.int8)
    issued = tuple(now for _ in regions)
    return Outlook(regions, window_index(now), g, basis, issued, np.array(pue or [1.0] * len(rates)))


def capacity(slots: list[list[int]], now: datetime = NOW, latency: tuple[float, ...] | None = None) -> Capacity:
    regions = tuple("abcdefgh"[: len(slots)])
    return Capacity(regions, window_index(now), np.array(slots), latency or (1.0,) * len(slots))


def need(
    name: str,
    windows: float,
    *,
    duration_s: float = 200.0,
    energy_uj: int = KWH,
    release: float = 0.0,
    regions: tuple[str, ...] | None = None,
    current: tuple[str, datetime] | None = None,
    max_g: Decimal | None = None,
    guard_s: float = 0.0,
) -> ChunkNeed:
    """A chunk whose release and deadline are given in windows from NOW."""
    return ChunkNeed(
        name,
        NOW + release * WINDOW,
        NOW + windows * WINDOW,
        duration_s,
        energy_uj,
        regions,
        "m",
        current,
        max_g,
        guard_s,
    )


def where(made: Plan) -> dict[str, tuple[str, int]]:
    first = window_index(NOW)
    return {p.chunk_id: (p.region, window_index(p.window_at) - first) for p in made.placements}


def test_takes_the_cleanest_cell_in_time() -> None:
    made = plan([need("x", 3)], outlook([[300, 200, 100, 10], [250, 150, 120, 5]]), capacity([[1] * 4] * 2), now=NOW)
    assert where(made) == {"x": ("a", 2)}
    placed = made.placements[0]
    assert (placed.g_per_kwh, placed.issued_at, placed.reason, placed.moved) == (Decimal("100.0"), NOW, "carbon", False)
    assert made.objective_g == pytest.approx(100)
    assert made.lower_bound_g == pytest.approx(100)
    assert not made.is_overlay


def test_a_deadline_means_finished_by() -> None:
    rates = outlook([[300, 200, 1]])
    assert where(plan([need("x", 2 + 199 / 300)], rates, capacity([[1] * 3]), now=NOW)) == {"x": ("a", 1)}
    assert where(plan([need("x", 2 + 200 / 300)], rates, capacity([[1] * 3]), now=NOW)) == {"x": ("a", 2)}


def test_a_guard_is_kept_free_where_that_is_possible() -> None:
    rates, slots = outlook([[300, 1]]), capacity([[1, 1]])
    assert where(plan([need("x", 2, guard_s=101)], rates, slots, now=NOW)) == {"x": ("a", 0)}
    made = plan([need("x", 0.7, guard_s=101)], rates, slots, now=NOW)
    assert where(made) == {"x": ("a", 0)}
    assert made.late == 0


def test_what_is_kept_free_before_one_deadline_costs_no_other() -> None:
    # With all that is kept free only b could be in time, in the running window; without it both can.
    needs = [need("a", 0.9, guard_s=101), need("b", 2, guard_s=150)]
    made = plan(needs, outlook([[5, 1]]), capacity([[1, 1]]), now=NOW)
    assert (where(made), made.late) == ({"a": ("a", 0), "b": ("a", 1)}, 0)


def test_pue_counts() -> None:
    made = plan([need("x", 2)], outlook([[100], [110]], pue=[1.5, 1.1]), capacity([[1], [1]]), now=NOW)
    assert where(made) == {"x": ("b", 0)}
    assert made.objective_g == pytest.approx(121)


def test_the_bigger_energy_gets_the_cleaner_cell() -> None:
    needs = [need("small", 2), need("big", 2, energy_uj=8 * KWH)]
    assert where(plan(needs, outlook([[300, 100]]), capacity([[1, 1]]), now=NOW)) == {
        "small": ("a", 0),
        "big": ("a", 1),
    }


def test_ties_go_to_the_earlier_window_and_the_emptier_region() -> None:
    made = plan([need("x", 5), need("y", 5)], outlook([[0] * 5, [0] * 5]), capacity([[2] * 5] * 2), now=NOW)
    assert sorted(where(made).values()) == [("a", 0), ("b", 0)]


def test_moves_only_for_a_gain_above_the_margin() -> None:
    rates, slots = outlook([[100, 98, 90]]), capacity([[1] * 3])
    near = need("x", 2, current=("a", NOW))
    assert where(plan([near], rates, slots, now=NOW)) == {"x": ("a", 0)}
    far = need("x", 3, current=("a", NOW))
    made = plan([far], rates, slots, now=NOW)
    assert where(made) == {"x": ("a", 2)}
    assert made.moved == 1
    zero = plan([need("x", 3, current=("a", NOW + 2 * WINDOW))], outlook([[0, 0, 0]]), slots, now=NOW)
    assert (where(zero), zero.moved) == ({"x": ("a", 2)}, 0)


def test_a_placement_whose_cell_is_gone_moves() -> None:
    made = plan([need("x", 3, current=("a", NOW))], outlook([[1, 50, 60]]), capacity([[0, 1, 1]]), now=NOW)
    assert (where(made), made.moved) == ({"x": ("a", 1)}, 1)


def test_a_missing_rate_is_never_the_clean_one() -> None:
    nan = math.nan
    rates, slots = outlook([[nan, 300], [nan, 290]]), capacity([[1, 1], [1, 1]])
    assert where(plan([need("x", 2)], rates, slots, now=NOW)) == {"x": ("b", 1)}
    forced = plan([need("x", 1)], rates, slots, now=NOW)
    assert where(forced) == {"x": ("a", 0)}
    assert (forced.placements[0].g_per_kwh, forced.placements[0].reason) == (None, "overlay")


def test_without_any_signal_earliest_and_nearest_with_deadlines_first() -> None:
    needs = [need("later", 9), need("soon", 1)]
    made = plan(needs, outlook([[math.nan] * 9] * 2), capacity([[0, 1] + [1] * 7, [1] * 9], latency=(1, 5)), now=NOW)
    assert where(made) == {"soon": ("b", 0), "later": ("a", 1)}
    assert (made.is_overlay, made.objective_g, made.lower_bound_g) == (True, None, None)
    assert {p.reason for p in made.placements} == {Reason.OVERLAY}


def test_without_any_signal_a_long_chunk_goes_to_the_nearest_region_too() -> None:
    made = plan(
        [need("x", 9, duration_s=600)],
        outlook([[math.nan] * 3] * 2),
        capacity([[1] * 3] * 2, latency=(9.0, 1.0)),
        now=NOW,
    )
    assert where(made) == {"x": ("b", 0)}


def test_a_carbon_cap_holds_where_the_deadline_allows() -> None:
    rates, slots = outlook([[300, 80, 90]]), capacity([[1] * 3])
    needs = [need("capped", 3, max_g=Decimal("85")), need("big", 3, energy_uj=9 * KWH)]
    assert where(plan(needs, rates, slots, now=NOW)) == {"capped": ("a", 1), "big": ("a", 2)}
    assert where(plan([need("capped", 1, max_g=Decimal("85"))], rates, slots, now=NOW)) == {"capped": ("a", 0)}


def test_what_cannot_be_in_time_runs_as_early_as_can_be_and_is_called_late() -> None:
    made = plan([need("x", 0.5), need("y", 0.9)], outlook([[9, 5, 1]]), capacity([[1] * 3]), now=NOW)
    assert where(made) == {"y": ("a", 0), "x": ("a", 1)}
    late = next(p for p in made.placements if p.chunk_id == "x")
    assert (late.reason, late.lateness_s, made.late) == ("late", pytest.approx(350), 1)


def test_what_may_run_nowhere_is_named() -> None:
    made = plan([need("x", 2, regions=("nowhere",)), need("y", 2)], outlook([[1, 1]]), capacity([[1, 1]]), now=NOW)
    assert (made.unplaced, set(where(made))) == (("x",), {"y"})
    assert plan([need("x", 2)], outlook([[1, 1]]), capacity([[0, 0]]), now=NOW).unplaced == ("x",)


def test_short_chunks_share_a_lane() -> None:
    needs = [need(f"c{i}", 2, duration_s=20) for i in range(11)]
    made = plan(needs, outlook([[300, 100]]), capacity([[1, 1]]), now=NOW)
    assert set(where(made).values()) == {("a", 1)}


def test_many_small_jobs_with_unlike_deadlines_still_fit() -> None:
    needs = [need(f"c{i}", 2 + i, duration_s=20) for i in range(8)]
    made = plan(needs, outlook([[10] * 9]), capacity([[1, 0, 0, 0, 0, 0, 0, 0, 0]]), now=NOW)
    assert (made.late, made.unplaced) == (0, ())


def test_a_chunk_longer_than_a_window_takes_all_its_cells() -> None:
    needs = [need("long", 5, duration_s=700), need("x", 5)]
    made = plan(needs, outlook([[90, 10, 10, 20, 80]]), capacity([[1] * 5]), now=NOW)
    assert where(made)["long"] == ("a", 1)
    assert where(made)["x"] == ("a", 4)


def test_something_urgent_starts_in_the_middle_of_a_window() -> None:
    now = NOW + timedelta(seconds=200)
    urgent = ChunkNeed("x", NOW, now + timedelta(seconds=250), 240, KWH, None, "m")
    other = ChunkNeed("y", NOW, now + timedelta(seconds=900), 240, KWH, None, "m")
    made = plan([other, urgent], outlook([[9, 1, 5]], now), capacity([[1] * 3], now), now=now)
    assert where(made) == {"x": ("a", 0), "y": ("a", 2)}
    assert made.late == 0


def test_what_does_not_fit_into_the_rest_of_the_window_waits_for_the_next_one() -> None:
    now = NOW + timedelta(seconds=200)
    one = ChunkNeed("y", NOW, now + timedelta(seconds=900), 240, KWH, None, "m")
    assert where(plan([one], outlook([[1, 9, 5]], now), capacity([[1] * 3], now), now=now)) == {"y": ("a", 2)}


def test_unlike_cells_are_refused() -> None:
    with pytest.raises(ValueError, match="same regions"):
        plan([], outlook([[1, 1]]), capacity([[1]]), now=NOW)
    with pytest.raises(ValueError, match="begin with the window"):
        plan([], outlook([[1]]), capacity([[1]]), now=NOW + WINDOW)


def test_nothing_to_plan() -> None:
    made = plan([], outlook([[1]]), capacity([[1]]), now=NOW)
    assert (made.placements, made.late, made.objective_g) == ((), 0, 0)


def brute_force(needs: list[ChunkNeed], rates: np.ndarray, slots: np.ndarray) -> tuple[int, float]:
    """The most chunks in time, then the fewest grams of those, by trying everything."""
    cells = list(itertools.product(range(rates.shape[0]), range(rates.shape[1])))
    names = "abcdefgh"
    best = (len(needs) + 1, math.inf)
    free = slots.copy()

    def choose(position: int, late: int, grams: float) -> None:
        nonlocal best
        if (late, grams) >= best:
            return
        if position == len(needs):
            best = (late, grams)
            return
        one = needs[position]
        for row, window in cells:
            start = NOW + window * WINDOW
            if free[row, window] == 0 or (one.regions is not None and names[row] not in one.regions):
                continue
            if start < one.release_at or start + timedelta(seconds=one.duration_s) > one.deadline_at:
                continue
            free[row, window] -= 1
            choose(position + 1, late, grams + one.energy_uj / KWH * rates[row, window])
            free[row, window] += 1
        choose(position + 1, late + 1, grams)

    choose(0, 0, 0.0)
    return best


@st.composite
def small_cases(draw: st.DrawFn) -> tuple[list[ChunkNeed], np.ndarray, np.ndarray]:
    regions, windows = draw(st.integers(1, 2)), draw(st.integers(1, 4))
    rates = np.array(draw(st.lists(st.integers(0, 500), min_size=regions * windows, max_size=regions * windows)))
    slots = np.array(draw(st.lists(st.integers(0, 2), min_size=regions * windows, max_size=regions * windows)))
    needs = [
        need(
            f"c{i}",
            draw(st.floats(0.2, windows + 0.5)),
            duration_s=draw(st.sampled_from([160.0, 180.0, 290.0])),
            energy_uj=draw(st.integers(1, 9)) * KWH,
            release=draw(st.sampled_from([-5, 0, 1, 1.5])),
            regions=draw(st.sampled_from([None, ("a",), ("b",) if regions > 1 else ("a",)])),
        )
        for i in range(draw(st.integers(1, 5)))
    ]
    return needs, rates.reshape(regions, windows).astype(float), slots.reshape(regions, windows)


@settings(max_examples=50, deadline=None)
@given(small_cases())
def test_equals_brute_force(case: tuple[list[ChunkNeed], np.ndarray, np.ndarray]) -> None:
    needs, rates, slots = case
    late, grams = brute_force(needs, rates, slots)
    made = plan(needs, outlook(rates.tolist()), capacity(slots.tolist()), now=NOW)
    assert made.late + len(made.unplaced) == late
    if late == 0:
        assert made.objective_g == pytest.approx(grams, rel=1e-6, abs=1e-5)
        assert made.lower_bound_g == pytest.approx(grams, rel=1e-5, abs=1e-4)


@st.composite
def feasible_cases(draw: st.DrawFn) -> tuple[list[ChunkNeed], list[list[int]], list[list[float]]]:
    """Chunks that were put into cells first and given deadlines afterwards, so that a plan in time exists."""
    regions, windows = draw(st.integers(1, 3)), draw(st.integers(2, 12))
    slots = [[draw(st.integers(0, 3)) for _ in range(windows)] for _ in range(regions)]
    rates = [
        [draw(st.sampled_from([0.0, 5.0, 100.0, 333.0, math.nan])) for _ in range(windows)] for _ in range(regions)
    ]
    needs: list[ChunkNeed] = []
    for row, window in itertools.product(range(regions), range(windows)):
        for _ in range(draw(st.integers(0, slots[row][window]))):
            duration = draw(st.floats(113, 300))
            needs.append(
                need(
                    f"c{len(needs)}",
                    window + duration / WINDOW_S + draw(st.sampled_from([1e-6, 0.3, 5])),
                    duration_s=duration,
                    energy_uj=draw(st.integers(0, 3 * KWH)),
                    release=draw(st.sampled_from([-1.0, window - 0.0])),
                    regions=draw(st.sampled_from([None, tuple("abc"[: row + 1]), ("abc"[row],)])),
                )
            )
    return needs, slots, rates


@settings(max_examples=40, deadline=None)
@given(feasible_cases())
def test_invariant_5_a_feasible_deadline_is_met_whatever_the_forecast(
    case: tuple[list[ChunkNeed], list[list[int]], list[list[float]]],
) -> None:
    needs, slots, rates = case
    made = plan(needs, outlook(rates), capacity(slots), now=NOW)
    assert (made.late, made.unplaced) == (0, ())
    check_cells(needs, made, slots, NOW)


def check_cells(needs: list[ChunkNeed], made: Plan, slots: list[list[int]], now: datetime) -> None:
    """Invariant 9, and that releases, regions and deadlines are as the plan says."""
    by_id = {one.chunk_id: one for one in needs}
    lanes: defaultdict[tuple[str, int], int] = defaultdict(int)
    seconds: defaultdict[tuple[str, int], float] = defaultdict(float)
    first = window_index(now)
    for placed in made.placements:
        one = by_id[placed.chunk_id]
        window = window_index(placed.window_at) - first
        start = max(placed.window_at, now)
        assert start >= one.release_at
        assert one.regions is None or placed.region in one.regions
        if placed.lateness_s == 0:
            assert start + timedelta(seconds=one.duration_s) <= one.deadline_at + timedelta(microseconds=20)
        left = (window_at(first + window) + WINDOW - start).total_seconds()
        more = one.duration_s - left - 0.2 * WINDOW_S - 1e-6
        cells = 1 if more <= 0 else 1 + max(1, math.ceil(more / WINDOW_S))
        for cell in range(window, min(window + cells, len(slots[0]))):
            if one.duration_s > WINDOW_S / 2:
                lanes[placed.region, cell] += 1
            else:
                seconds[placed.region, cell] += one.duration_s
    for row, name in enumerate("abcdefgh"[: len(slots)]):
        for window, free in enumerate(slots[row]):
            assert lanes[name, window] <= free
            assert seconds[name, window] <= free * 1.2 * WINDOW_S


@st.composite
def wild_cases(draw: st.DrawFn) -> tuple[list[ChunkNeed], list[list[int]], list[list[float]], datetime]:
    regions, windows = draw(st.integers(1, 3)), draw(st.integers(1, 12))
    slots = [[draw(st.integers(0, 2)) for _ in range(windows)] for _ in range(regions)]
    rates = [[draw(st.sampled_from([0.0, 7.5, 400.0, math.nan])) for _ in range(windows)] for _ in range(regions)]
    now = NOW + timedelta(seconds=draw(st.floats(0, 299)))
    names = list("abc"[:regions])
    needs = [
        ChunkNeed(
            f"c{i}",
            NOW + draw(st.floats(-3, 5)) * WINDOW,
            NOW + draw(st.floats(-3, 14)) * WINDOW,
            draw(st.one_of(st.floats(0, 40), st.floats(0, 300), st.floats(300, 1500))),
            draw(st.integers(0, KWH)),
            draw(st.sampled_from([None, (names[0],), (), ("gone",)])),
            "m",
            draw(st.one_of(st.none(), st.tuples(st.sampled_from(names), st.sampled_from([NOW, NOW + 2 * WINDOW])))),
            draw(st.sampled_from([None, Decimal(0), Decimal(100)])),
            draw(st.sampled_from([0.0, 100.0])),
        )
        for i in range(draw(st.integers(0, 14)))
    ]
    return needs, slots, rates, now


@settings(max_examples=15, deadline=None)
@given(wild_cases())
def test_invariant_9_slots_are_never_exceeded_and_the_bound_holds(
    case: tuple[list[ChunkNeed], list[list[int]], list[list[float]], datetime],
) -> None:
    needs, slots, rates, now = case
    made = plan(needs, outlook(rates, now), capacity(slots, now), now=now)
    assert sorted([p.chunk_id for p in made.placements] + list(made.unplaced)) == sorted(n.chunk_id for n in needs)
    check_cells(needs, made, slots, now)
    assert made == plan(needs, outlook(rates, now), capacity(slots, now), now=now)
    if not made.is_overlay:
        assert made.lower_bound_g is not None and made.objective_g is not None
        assert made.lower_bound_g <= made.objective_g + 1e-9


def test_two_thousand_chunks_in_well_under_a_second() -> None:
    rng = np.random.default_rng(1)
    rates = np.round(rng.uniform(0, 600, (4, 300)))
    needs = [
        need(
            f"c{i}",
            float(rng.uniform(8, 300)),
            duration_s=float(rng.uniform(150, 180)),
            energy_uj=int(rng.uniform(1, 9) * KWH),
        )
        for i in range(2000)
    ]
    started = time.process_time()
    made = plan(needs, outlook(rates.tolist()), capacity(np.full((4, 300), 2).tolist()), now=NOW)
    assert made.late == 0
    assert time.process_time() - started < 5  # about 0.4 s; the margin is for a busy machine
