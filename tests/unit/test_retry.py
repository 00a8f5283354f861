"""Waits between attempts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carbonq import retry


@pytest.mark.parametrize(("attempt", "wait"), [(1, 2.0), (2, 4.0), (3, 8.0), (9, 300.0), (10_000, 300.0)])
def test_it_doubles_up_to_the_cap(attempt: int, wait: float) -> None:
    assert retry.backoff_s(attempt, jitter=0.0) == wait


@given(st.integers(1, 10**9), st.floats(0, 1, exclude_max=True))
def test_jitter_takes_at_most_half(attempt: int, jitter: float) -> None:
    whole = retry.backoff_s(attempt, jitter=0.0)
    assert whole / 2 <= retry.backoff_s(attempt, jitter=jitter) <= whole


def test_the_first_attempt_is_number_one() -> None:
    with pytest.raises(ValueError, match="below 1"):
        retry.backoff_s(0, jitter=0.0)
