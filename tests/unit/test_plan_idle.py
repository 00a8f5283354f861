"""Short chunks of one bundle run side by side on idle lanes of the running window, where that costs no gram."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from carbonq.plan.demand import Demand, Kind
from carbonq.plan.solver import idle
from carbonq.units import UJ_PER_KWH
from tests.unit.test_plan_assign import SEEDS, outlook, place


def short(count: int, regions: int = 2, duration_s: float = 2.0) -> Demand:
    kind = Kind(tuple(range(regions)), (UJ_PER_KWH,) * regions, (0.0,) * regions, math.inf)
    columns = (np.zeros(count), np.full(count, 3500.0), np.full(count, duration_s), np.zeros(count, dtype=np.int64))
    return Demand(*columns, (kind,), np.full((count, 2), -1))


def where(asked: Demand, rates: list[list[float]], slots: list[list[int]]) -> list[tuple[int, int, float]]:
    made = place(asked, replace(outlook(np.array(rates)), pue=np.ones(len(rates))), np.array(slots))
    return sorted(zip(made.region.tolist(), made.window.tolist(), made.start_s.tolist(), strict=True))


def nothing(*_: object) -> None:
    """Leave bundles whole."""


@pytest.mark.parametrize(
    ("rates", "slots", "expected"),
    [
        ([[300, 300], [300, 300]], [[1, 1], [1, 1]], [(0, 0, 0), (1, 0, 0)]),
        ([[300, 300], [300.1, 300.1]], [[1, 1], [1, 1]], [(0, 0, 0), (0, 0, 2)]),
        ([[300.1, 300.1], [300, 300]], [[1, 1], [1, 1]], [(1, 0, 0), (1, 0, 2)]),
        ([[300, 300], [300, 300]], [[1, 1], [0, 1]], [(0, 0, 0), (0, 0, 2)]),
        ([[300, 300], [400, 300]], [[2, 1], [1, 1]], [(0, 0, 0), (0, 0, 0)]),
        ([[300, 100], [300, 100]], [[1, 1], [1, 1]], [(0, 1, 300), (0, 1, 302)]),
    ],
    ids=["equal", "cleaner", "cleaner-other", "busy", "two-slots", "later"],
)
def test_two_short_chunks(
    rates: list[list[float]], slots: list[list[int]], expected: list[tuple[int, int, float]]
) -> None:
    assert where(short(2), rates, slots) == expected


def test_what_may_not_go_there_or_has_a_place_stays() -> None:
    level, slots = [[300.0, 300.0]] * 2, [[1, 1]] * 2
    asked = short(2)
    assert where(replace(asked, kinds=(replace(asked.kinds[0], regions=(0,)),)), level, slots) == [(0, 0, 0), (0, 0, 2)]
    dearer = replace(asked.kinds[0], extra_g=(0.0, 0.001))
    assert where(replace(asked, kinds=(dearer,)), level, slots) == [(0, 0, 0), (0, 0, 2)]
    assert where(replace(asked, current=np.zeros((2, 2), dtype=np.int64)), level, slots) == [(0, 0, 0), (0, 0, 2)]


def test_a_lane_that_other_work_takes_in_the_window_is_left_to_it() -> None:
    asked = short(3)
    full = replace(asked, duration_s=np.array([2.0, 2.0, 250.0]), due_s=np.array([3500.0, 3500.0, 290.0]))
    made = place(full, replace(outlook(np.full((2, 2), 300.0)), pue=np.ones(2)), np.ones((2, 2), dtype=np.int64))
    assert made.region[0] == made.region[1] != made.region[2] and not made.late and not made.window.any()


@settings(max_examples=25, deadline=None)
@given(SEEDS)
def test_it_costs_nothing_delays_nobody_and_takes_idle_lanes_only(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, regions, windows = int(rng.integers(2, 40)), 3, 3
    asked = short(n, regions)
    asked = replace(asked, due_s=rng.uniform(250, 3000, n), duration_s=rng.choice([2.0, 60.0, 100.0, 200.0], n))
    asked = replace(asked, kinds=(*asked.kinds, replace(asked.kinds[0], regions=(0, 2))), kind=rng.integers(0, 2, n))
    view = replace(outlook(rng.choice([100.0, 200.0], (regions, windows))), pue=np.ones(regions))
    slots = rng.integers(0, 4, (regions, windows))
    made = place(asked, view, slots)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(idle, "use", nothing)
        before = place(asked, view, slots)
    assert (made.window == before.window).all()
    assert (made.objective, made.unplaced) == (before.objective, before.unplaced) and made.late <= before.late
    placed = made.window >= 0
    assert (made.start_s[placed] <= before.start_s[placed]).all()
    moved = made.region != before.region
    assert not (moved & (asked.kind == 1) & (made.region == 1)).any()
    assert not made.window[moved].any()
    # Each lane in use begins with one chunk; no region has more than it has slots.
    begun = np.bincount(made.region[placed & (made.window == 0) & (made.start_s == 0)], minlength=regions)
    assert (begun <= slots[:, 0]).all()
