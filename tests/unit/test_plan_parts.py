"""The planner's insides: lanes, bundles, costs, classes that are merged, the flow and its prices."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from carbonq.plan.demand import Demand, Kind
from carbonq.plan.solver import alike
from carbonq.plan.solver.bounds import Chunks, lower_bound
from carbonq.plan.solver.bundles import BUNDLE_FILL, Bundles, bundle
from carbonq.plan.solver.costs import Costs
from carbonq.plan.solver.flow import Offer, Wanted, solve
from carbonq.plan.solver.lanes import Lanes, Spot

HOUR = 3600.0


def lanes(slots: list[list[int]], left_s: float = 300.0) -> Lanes:
    starts = np.maximum(np.arange(len(slots[0])) * 300.0 - (300 - left_s), 0.0)
    return Lanes(np.array(slots), starts, left_s)


def find(made: Lanes, duration_s: float, *, latest_s: float = math.inf, may_overrun: bool = False) -> Spot | None:
    rows = np.ones(made.free.shape[0], dtype=bool)
    cost = np.zeros(made.free.shape)
    return made.find(duration_s, rows=rows, release_s=0, latest_s=latest_s, cost=cost, may_overrun=may_overrun)


def test_short_work_shares_a_lane_until_it_is_full() -> None:
    made = lanes([[1, 1]])
    for expected in (Spot(0, 0, 0), Spot(0, 0, 140), Spot(0, 1, 300)):
        spot = find(made, 140)
        assert spot == expected
        made.take(spot, 140)
    assert find(made, 161, latest_s=450) is None
    assert find(made, 160, latest_s=430) is None
    assert find(made, 160, latest_s=440) == Spot(0, 1, 440)


def test_in_the_running_window_only_what_is_left_and_a_fifth() -> None:
    made = lanes([[1, 1]], left_s=100)
    assert find(made, 160) == Spot(0, 0, 0)
    assert find(made, 161) == Spot(0, 1, 100)
    assert find(made, 161, may_overrun=True) == Spot(0, 0, 0)
    made.take(Spot(0, 0, 0), 161)
    assert made.free.tolist() == [[0, 0]]


def test_a_lane_that_frees_itself_in_the_running_window_takes_what_still_fits() -> None:
    starts = np.array([0.0, 200.0])
    made = Lanes(np.array([[0, 0]]), starts, 200.0, [[120.0, 50.0]])
    assert find(made, 211) is None
    spot = find(made, 140)
    assert spot == Spot(0, 0, 50)
    made.take(spot, 140)
    assert find(made, 140) == Spot(0, 0, 120)
    assert find(made, 140, latest_s=119) is None


def test_long_work_needs_all_its_windows_free() -> None:
    made = lanes([[1, 0, 1, 1, 1]])
    assert find(made, 700) == Spot(0, 2, 600)
    assert made.span(700, 2) == 3
    assert made.span(650, 2) == 2  # 50 s reach into the third window: within the fifth
    made.take(Spot(0, 2, 600), 700)
    assert made.free.tolist() == [[1, 0, 0, 0, 0]]
    assert find(lanes([[1]]), 700) is None


def demand(*chunks: tuple[float, float], current: dict[int, tuple[int, int]] | None = None) -> Demand:
    """Chunks of (duration, due) that may all run in region 0."""
    cells = np.full((len(chunks), 2), -1)
    for row, cell in (current or {}).items():
        cells[row] = cell
    durations, dues = np.array(chunks, dtype=float).reshape(-1, 2).T
    kinds = (Kind((0,), (1,), (0.0,), math.inf),)
    return Demand(np.zeros(len(chunks)), dues, durations, np.zeros(len(chunks), dtype=np.int64), kinds, cells)


def bundles(chunks: Demand, *, is_tight: bool) -> tuple[Bundles, list[tuple[int, ...]]]:
    made = bundle(chunks, np.arange(len(chunks)), np.zeros(1, dtype=np.int64), 50, is_tight=is_tight)
    return made, [tuple(part.tolist()) for part in np.split(made.members, made.begin[1:-1])] if len(made) else []


def test_bundles_hold_all_their_deadlines() -> None:
    chunks = demand((50, 2000), (50, 2010), (170, 2000), (50, 9000), (50, 2000), current={4: (0, 1)})
    made, members = bundles(chunks, is_tight=False)
    assert set(members) == {(0, 1), (2,), (3,), (4,)}
    first = members.index((0, 1))
    assert (made.latest_s[first], made.duration_s[first], made.current[first]) == (1910, 100, -1)
    assert made.current[members.index((4,))] == 1
    made, members = bundles(chunks, is_tight=True)
    assert set(members) == {(0, 4, 1, 3), (2,)}
    first = members.index((0, 4, 1, 3))
    assert (made.latest_s[first], made.current[first]) == (1860, -1)


@given(st.lists(st.tuples(st.floats(0, 400), st.floats(0, HOUR)), max_size=30), st.booleans())
def test_every_chunk_is_in_one_bundle_that_fits_a_window(given_: list[tuple[float, float]], is_tight: bool) -> None:
    chunks = demand(*given_)
    made, members = bundles(chunks, is_tight=is_tight)
    assert sorted(member for part in members for member in part) == list(range(len(given_)))
    for one, part in enumerate(members):
        assert len(part) == 1 or made.duration_s[one] <= BUNDLE_FILL * 300 + 1e-6
        end = made.latest_s[one]
        for member in part:
            end += chunks.duration_s[member]
            assert end <= chunks.due_s[member] + 1e-6
    # As few as next fit makes: of two neighbours of one group, what the later begins with would not have fitted.
    if is_tight:
        shorts = [part for part in members if chunks.duration_s[part[0]] * 2 <= BUNDLE_FILL * 300]
        for part, after in itertools.pairwise(shorts):
            assert chunks.duration_s[[*part, after[0]]].sum() > BUNDLE_FILL * 300 - 1e-6


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=40), st.integers(1, 6))
def test_merged_classes_are_few_and_keep_rules_and_order(energies: list[int], most: int) -> None:
    kwh = np.array(energies, dtype=float)[:, None] * np.ones(2)
    hard = np.arange(len(energies)) % 2
    made = alike.merge(kwh, np.zeros_like(kwh), hard, np.ones(len(energies)), level=np.ones(2), most=most)
    assert len(made.kwh) <= max(most, 2)
    assert all(len(set(hard[made.of == one].tolist())) == 1 for one in range(len(made.kwh)))
    if len(set(zip(energies, hard.tolist(), strict=True))) < most:
        assert made.is_exact and (made.kwh[made.of] == kwh).all()
    for one in range(len(made.kwh)):
        assert made.kwh[one, 0] == pytest.approx(kwh[made.of == one, 0].mean())
        mine, others = kwh[made.of == one, 0], kwh[(made.of != one) & (hard == hard[made.row[one]]), 0]
        assert not ((others > mine.min()) & (others < mine.max())).any()


def offer(cost: list[list[float]], slots: list[list[int]]) -> Offer:
    shape = np.array(cost).shape
    return Offer(
        np.array([cost], dtype=float),
        np.ones((1, shape[0]), dtype=bool),
        None,
        np.array(slots),
        np.zeros(shape[0], dtype=bool),
    )


def wanted(*ranges: tuple[int, int]) -> Wanted:
    first, last = np.array(ranges, dtype=np.int64).reshape(-1, 2).T
    zero = np.zeros(len(ranges), dtype=np.int64)
    return Wanted(zero, first, last, zero - 1, np.ones(len(ranges)))


def test_a_flow_without_anything_to_place() -> None:
    assert solve(wanted(), offer([[1]], [[1]]), 0.03).cell.tolist() == []
    assert solve(wanted((0, 0)), offer([[1]], [[0]]), 0.03).cell.tolist() == [-1]
    assert solve(wanted((1, 0)), offer([[1]], [[1]]), 0.03).cell.tolist() == [-1]


def test_prices_say_what_taking_a_lane_costs_the_others() -> None:
    made = solve(wanted((0, 2), (0, 2)), offer([[30, 10, 20]], [[1, 1, 1]]), 0.03)
    assert sorted(made.cell.tolist()) == [1, 2]
    # Whoever takes window 1 sends a chunk from 10 to 30, who takes window 2 one from 20 to 30; window 0 is free.
    assert made.prices[0] == pytest.approx([0, 20, 10], abs=1e-6)


def test_in_time_counts_first_then_room_then_lateness() -> None:
    # Two want window 0, which has room for one; the other starts one window late, not two.
    made = solve(wanted((0, 0), (0, 0), (3, 3)), offer([[5, 5, 1, 9]], [[1, 1, 1, 1]]), 0.03)
    assert sorted(made.cell.tolist()) == [0, 1, 3]
    # Whoever can be in time is, though then the other has no room at all (both could be late).
    both = Offer(
        np.ones((2, 2, 3)),
        np.array([[True, True], [True, False]]),
        None,
        np.array([[0, 1, 0], [0, 0, 1]]),
        np.zeros(2, dtype=bool),
    )
    asked = wanted((0, 1), (0, 0))
    made = solve(replace(asked, kind=np.array([0, 1])), both, 0.03)
    assert made.cell.tolist() == [1, -1]


@given(st.data())
def test_the_bound_is_no_higher_than_what_any_plan_of_lanes_costs(data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    regions, windows, n = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 9)), data.draw(st.integers(1, 12))
    rate = rng.uniform(0, 500, (regions, windows))
    kwh = rng.uniform(0, 5, (n, regions)) * rng.choice([0.0, 1.0], (n, 1), p=[0.1, 0.9])
    extra = rng.uniform(0, 50, (n, regions))
    none = np.zeros_like(rate)
    costs = Costs(
        rate=rate,
        carbon=rate,
        kwh=kwh,
        extra_g=extra,
        allowed=np.ones((n, regions), dtype=bool),
        cap_rate=np.full((n, regions), np.inf),
        hard=np.zeros(n, dtype=np.int64),
        tie=none,
        displaced=none,
        is_far=np.zeros(regions, dtype=bool),
        is_overlay=False,
    )
    first = rng.integers(0, windows, n)
    last = first + rng.integers(0, windows, n)
    share = rng.choice([0.0, 0.2, 1.0], n)
    # Any plan whatever: the slots are those that it needs.
    region = rng.integers(0, regions, n)
    window = np.minimum(first + rng.integers(0, windows, n) % (last - first + 1), windows - 1)
    needed = np.zeros_like(rate)
    np.add.at(needed, (region, window), share)
    slots = np.ceil(needed).astype(np.int64)
    slots[region, window] = np.maximum(slots[region, window], 1)
    cost = float((kwh[np.arange(n), region] * rate[region, window] + extra[np.arange(n), region]).sum())
    prices = rng.uniform(0, 300, rate.shape)
    made = lower_bound(Chunks(np.arange(n), first, last, share), costs, slots, prices, late=0, unplaced=0)
    assert made <= cost + 1e-6
    # With so many late it is no higher either.
    made = lower_bound(Chunks(np.arange(n), first, first, share), costs, slots, prices, late=n, unplaced=0)
    assert made <= cost + 1e-6


def test_a_solver_that_gives_up_loses_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from ortools.graph.python import min_cost_flow

    class Broken(min_cost_flow.SimpleMinCostFlow):
        def solve(self) -> object:
            return self.BAD_COST_RANGE

    monkeypatch.setattr(min_cost_flow, "SimpleMinCostFlow", Broken)
    assert solve(wanted((0, 0)), offer([[1]], [[1]]), 0.03).cell.tolist() == [-1]
    assert "ended with status" in caplog.text
