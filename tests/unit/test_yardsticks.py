"""The yardsticks agree with one another where more than one of them gives the true optimum."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.yardsticks import Case, brute_force, linear_programme, most_in_time


@st.composite
def cases(draw: st.DrawFn, *, most_length: int = 1) -> Case:
    """A few chunks in up to 2 x 5 cells."""
    regions, windows = draw(st.integers(1, 2)), draw(st.integers(1, 5))
    shapes, classes = draw(st.integers(1, 2)), draw(st.integers(1, 3))

    def numbers(low: int, high: int, *shape: int) -> np.ndarray:
        size = int(np.prod(shape))
        return np.array(draw(st.lists(st.integers(low, high), min_size=size, max_size=size))).reshape(shape)

    cost = numbers(0, 500, shapes, regions, windows).astype(float)
    cost[numbers(0, 4, shapes, regions, windows) == 0] = np.inf
    return Case(
        slots=numbers(0, 2, regions, windows),
        length=numbers(1, most_length, shapes),
        cost=cost,
        shape=numbers(0, shapes - 1, classes),
        first=numbers(0, windows - 1, classes),
        last=numbers(0, windows - 1, classes),
        count=numbers(0, 2, classes),
    )


@settings(max_examples=60, deadline=None)
@given(cases())
def test_the_three_agree_on_one_window_chunks(case: Case) -> None:
    exact = brute_force(case)
    relaxed = linear_programme(case)
    assert exact.late == case.count.sum() - most_in_time(case)
    assert relaxed.late == pytest.approx(exact.late, abs=1e-7)
    assert relaxed.cost == pytest.approx(exact.cost, abs=1e-5)


@settings(max_examples=40, deadline=None)
@given(cases(most_length=3))
def test_the_relaxation_of_longer_chunks_is_a_lower_bound(case: Case) -> None:
    exact = brute_force(case)
    relaxed = linear_programme(case)
    assert relaxed.late <= exact.late + 1e-7
    if relaxed.late == pytest.approx(exact.late, abs=1e-7):
        assert relaxed.cost <= exact.cost + 1e-5


def test_known_optima() -> None:
    """Two long chunks in three windows: one is late; the other takes the cheaper of its two starts."""
    case = Case(
        slots=np.array([[1, 1, 1]]),
        length=np.array([2]),
        cost=np.array([[[7.0, 5.0, np.inf]]]),
        shape=np.array([0]),
        first=np.array([0]),
        last=np.array([2]),
        count=np.array([2]),
    )
    assert (brute_force(case).late, brute_force(case).cost) == (1, 5.0)
    one = Case(
        np.array([[1, 1]]),
        np.array([1]),
        np.array([[[3.0, 9.0]]]),
        np.array([0, 0]),
        np.array([0, 0]),
        np.array([0, 1]),
        np.array([1, 1]),
    )
    assert most_in_time(one) == 2
    assert brute_force(one).cost == linear_programme(one).cost == 12.0


def test_a_flow_refuses_longer_chunks() -> None:
    case = Case(np.array([[1]]), np.array([2]), np.zeros((1, 1, 1)), *(np.array([0]) for _ in range(3)), np.array([1]))
    with pytest.raises(ValueError, match="one window only"):
        most_in_time(case)
