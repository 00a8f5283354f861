from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from carbonq.plan.demand import Assignment, Demand, Kind, Terms
from carbonq.plan.planner import _Planner, assign  # pyright: ignore[reportPrivateUsage]
from carbonq.plan.solver.setting import Setting
from tests.unit.test_planner import NOW, capacity, outlook

LIMIT_S = 360.0


def demand(chunks: list[tuple[float, float]], regions: int = 1, kind: list[int] | None = None) -> Demand:
    """Chunks by duration and due in seconds; kind 0 may run everywhere, kind 1 in the first region only."""
    columns = np.array(chunks, dtype=np.float64).reshape(-1, 2)
    n = len(columns)
    kinds = tuple(Kind(rows, (10**9,) * regions, (0.0,) * regions, math.inf) for rows in (tuple(range(regions)), (0,)))
    return Demand(
        release_s=np.zeros(n),
        due_s=columns[:, 1],
        duration_s=columns[:, 0],
        kind=np.array(kind or [0] * n, dtype=np.int64),
        kinds=kinds,
        current=np.full((n, 2), -1, dtype=np.int64),
    )


def first_attempt(
    asked: Demand, rates: list[list[float]], slots: list[list[int]], freeing: list[list[float]]
) -> Assignment:
    """Return what the flow makes of it, without the packing of last resort."""
    offered = replace(capacity(slots), freeing_s=tuple(tuple(sorted(one)) for one in freeing))
    setting = Setting.of(asked, outlook(rates), offered, NOW, Terms())
    return _Planner(asked, setting)._attempt(is_tight=False)  # pyright: ignore[reportPrivateUsage]


def check(asked: Demand, made: Assignment, slots: list[list[int]], freeing: list[list[float]]) -> None:
    """Walk through the running window as a dispatcher would: each region's next chunk takes its next free lane."""
    for region, row in enumerate(slots):
        lanes = [0.0] * row[0] + list(freeing[region])
        there = np.flatnonzero((made.region == region) & (made.window == 0))
        # Short ones that share a lane follow one another there.
        for one in there[np.lexsort((asked.duration_s[there], made.start_s[there]))].tolist():
            start = float(made.start_s[one])
            free = [at for at in lanes if at <= start + 1e-6]
            assert free, "a chunk starts before any lane is free"
            lanes.remove(max(free))
            lanes.append(start + float(asked.duration_s[one]))
            assert asked.duration_s[one] > 300 or lanes[-1] <= LIMIT_S + 1e-6
        end_s = made.start_s + asked.duration_s
        for window in range(1, len(row)):
            begins = made.window == window
            goes_on = (made.window < window) & (end_s > 300.0 * window + 60 + 1e-6)
            assert int(((made.region == region) & (begins | goes_on)).sum()) <= row[window]
    late_s = made.start_s + asked.duration_s - asked.due_s
    placed = made.window >= 0
    assert ((made.late_s[placed] > 0) == (late_s[placed] > 1e-5)).all()


def test_what_is_due_in_the_running_window_takes_a_lane_that_frees_itself_in_time() -> None:
    asked = demand([(150, 250)])
    made = first_attempt(asked, [[1.0, 1.0]], [[0, 1]], [[60.0, 90.0, 120.0]])
    assert (made.window.tolist(), made.start_s.tolist(), made.late) == ([0], [90.0], 0)
    made = first_attempt(asked, [[1.0, 1.0]], [[0, 1]], [[120.0]])
    assert (made.window.tolist(), made.late) == ([1], 1)
    # One after another on the same lane, until the last fifth of the next window.
    made = first_attempt(demand([(150, 400), (150, 300), (150, 700)]), [[1.0, 1.0]], [[0, 0]], [[60.0]])
    assert made.start_s.tolist()[:2] == [210.0, 60.0]
    assert (made.late, made.unplaced) == (0, 1)


def test_another_makes_way_by_going_there_and_all_else_stays_where_it_is_cleanest() -> None:
    # a must be within the running window and cannot wait for the lane; b can, and holds the only one that is free.
    asked = demand([(280, 290), (150, 310), (200, 900)])
    made = first_attempt(asked, [[1.0, 9.0, 5.0]], [[1, 0, 1]], [[120.0]])
    assert (made.window.tolist(), made.start_s.tolist(), made.late) == ([0, 0, 2], [0.0, 120.0, 600.0], 0)
    assert made.bound <= made.objective


def test_a_long_one_starts_on_such_a_lane_if_the_windows_after_it_are_free() -> None:
    asked = demand([(700, 800)])
    for slots, window in (([[0, 1, 1, 1]], 0), ([[0, 1, 0, 1]], -1)):
        made = first_attempt(asked, [[2.0, 4.0, 4.0, 4.0]], slots, [[100.0]])
        assert made.window.tolist() == [window]
    made = assign(
        asked, outlook([[2.0] + [4.0] * 3]), replace(capacity([[0, 1, 1, 1]]), freeing_s=((100.0,),)), now=NOW
    )
    # 200 s at 2 g/kWh and 500 s at 4.
    assert made.late == 0
    assert math.isclose(made.objective, 10**9 / 3.6e12 * (200 * 2 + 500 * 4) / 700, rel_tol=1e-9)


def test_nothing_is_taken_where_nothing_would_be_late() -> None:
    asked = demand([(150, 900)])
    made = first_attempt(asked, [[1.0, 9.0]], [[0, 1]], [[10.0]])
    assert made.window.tolist() == [1]


@st.composite
def cases(draw: st.DrawFn) -> tuple[Demand, list[list[int]], list[list[float]]]:
    regions = draw(st.integers(1, 2))
    slots = [[draw(st.integers(0, 2)) for _ in range(3)] for _ in range(regions)]
    freeing = [draw(st.lists(st.integers(1, 299).map(float), max_size=2)) for _ in range(regions)]
    n = draw(st.integers(1, 6))
    chunks = [
        (float(draw(st.sampled_from([130, 150, 200, 250, 300, 450]))), float(draw(st.integers(150, 900))))
        for _ in range(n)
    ]
    return demand(chunks, regions, [draw(st.integers(0, 1)) for _ in range(n)]), slots, freeing


@settings(max_examples=40, deadline=None)
@given(cases(), st.sampled_from([[5.0, 1.0, 3.0], [1.0, 5.0, 5.0]]))
def test_no_start_is_before_its_lane_is_free_and_no_chunk_is_wrongly_called_in_time(
    case: tuple[Demand, list[list[int]], list[list[float]]], rates: list[float]
) -> None:
    asked, slots, freeing = case
    made = first_attempt(asked, [rates] * len(slots), slots, freeing)
    check(asked, made, slots, freeing)
    without = first_attempt(asked, [rates] * len(slots), slots, [[]] * len(slots))
    assert made.late + made.unplaced <= without.late + without.unplaced
    assert made.bound <= made.objective + 1e-9
