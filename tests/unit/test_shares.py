"""Invariant 1: shares sum to one and energies to the whole, exactly."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carbonq.shares import apportion, fractions, token_weight

WEIGHTS = st.lists(st.integers(0, 10**6) | st.integers(0, 10**25), min_size=1, max_size=120)
TOTALS = st.integers(0, 10**13) | st.integers(0, 10**30)


def by_definition(total: int, weights: Sequence[int]) -> list[int]:
    """Largest remainder with fractions, one microjoule at a time."""
    whole = sum(weights)
    quotas = [Fraction(total * weight, whole) if whole else Fraction(total, len(weights)) for weight in weights]
    parts = [quota.numerator // quota.denominator for quota in quotas]
    waiting = list(range(len(parts)))
    while sum(parts) < total:
        best = max(waiting, key=lambda i: (quotas[i] - parts[i], -i))
        parts[best] += 1
        waiting.remove(best)
    return parts


@settings(max_examples=50, deadline=None)
@given(TOTALS, WEIGHTS)
def test_parts_sum_to_the_whole_and_are_within_one_microjoule_of_their_quota(total: int, weights: list[int]) -> None:
    parts = apportion(total, weights)
    numerators, denominator = fractions(weights)
    assert sum(parts) == total
    assert sum(numerators) == denominator
    assert all(abs(Fraction(total * n, denominator) - p) < 1 for n, p in zip(numerators, parts, strict=True))


@settings(max_examples=50, deadline=None)
@given(TOTALS, WEIGHTS)
def test_it_is_the_largest_remainder_method_with_ties_by_order(total: int, weights: list[int]) -> None:
    assert apportion(total, weights) == by_definition(total, weights)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**9), st.lists(st.integers(0, 3), min_size=49, max_size=90))
def test_the_vectorised_path_breaks_ties_by_order_too(total: int, weights: list[int]) -> None:
    # Few distinct weights, so that remainders tie all the time.
    assert apportion(total, weights) == by_definition(total, weights)


def test_equal_shares_where_nothing_weighs_anything() -> None:
    assert apportion(11, [0, 0, 0]) == [4, 4, 3]
    assert fractions([0, 0, 0]) == ([1, 1, 1], 3)


def test_an_item_without_weight_gets_nothing() -> None:
    assert apportion(10**6 + 1, [0, 3, 4]) == [0, 428_572, 571_429]


@pytest.mark.parametrize(("total", "weights"), [(1, []), (-1, [1]), (1, [1, -1])])
def test_nonsense_is_refused(total: int, weights: list[int]) -> None:
    with pytest.raises(ValueError, match=r"no items|negative"):
        apportion(total, weights)


def test_cached_tokens_are_part_of_the_prompt() -> None:
    assert token_weight(100, 40, 10, 2, 1, 5) == 2 * 60 + 40 + 50


@pytest.mark.parametrize("tokens", [(10, 11, 0), (-1, 0, 0), (1, 0, -1)])
def test_impossible_token_counts_are_refused(tokens: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="impossible token counts"):
        token_weight(*tokens, 1, 1, 1)
