from __future__ import annotations

import itertools
import math
import time
from datetime import UTC, datetime, timedelta
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carbonq.plan.capacity import Capacity
from carbonq.plan.demand import Demand, Kind
from carbonq.plan.solver import lateness
from carbonq.plan.solver.feasible import most_in_time
from carbonq.units import window_index
from tests.unit import yardsticks

W = 300.0
NOW = datetime(2021, 6, 10, 12, tzinfo=UTC)


def demand(
    rows: list[tuple[float, float, float]], kind: list[int] | None = None, sets: tuple[tuple[int, ...], ...] = ((0,),)
) -> Demand:
    """Chunks of (release, due, duration) in windows."""
    columns = np.array(rows, dtype=np.float64).reshape(-1, 3).T * W
    n = columns.shape[1]
    kinds = tuple(Kind(one, (0,) * 3, (0.0,) * 3, math.inf) for one in sets)
    return Demand(*columns, np.array(kind or [0] * n, dtype=np.int64), kinds, np.full((n, 2), -1, dtype=np.int64))


def capacity(slots: list[list[int]], now: datetime = NOW, freeing: tuple[tuple[float, ...], ...] = ()) -> Capacity:
    names = tuple("abc"[: len(slots)])
    return Capacity(names, window_index(now), np.array(slots), (1.0,) * len(slots), freeing)


def test_all_in_time() -> None:
    found = most_in_time(demand([(0, 1, 1), (0, 2, 1), (1, 3, 0.9)]), capacity([[1, 1, 1]]), now=NOW)
    assert (found.in_time.all(), found.late_s.tolist(), found.most, found.is_exact) == (True, [0, 0, 0], 3, True)
    assert found.sentence() is None


def test_the_fewest_are_late_and_as_little_as_can_be() -> None:
    found = most_in_time(demand([(0, 2, 1), (0, 1.5, 1), (0, 2, 1)]), capacity([[1, 1, 0, 1]]), now=NOW)
    assert found.in_time.tolist().count(False) == 1
    assert found.late_s.sum() == 2 * W
    assert found.most == 2
    assert found.sentence() == "1 of 3 chunks cannot be in time; the last of them would be 10 min late"


def test_no_room_within_the_horizon() -> None:
    found = most_in_time(demand([(0, 1, 1), (0, 1, 1), (0, 5, 3)]), capacity([[1, 0]]), now=NOW)
    assert found.in_time.tolist().count(True) == 1
    assert sorted(found.late_s.tolist()) == [0.0, math.inf, math.inf]
    assert "2 find no room within the horizon at all" in str(found.sentence())


def test_a_region_that_few_may_use_is_left_to_them() -> None:
    asked = demand([(0, 1, 1), (0, 1, 1)], kind=[0, 1], sets=((0, 1), (0,)))
    assert most_in_time(asked, capacity([[1], [1]]), now=NOW).in_time.all()


def test_where_earliest_deadline_first_errs_the_flow_decides() -> None:
    """In window 0 the first takes the region that the third needs in it, unless one looks ahead."""
    asked = demand([(0, 2, 1), (0, 3, 1), (1, 2, 1)], kind=[0, 0, 1], sets=((0, 1), (1,)))
    assert most_in_time(asked, capacity([[1, 0, 1], [1, 1, 0]]), now=NOW).in_time.all()


def test_who_is_late_by_less_is_the_late_one() -> None:
    """Both must start in the first window; the second could a little later."""
    for order in ((0.2, 0.9), (0.9, 0.2)):
        asked = demand([(0, 1 + latest, 1) for latest in order], kind=[0, 1], sets=((0, 1), (0,)))
        found = most_in_time(asked, capacity([[1, 1], [0, 0]]), now=NOW)
        assert found.late_s.sum() == pytest.approx(0.1 * W, abs=1)
        assert found.in_time.tolist() == [latest == 0.2 for latest in order]


