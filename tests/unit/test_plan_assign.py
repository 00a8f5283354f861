"""The planner on columns: held against a linear programme, and what must hold of any plan."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carbonq.plan.capacity import Capacity
from carbonq.plan.demand import Assignment, Demand, Kind, Terms
from carbonq.plan.outlook import Outlook
from carbonq.plan.planner import assign
from carbonq.plan.solver.incremental import add
from carbonq.units import UJ_PER_KWH, WINDOW_S, window_index
from tests.unit.yardsticks import Case, Optimum, linear_programme, most_in_time

NOW = datetime(2021, 6, 10, 12, tzinfo=UTC)
SEEDS = st.integers(0, 2**32 - 1)


def outlook(rates: np.ndarray, *, spread: np.ndarray | None = None) -> Outlook:
    names = tuple(f"r{row}" for row in range(len(rates)))
    known = np.where(np.isnan(rates), 0, 1).astype(np.int8)
    pue = 1.0 + np.arange(len(rates)) / 10
    made = Outlook(names, window_index(NOW), rates, known, (NOW,) * len(rates), pue)
    return made if spread is None else replace(made, spread=spread)


def capacity(slots: np.ndarray) -> Capacity:
    names = tuple(f"r{row}" for row in range(len(slots)))
    return Capacity(names, window_index(NOW), slots, (1.0,) * len(slots))


def kinds(rng: np.random.Generator, regions: int, count: int) -> tuple[Kind, ...]:
    """Kinds with energies by region, extra grams and allowed regions of their own."""
    made: list[Kind] = []
    for _ in range(count):
        allowed = np.flatnonzero(rng.random(regions) < 0.7)
        energy = rng.choice([1, 2, 4, 8]) * rng.choice([0.5, 1.0, 1.5], regions)
        extra = rng.choice([0.0, 5.0, 30.0], regions)
        rows = tuple(allowed.tolist()) or (0,)
        made.append(Kind(rows, tuple((energy * UJ_PER_KWH).astype(int).tolist()), tuple(extra.tolist()), math.inf))
    return tuple(made)


def demand(rng: np.random.Generator, regions: int, windows: int, n: int, kind_count: int = 3) -> Demand:
    """Chunks of one window each."""
    first = rng.integers(0, windows, n)
    slack = rng.integers(0, windows, n)
    return Demand(
        release_s=first * float(WINDOW_S) - rng.choice([0.0, 10.0], n),
        due_s=(first + slack) * float(WINDOW_S) + 250.0,
        duration_s=np.full(n, 200.0),
        kind=rng.integers(0, kind_count, n),
        kinds=kinds(rng, regions, kind_count),
        current=np.full((n, 2), -1),
    )


def yardstick(asked: Demand, view: Outlook, slots: np.ndarray) -> Case:
    cost = np.full((len(asked.kinds), *slots.shape), np.inf)
    for row, kind in enumerate(asked.kinds):
        for region in kind.regions:
            rate = view.g_per_kwh[region] * view.pue[region]
            cost[row, region] = kind.energy_uj[region] / UJ_PER_KWH * rate + kind.extra_g[region]
    first = np.maximum(np.ceil(asked.release_s / WINDOW_S), 0).astype(np.int64)
    last = np.minimum((asked.latest_s // WINDOW_S).astype(np.int64), slots.shape[1] - 1)
    ones = np.ones(len(asked), dtype=np.int64)
    return Case(slots, np.ones(len(asked.kinds), dtype=np.int64), cost, asked.kind, first, last, ones)


def place(asked: Demand, view: Outlook, slots: np.ndarray, terms: Terms | None = None) -> Assignment:
    return assign(asked, view, capacity(slots), now=NOW, terms=terms)


def check(asked: Demand, made: Assignment, slots: np.ndarray) -> None:
    """Never over the slots, never outside release, deadline and regions."""
    held = np.zeros_like(slots)
    placed = made.window >= 0
    np.add.at(held, (made.region[placed], made.window[placed]), 1)
    assert (held <= np.maximum(slots, 0)).all()
    assert (made.start_s[placed] >= asked.release_s[placed] - 1e-6).all()
    in_time = placed & (made.late_s == 0)
    assert (made.start_s[in_time] + asked.duration_s[in_time] <= asked.due_s[in_time] + 1e-4).all()
    pairs = zip(asked.kind[placed], made.region[placed], strict=True)
    assert all(region in asked.kinds[kind].regions for kind, region in pairs)
    if not math.isnan(made.objective):
        assert made.bound <= made.objective + 1e-9


@settings(max_examples=20, deadline=None)
@given(SEEDS)
def test_a_medium_plan_is_the_optimum_of_the_linear_programme(seed: int) -> None:
    rng = np.random.default_rng(seed)
    regions, windows, n = 3, 24, 60
    asked = demand(rng, regions, windows, n)
    view = outlook(np.round(rng.uniform(0, 600, (regions, windows)), 1))
    slots = rng.integers(0, 4, (regions, windows))
    made = place(asked, view, slots)
    case = yardstick(asked, view, slots)
    check(asked, made, slots)
    in_time = n - made.late - made.unplaced
    assert in_time == most_in_time(case)
    if in_time == n:
        best: Optimum = linear_programme(case)
        assert made.objective == pytest.approx(best.cost, rel=1e-6)
        assert made.gap < 1e-5


@settings(max_examples=12, deadline=None)
@given(SEEDS)
def test_a_slot_more_or_a_later_deadline_never_costs_more(seed: int) -> None:
    rng = np.random.default_rng(seed)
    asked = demand(rng, 2, 12, 20)
    view = outlook(np.round(rng.uniform(0, 600, (2, 12)), 1))
    slots = rng.integers(1, 4, (2, 12))
    made = place(asked, view, slots)
    more = slots.copy()
    more[rng.integers(0, 2), rng.integers(0, 12)] += 1
    later = replace(asked, due_s=asked.due_s + rng.integers(0, 4, 20) * WINDOW_S)
    for other in (place(asked, view, more), place(later, view, slots)):
        worse = other.late + other.unplaced, other.objective * (1 - 1e-6)
        if made.late + made.unplaced == 0:
            assert worse <= (0, made.objective)
        else:
            assert worse[0] <= made.late + made.unplaced


@settings(max_examples=12, deadline=None)
@given(SEEDS)
def test_the_order_of_chunks_changes_nothing_but_ties(seed: int) -> None:
    rng = np.random.default_rng(seed)
    asked = demand(rng, 2, 12, 25)
    view = outlook(np.round(rng.uniform(0, 600, (2, 12)), 1))
    slots = rng.integers(0, 4, (2, 12))
    made = place(asked, view, slots)
    other = place(asked.take(rng.permutation(25)), view, slots)
    assert (made.late, made.unplaced) == (other.late, other.unplaced)
    if not made.late and not made.unplaced:
        assert made.objective == pytest.approx(other.objective, rel=1e-6)


@settings(max_examples=12, deadline=None)
@given(SEEDS)
def test_what_is_late_is_so_by_the_fewest_windows(seed: int) -> None:
    """With one region, one kind and one deadline the least lateness is known: one window more for each round."""
    rng = np.random.default_rng(seed)
    slots_each, n = int(rng.integers(1, 4)), int(rng.integers(1, 30))
    last = int(rng.integers(0, 5))
    asked = one_kind(n, last + 1)
    view = outlook(np.round(rng.uniform(0, 600, (1, 40)), 1))
    made = place(asked, view, np.full((1, 40), slots_each))
    rounds = np.arange(n) // slots_each
    assert made.unplaced == 0
    assert made.late == int((rounds > last).sum())
    late = rounds[rounds > last] - last
    assert made.late_s.sum() == pytest.approx((300.0 * late - 100).sum())  # 100 s are left of each window


def test_all_rates_missing_and_a_region_that_vanishes() -> None:
    rng = np.random.default_rng(3)
    asked = replace(demand(rng, 2, 12, 10), kinds=(Kind((0, 1), (UJ_PER_KWH,) * 2, (7.0, 0.0), math.inf),) * 3)
    slots = np.full((2, 12), 10)
    made = place(asked, outlook(np.full((2, 12), np.nan)), slots)
    assert math.isnan(made.objective) and math.isnan(made.bound) and made.unplaced == 0
    first = np.maximum(np.ceil(asked.release_s / WINDOW_S), 0)
    assert (made.window == first).all() and (made.region == 0).all()
    rates = np.round(rng.uniform(0, 600, (2, 12)), 1)
    before = place(asked, outlook(rates), slots)
    there = replace(asked, current=np.stack((before.region, before.window), axis=1))
    gone = slots.copy()
    gone[0] = 0
    after = place(there, outlook(rates), gone)
    assert after.unplaced == 0 and (after.region == 1).all()
    stayed = before.region == 1
    assert (after.window[stayed] == before.window[stayed]).all()


def test_nothing_and_next_to_nothing() -> None:
    none = one_kind(0, 1)
    made = place(none, outlook(np.ones((1, 1))), np.ones((1, 1), dtype=np.int64))
    assert (made.objective, made.bound, made.gap, len(made.window)) == (0.0, 0.0, 0.0, 0)
    one = replace(one_kind(1, 1), kinds=(Kind((), (0,), (0.0,), math.inf),))
    assert place(one, outlook(np.ones((1, 1))), np.ones((1, 1), dtype=np.int64)).unplaced == 1
    with pytest.raises(ValueError, match="one row for each chunk"):
        replace(one, due_s=np.zeros(2))
    with pytest.raises(ValueError, match="a kind among kinds"):
        replace(one, kind=np.ones(1, dtype=np.int64))
    with pytest.raises(ValueError, match="one energy and one extra"):
        place(one, outlook(np.ones((2, 1))), np.ones((2, 1), dtype=np.int64))
    with pytest.raises(ValueError, match="margin must be"):
        Terms(margin=-0.1)
    priced = Terms(price_per_kwh=np.ones((2, 2)), price_weight_g=1.0)
    with pytest.raises(ValueError, match="prices must be by"):
        place(one, outlook(np.ones((1, 1))), np.ones((1, 1), dtype=np.int64), priced)


def one_kind(n: int, windows: int, *, energy: int = 1, slack: int | None = None) -> Demand:
    due = np.full(n, (windows if slack is None else slack) * 300.0)
    kind = (Kind((0,), (energy * UJ_PER_KWH,), (0.0,), math.inf),)
    return Demand(np.zeros(n), due, np.full(n, 200.0), np.zeros(n, dtype=np.int64), kind, np.full((n, 2), -1))


def test_price_moves_work_and_counts_in_the_objective() -> None:
    view, slots = outlook(np.array([[100.0, 110.0]])), np.ones((1, 2), dtype=np.int64)
    price = np.array([[0.3, 0.1]])
    assert place(one_kind(1, 2), view, slots).window[0] == 0
    made = place(one_kind(1, 2), view, slots, Terms(price_per_kwh=price, price_weight_g=100.0))
    assert (made.window[0], made.objective) == (1, pytest.approx(120.0))
    unknown = place(one_kind(1, 2), view, slots, Terms(price_per_kwh=np.array([[0.2, math.nan]]), price_weight_g=100.0))
    assert unknown.objective == pytest.approx(120.0)


def test_cells_that_the_forecast_cannot_tell_apart_go_to_the_earlier_one() -> None:
    rates, slots = np.array([[100.0, 99.9, 90.0]]), np.ones((1, 3), dtype=np.int64)
    spread = np.full((1, 3), 40.0)
    asked = one_kind(1, 3, slack=2)
    assert place(asked, outlook(rates), slots).window[0] == 1
    assert place(asked, outlook(rates, spread=spread), slots).window[0] == 0
    assert place(asked, outlook(rates, spread=spread), slots, Terms(near_tie=False)).window[0] == 1
    far = place(one_kind(1, 3), outlook(rates, spread=spread), slots)
    assert (far.window[0], far.gap) == (2, pytest.approx(0, abs=1e-6))


def test_small_work_leaves_scarce_clean_cells_to_others_where_that_is_asked_for() -> None:
    view, slots = outlook(np.array([[100.0, 50.0, 300.0, 300.0]])), np.ones((1, 4), dtype=np.int64)
    kind = tuple(Kind((0,), (energy * UJ_PER_KWH // 10,), (0.0,), math.inf) for energy in (1, 49))
    # The large one is late enough to be out of the way: only what is expected of it counts.
    asked = replace(one_kind(2, 4), release_s=np.array([0.0, 600.0]), due_s=np.array([600.0, 1200.0]))
    asked = replace(asked, kind=np.arange(2), kinds=kind)
    assert place(asked, view, slots).window.tolist() == [1, 2]
    assert place(asked, view, slots, Terms(displacement=1.0)).window[0] == 0


def test_prices_of_energy_by_region_and_what_is_transferred_decide() -> None:
    view, slots = outlook(np.array([[100.0], [100.0]])), np.ones((2, 1), dtype=np.int64)
    # PUE 1.0 and 1.1: equal hardware goes to the first, a more frugal second region wins, until moving data costs more.
    for energy, extra, region in (((10, 10), 0.0, 0), ((10, 8), 0.0, 1), ((10, 8), 30.0, 0)):
        kind = (Kind((0, 1), tuple(one * UJ_PER_KWH // 10 for one in energy), (0.0, extra), math.inf),)
        made = place(replace(one_kind(1, 1), kinds=kind), view, slots)
        assert made.region[0] == region


@settings(max_examples=12, deadline=None)
@given(SEEDS, st.integers(1, 12))
def test_additions_leave_what_is_placed_unless_they_need_its_room(seed: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    regions, windows = 2, 12
    asked = demand(rng, regions, windows, 20 + count)
    view = outlook(np.round(rng.uniform(0, 600, (regions, windows)), 1))
    slots = rng.integers(0, 4, (regions, windows))
    old, new = asked.take(np.arange(20)), asked.take(np.arange(20, 20 + count))
    before = place(old, view, slots)
    old = replace(old, current=np.stack((before.region, before.window), axis=1))
    made = add(new, old, view, capacity(slots), now=NOW, prices=before.prices)
    region, window = before.region.copy(), before.window.copy()
    region[made.moved], window[made.moved] = made.region, made.window
    start = np.where(window >= 0, window * 300.0, math.nan)
    joined = Assignment(
        np.concatenate((region, made.made.region)),
        np.concatenate((window, made.made.window)),
        np.concatenate((start, made.made.start_s)),
        np.concatenate((before.late_s, made.made.late_s)),
        math.nan,
        math.nan,
        math.nan,
    )
    check(asked, joined, slots)
    if before.late + before.unplaced == 0:
        # One lane each: what cannot be in time beside the others could not be in any plan.
        missed = made.made.late + made.made.unplaced
        assert missed == len(asked) - most_in_time(yardstick(asked, view, slots))
        if not missed and not len(made.moved):
            whole = place(asked, view, slots)
            assert before.bound + made.made.bound <= whole.objective * (1 + 1e-9)
            assert whole.objective <= (before.objective + made.made.objective) * (1 + 1e-6)


def test_a_job_finds_room_through_a_chain_of_moves() -> None:
    windows = 6
    view, slots = outlook(np.full((1, windows), 100.0)), np.ones((1, windows), dtype=np.int64)
    # Each placed chunk may wait one window longer; the last window is free.
    old = replace(one_kind(5, windows), release_s=np.arange(5) * 300.0, due_s=np.arange(2, 7) * 300.0)
    old = replace(old, current=np.stack((np.zeros(5, dtype=np.int64), np.arange(5)), axis=1))
    made = add(one_kind(1, 1), old, view, capacity(slots), now=NOW)
    assert made.is_enough and made.made.window[0] == 0
    assert made.moved.tolist() == [0, 1, 2, 3, 4] and made.window.tolist() == [1, 2, 3, 4, 5]
    slots[0, 5] = 0
    made = add(one_kind(1, 1), old, view, capacity(slots), now=NOW)
    assert not made.is_enough and not len(made.moved)


def test_one_job_beside_a_hundred_thousand_chunks_moves_none_of_them() -> None:
    n, regions, windows = 100_000, 10, 576
    rng = np.random.default_rng(1)
    cells = rng.choice(regions * windows * 30, n, replace=False) // 30
    old = replace(one_kind(n, windows), current=np.stack(np.divmod(cells, windows), axis=1))
    old = replace(old, kinds=(Kind(tuple(range(regions)), (UJ_PER_KWH,) * regions, (0.0,) * regions, math.inf),))
    new = replace(old.take(np.arange(1)), current=np.full((1, 2), -1))
    view = outlook(np.round(rng.uniform(50, 600, (regions, windows)), 1))
    room = capacity(np.full((regions, windows), 30))
    made = add(new, old, view, room, now=NOW)
    assert made.is_enough and not len(made.moved)


@pytest.mark.parametrize(("count", "kind_count"), [(4, 1), (7, 3), (12, 1), (60, 3)])
@pytest.mark.parametrize("is_new", [True, False])
def test_on_a_level_grid_each_region_is_as_full_as_the_others(count: int, kind_count: int, is_new: bool) -> None:
    slots = np.array([[8, 8], [8, 8], [16, 16]])
    level = replace(outlook(np.full((3, 2), 300.0)), pue=np.ones(3))
    kind = Kind((0, 1, 2), (UJ_PER_KWH,) * 3, (0.0,) * 3, math.inf)
    kinds_ = tuple(replace(kind, energy_uj=(UJ_PER_KWH * (1 + row),) * 3) for row in range(kind_count))
    wanted = Demand(
        release_s=np.zeros(count),
        due_s=np.full(count, 550.0),
        duration_s=np.full(count, 200.0),
        kind=np.arange(count) % kind_count,
        kinds=kinds_,
        current=np.full((count, 2), -1, dtype=np.int64),
    )
    if is_new:
        none = wanted.take(np.zeros(0, dtype=np.int64))
        made = add(wanted, none, level, capacity(slots), now=NOW).made
    else:
        made = assign(wanted, level, capacity(slots), now=NOW)
    assert not made.late and not made.unplaced
    held = np.zeros_like(slots)
    np.add.at(held, (made.region, made.window), 1)
    assert held[:, 0].sum() == min(count, 32), "ties go to the earlier window first"
    full = held / slots
    # As even as whole lanes can be: none could move to where there is more room left after it.
    for column in range(2):
        for rich in range(3):
            for poor in range(3):
                if held[rich, column]:
                    assert full[rich, column] <= (held[poor, column] + 1) / slots[poor, column] + 1e-9
