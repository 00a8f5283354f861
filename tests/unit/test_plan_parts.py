"""The planner's insides: lanes, bundles and energy classes."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from carbonq.plan.bundles import BUNDLE_FILL, Piece, bundle
from carbonq.plan.flow import ENERGY_CLASSES, energy_floors, solve
from carbonq.plan.lanes import Lanes, Spot

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


def piece(duration_s: float, due_s: float, **changes: object) -> Piece:
    return Piece(duration_s, 1, 0.0, due_s, (0,), **changes)  # type: ignore[arg-type]


def test_bundles_hold_all_their_deadlines() -> None:
    pieces = [piece(50, 2000), piece(50, 2010), piece(170, 2000), piece(50, 9000), piece(50, 2000, current=(0, 1))]
    made = {one.members: one for one in bundle(pieces, range(5), is_tight=False)}
    assert set(made) == {(0, 1), (2,), (3,), (4,)}
    assert (made[0, 1].latest_s, made[0, 1].duration_s, made[0, 1].energy_uj) == (1910, 100, 2)
    tight = {one.members: one for one in bundle(pieces, range(5), is_tight=True)}
    assert set(tight) == {(0, 4, 1, 3), (2,)}
    assert tight[0, 4, 1, 3].latest_s == 1860
    assert tight[0, 4, 1, 3].current is None


@given(st.lists(st.tuples(st.floats(0, 400), st.floats(0, HOUR)), max_size=30), st.booleans())
def test_every_piece_is_in_one_bundle_that_fits_a_window(given_: list[tuple[float, float]], is_tight: bool) -> None:
    pieces = [piece(duration, due) for duration, due in given_]
    made = bundle(pieces, range(len(pieces)), is_tight=is_tight)
    assert sorted(member for one in made for member in one.members) == list(range(len(pieces)))
    for one in made:
        assert len(one.members) == 1 or one.duration_s <= BUNDLE_FILL * 300 + 1e-6
        end = one.latest_s
        for member in one.members:
            end += pieces[member].duration_s
            assert end <= pieces[member].due_s + 1e-6


@given(st.lists(st.integers(0, 10**15), min_size=1, max_size=60))
def test_energy_classes_round_down_and_are_few(energies: list[int]) -> None:
    floors = energy_floors(energies)
    assert set(floors) == set(energies)
    assert all(floors[energy] <= energy for energy in energies)
    assert len(set(floors.values())) <= ENERGY_CLASSES + 1
    if len(set(energies)) <= ENERGY_CLASSES:
        assert all(floor == energy for energy, floor in floors.items())


def test_a_flow_without_anything_to_place() -> None:
    made = lanes([[1]])
    rates = np.ones((1, 1))
    assert solve([], made, rates, [0], 0.03).bound_g == 0
    late = bundle([piece(100, 50)], [0], is_tight=False)
    assert solve(late, made, rates, [0], 0.03).cells == [None]


def test_a_solver_that_gives_up_loses_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from ortools.graph.python import min_cost_flow

    class Broken(min_cost_flow.SimpleMinCostFlow):
        def solve(self) -> object:
            return self.BAD_COST_RANGE

    monkeypatch.setattr(min_cost_flow, "SimpleMinCostFlow", Broken)
    solution = solve(bundle([piece(100, 900)], [0], is_tight=False), lanes([[1]]), np.ones((1, 1)), [0], 0.03)
    assert solution.cells == [None]
    assert "planning serially" in caplog.text