def test_short_chunks_share_a_slot() -> None:
    asked = demand([(0, 1, 0.1)] * 7 + [(0, 1 + i / 10, 0.01) for i in range(3)])
    assert most_in_time(asked, capacity([[2]]), now=NOW).in_time.all()
    many = most_in_time(demand([(0, 1, 0.1)] * 30), capacity([[2]]), now=NOW)
    assert many.in_time.sum() == 14
    assert many.most == 15


def test_short_ones_with_unlike_deadlines_share_where_they_must() -> None:
    asked = demand([(0, 2 + i, 0.05) for i in range(8)])
    assert most_in_time(asked, capacity([[1] + [0] * 9]), now=NOW).in_time.all()


def test_what_would_overrun_the_running_window_needs_the_next_one_too() -> None:
    now = NOW + timedelta(seconds=200)
    asked = demand([(0, 500 / W, 200 / W)])
    assert most_in_time(asked, capacity([[1, 1, 0]], now), now=now).in_time.all()
    assert not most_in_time(asked, capacity([[1, 0, 0]], now), now=now).in_time.any()


def test_longer_chunks() -> None:
    found = most_in_time(demand([(0, 4, 3), (0, 7, 3), (0, 2, 2)]), capacity([[1] * 9]), now=NOW)
    assert found.in_time.sum() == 2
    assert found.late_s.max() <= 5 * W
    assert (found.most, found.is_exact) == (2, True)
    everything = most_in_time(demand([(0, 6, 3), (0, 6, 3)]), capacity([[1] * 6]), now=NOW)
    assert everything.in_time.all()


def test_the_bound_of_longer_chunks_may_be_higher_than_what_is_found() -> None:
    """Two and two windows around a gap hold no chunk of three, though there are four windows."""
    found = most_in_time(demand([(0, 5, 3)]), capacity([[1, 1, 0, 1, 1]]), now=NOW)
    assert (found.in_time.tolist(), found.most, found.is_exact) == ([False], 1, False)
    assert "at least 0 in any plan" in str(found.sentence())


def test_the_running_window_and_lanes_that_free_themselves() -> None:
    now = NOW + timedelta(seconds=200)
    asked = demand([(0, 100 / W, 90 / W)])
    assert most_in_time(asked, capacity([[1, 1]], now), now=now).in_time.all()
    busy = most_in_time(asked, capacity([[0, 1]], now, ((5.0,),)), now=now)
    assert (busy.in_time.all(), busy.most) == (False, 1)
    urgent = demand([(0, 250 / W, 240 / W)])
    assert most_in_time(urgent, capacity([[1, 1]], now), now=now).in_time.all()
    with pytest.raises(ValueError, match="begin with the window"):
        most_in_time(asked, capacity([[1]]), now=now + timedelta(hours=1))


def test_nothing_asked_and_nothing_allowed() -> None:
    assert most_in_time(demand([]), capacity([[1]]), now=NOW).most == 0
    nowhere = most_in_time(demand([(0, 1, 1)], sets=((),)), capacity([[1]]), now=NOW)
    assert (nowhere.in_time.tolist(), nowhere.late_s.tolist(), nowhere.most) == ([False], [math.inf], 0)


SETS = ((0, 1), (0,), (1,))


@st.composite
def cases(draw: st.DrawFn, *, windows: int = 6, chunks: int = 9) -> tuple[Demand, list[list[int]]]:
    """Chunks of one window that may begin in whole windows."""
    horizon = draw(st.integers(1, windows))
    slots = [draw(st.lists(st.integers(0, 2), min_size=horizon, max_size=horizon)) for _ in range(2)]
    n = draw(st.integers(1, chunks))
    rows: list[tuple[float, float, float]] = []
    for _ in range(n):
        release = draw(st.integers(0, horizon))
        rows.append((release, release + 1 + draw(st.integers(-2, horizon)), 1))
    return demand(rows, [draw(st.integers(0, 2)) for _ in range(n)], SETS), slots


