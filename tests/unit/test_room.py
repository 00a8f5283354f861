from __future__ import annotations

import itertools

import highspy
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carbonq.plan.capacity import Capacity
from carbonq.plan.room import Load, all_in_time_s, in_time_s, share_in_time, slot_seconds

LEFT = 100.0


def cells(rows: list[list[int]]) -> np.ndarray:
    made = np.array(rows, dtype=float) * 300
    made[:, 0] /= 3
    return made


def test_slot_seconds_count_what_is_left_and_lanes_that_free_themselves() -> None:
    made = Capacity(("a", "b"), 0, np.array([[1, 2], [0, 1]]), (0.0, 0.0), ((40.0, 70.0), ()))
    assert slot_seconds(made, 100.0).tolist() == [[100 + 60 + 30, 600], [0, 300]]


def test_what_was_accepted_comes_first_wherever_it_can_be_had() -> None:
    seconds = cells([[1, 1, 1], [1, 1, 1]])
    bound = Load((0,), 400, 400)  # takes region 0 up to its due time
    assert share_in_time(Load((0,), 400, 100), [bound], seconds, LEFT) == 0
    assert share_in_time(Load((0, 1), 400, 400), [bound], seconds, LEFT) == 1
    # What may run anywhere makes way for what may not.
    free = Load((0, 1), 400, 400)
    assert share_in_time(Load((0,), 400, 400), [free], seconds, LEFT) == 1
    assert share_in_time(Load((0,), 400, 400), [free, Load((1,), 400, 200)], seconds, LEFT) == pytest.approx(0.5)
    # Later work is not made late either.
    later = Load((0, 1), 700, 1300)
    assert share_in_time(Load((0, 1), 400, 200), [later], seconds, LEFT) == pytest.approx(0.5)


def test_the_earliest_time_for_all_of_it() -> None:
    seconds = cells([[1, 1, 1, 1]])
    assert all_in_time_s(Load((0,), 0, 50), [], seconds, LEFT) == 100
    assert all_in_time_s(Load((0,), 0, 500), [Load((0,), 300, 150)], seconds, LEFT) == 700
    assert all_in_time_s(Load((0,), 0, 5000), [], seconds, LEFT) is None
    assert share_in_time(Load((0,), -5, 10), [], seconds, LEFT) == 0
    assert share_in_time(Load((0,), 50, 0), [], seconds, LEFT) == 1
    assert share_in_time(Load((0,), 50, 25), [], seconds, LEFT) == 1  # a part of the running window
    assert share_in_time(Load((0,), 50, 100), [], seconds, LEFT) == pytest.approx(0.5)


work = st.builds(
    Load,
    st.sampled_from([(0,), (1,), (0, 1), ()]),
    st.integers(-100, 1400).map(float),
    st.integers(1, 900).map(float),
)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(work, max_size=5), st.lists(st.lists(st.integers(0, 3), min_size=4, max_size=4), min_size=2, max_size=2)
)
def test_it_is_what_a_linear_programme_finds(loads: list[Load], slots: list[list[int]]) -> None:
    seconds = cells(slots)
    edges = sorted({0.0, 100.0, 400.0, 700.0, 1000.0, *(min(max(one.due_s, 0.0), 1000.0) for one in loads)})
    steps = list(itertools.pairwise(edges))
    names = [(n, r, s) for n in range(len(loads)) for r in (0, 1) for s in range(len(steps))]
    bounds = [(0, None if r in loads[n].regions and steps[s][1] <= loads[n].due_s + 1e-9 else 0) for n, r, s in names]
    rows, limits = [], []
    for r in (0, 1):
        for s, (begin, end) in enumerate(steps):
            window = [0.0, 100.0, 400.0, 700.0].index(max(e for e in (0.0, 100.0, 400.0, 700.0) if e <= begin))
            length = 100.0 if window == 0 else 300.0
            rows.append([(rr, ss) == (r, s) for _, rr, ss in names])
            limits.append(seconds[r, window] * (end - begin) / length)
    for n, one in enumerate(loads):
        rows.append([nn == n for nn, _, _ in names])
        limits.append(one.work_s)
    best = 0.0
    if names and loads:
        solver = highspy.Highs()
        solver.silent()
        solver.setOptionValue("threads", 1)  # the process has one scheduler, which others want with one thread too
        amounts = [solver.addVariable(lb=0, ub=highspy.kHighsInf if most is None else most) for _, most in bounds]
        for row, limit in zip(rows, limits, strict=True):
            solver.addConstr(sum([amount for part, amount in zip(row, amounts, strict=True) if part]) <= limit)
        solver.maximize(sum(amounts))
        best = solver.getObjectiveValue()
    assert in_time_s(loads, seconds, LEFT) == pytest.approx(best, abs=0.001 * (len(steps) * 2 + len(loads)) + 1e-6)


@pytest.mark.parametrize("work_s", [0.0004, 0.0151, 0.15, 0.19, 1.97])
def test_a_job_of_a_moment_fits_an_idle_fleet(work_s: float) -> None:
    seconds = np.full((2, 4), 300.0)
    new = Load((0, 1), 900.0, work_s)
    assert share_in_time(new, [], seconds, 300.0) == 1.0
    assert share_in_time(new, [Load((0,), 600.0, 0.05), Load((1,), 900.0, 0.33)], seconds, 300.0) == 1.0
    assert all_in_time_s(new, [], seconds, 300.0) == 300.0
    assert share_in_time(Load((0,), -1.0, work_s), [], seconds, 300.0) == 0.0
    assert share_in_time(Load((0,), 900.0, 2_000.0), [], seconds, 300.0) == pytest.approx(0.45)