@settings(max_examples=100, deadline=None)
@given(cases(), st.sampled_from([0, 300]))
def test_as_many_in_time_as_the_maximum_flow(case: tuple[Demand, list[list[int]]], most_exact: int) -> None:
    asked, slots = case
    with mock.patch.object(lateness, "MOST_EXACT", most_exact):
        found = most_in_time(asked, capacity(slots), now=NOW)
    cost = np.full((3, *np.array(slots).shape), np.inf)
    for where, rows in enumerate(SETS):
        cost[where, list(rows)] = 0.0
    first, last = np.rint(asked.release_s / W).astype(int), np.rint(asked.latest_s / W).astype(int)
    ones = np.ones(3, dtype=np.int64)
    most = yardsticks.most_in_time(
        yardsticks.Case(np.array(slots), ones, cost, asked.kind, first, last, np.ones(len(asked), dtype=np.int64))
    )
    assert found.in_time.sum() == most == found.most
    assert ((found.late_s > 0) == ~found.in_time).all()
    # Those late have a place of their own beside those in time, if there is one.
    assert np.isfinite(found.late_s).sum() <= np.array(slots).sum()


@settings(max_examples=60, deadline=None)
@given(cases(), st.data())
def test_more_slots_time_or_regions_never_lose_a_chunk(
    case: tuple[Demand, list[list[int]]], data: st.DataObject
) -> None:
    asked, slots = case
    before = int(most_in_time(asked, capacity(slots), now=NOW).in_time.sum())
    row, window = data.draw(st.integers(0, 1)), data.draw(st.integers(0, len(slots[0]) - 1))
    more = [list(one) for one in slots]
    more[row][window] += 1
    assert most_in_time(asked, capacity(more), now=NOW).in_time.sum() >= before
    later = Demand(asked.release_s, asked.due_s + W, asked.duration_s, asked.kind, asked.kinds, asked.current)
    assert most_in_time(later, capacity(slots), now=NOW).in_time.sum() >= before
    turned = asked.take(np.arange(len(asked))[::-1])
    assert most_in_time(turned, capacity(slots), now=NOW).in_time.sum() == before


def least_lateness(asked: Demand, slots: list[list[int]]) -> tuple[int, int, float]:
    """Fewest late, then fewest without a place, then least total lateness, by trying every order of cells."""
    cells = [(r, t) for r, row in enumerate(slots) for t, free in enumerate(row) for _ in range(free)]
    best = (len(asked) + 1, 0, 0.0)
    for chosen in itertools.permutations([*cells, *[None] * len(asked)], len(asked)):
        late, nowhere, total = 0, 0, 0.0
        for i, cell in enumerate(chosen):
            if cell is None:
                late, nowhere = late + 1, nowhere + 1
                continue
            start = cell[1] * W
            if cell[0] not in asked.kinds[asked.kind[i]].regions or start < asked.release_s[i]:
                break
            lateness = max(0.0, start - asked.latest_s[i])
            late, total = late + (lateness > 0), total + lateness
        else:
            best = min(best, (late, nowhere, total))
    return best


@settings(max_examples=40, deadline=None)
@given(cases(windows=2, chunks=3))
def test_least_lateness(case: tuple[Demand, list[list[int]]]) -> None:
    asked, slots = case
    found = most_in_time(asked, capacity(slots), now=NOW)
    late, nowhere, total = least_lateness(asked, slots)
    finite = np.isfinite(found.late_s)
    assert int((~found.in_time).sum()) == late
    assert int((~finite).sum()) == nowhere
    assert found.late_s[finite].sum() == pytest.approx(total)


def test_a_hundred_thousand_chunks() -> None:
    rng = np.random.default_rng(1)
    n, windows = 100_000, 576
    release = rng.integers(0, windows - 100, n).astype(float)
    due = release + rng.choice([13, 49, 97], n)
    asked = demand(
        np.stack((release, due, np.full(n, 0.9)), axis=1).tolist(), rng.integers(0, 2, n).tolist(), ((0, 1), (0,))
    )
    started = time.process_time()
    found = most_in_time(asked, capacity([[150] * windows, [100] * windows]), now=NOW)
    assert found.in_time.all()
    assert time.process_time() - started < 2.0
