"""Cutting items into chunks loses none and doubles none."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carbonq import chunking
from carbonq.chunking import Piece

T0 = datetime(2026, 3, 2, 8, 0, tzinfo=UTC)

SIZES = st.lists(st.integers(1, 5_000), max_size=300)


def pieces(sizes: list[int]) -> list[Piece]:
    return [Piece(n, f"job_{n % 3}", size) for n, size in enumerate(sizes)]


@given(SIZES, st.floats(0, 20_000), st.integers(1, 50))
def test_every_item_lands_in_exactly_one_chunk_within_the_limits(
    sizes: list[int], max_tokens: float, max_items: int
) -> None:
    given_pieces = pieces(sizes)
    cut = chunking.cut(given_pieces, max_tokens=max_tokens, max_items=max_items)
    assert Counter(piece for group in cut for piece in group) == Counter(given_pieces)
    for group in cut:
        assert 1 <= len(group) <= max_items
        assert len(group) == 1 or sum(piece.est_tokens for piece in group) <= max_tokens
    assert chunking.cut(list(reversed(given_pieces)), max_tokens=max_tokens, max_items=max_items) == cut


@given(SIZES, st.integers(5_000, 50_000), st.integers(5, 60))
def test_lengths_do_not_mix_and_few_chunks_are_made(sizes: list[int], max_tokens: int, max_items: int) -> None:
    cut = chunking.cut(pieces(sizes), max_tokens=max_tokens, max_items=max_items)
    for before, after in pairwise(cut):
        assert max(piece.est_tokens for piece in before) <= min(piece.est_tokens for piece in after)
    # Never so small that two neighbours could have been one.
    for group, after in pairwise(cut):
        joined = group + after
        fits = sum(piece.est_tokens for piece in joined) <= max_tokens * 0.9 and len(joined) <= max_items * 0.9
        assert not fits


def test_equal_items_make_equal_chunks() -> None:
    cut = chunking.cut(pieces([10] * 1010), max_tokens=1000, max_items=10_000)
    assert sorted(len(group) for group in cut) == [91] * 2 + [92] * 9
    assert [len(group) for group in chunking.cut(pieces([1] * 25), max_tokens=1e9, max_items=10)] == [9, 8, 8]
    assert chunking.cut([], max_tokens=1, max_items=1) == []
    with pytest.raises(ValueError, match="max_items"):
        chunking.cut([], max_tokens=1, max_items=0)


def test_deadlines_share_a_class_only_when_they_are_close() -> None:
    def same(left: timedelta, other: timedelta) -> bool:
        return chunking.deadline_class(T0 + left, T0) == chunking.deadline_class(T0 + other, T0)

    assert same(timedelta(minutes=31), timedelta(minutes=34))
    assert not same(timedelta(minutes=31), timedelta(minutes=36))
    assert same(timedelta(hours=2, minutes=1), timedelta(hours=2, minutes=14))
    assert same(timedelta(hours=12, minutes=1), timedelta(hours=12, minutes=59))
    assert not same(timedelta(hours=12, minutes=1), timedelta(hours=13, minutes=1))


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_a_shared_deadline_costs_at_most_an_hour_and_little_when_near(left_s: int, other_s: int) -> None:
    first, second = T0 + timedelta(seconds=left_s), T0 + timedelta(seconds=other_s)
    if chunking.deadline_class(first, T0) == chunking.deadline_class(second, T0):
        lost_s = abs(left_s - other_s)
        assert lost_s < 3600
        assert lost_s <= 300 or lost_s <= 0.3 * max(left_s, other_s)


def test_the_budget_of_a_chunk() -> None:
    def budget(left_s: float, factor: float = 1.0) -> float:
        return chunking.budget_s(left_s, 62, chunk_fill=0.5, factor=factor)

    assert budget(3600) == 150
    assert budget(3600, 75) == 2
    assert budget(62 + 100) == pytest.approx(50)
    assert budget(-1000) == 15  # late anyway: short, but no crumbs


def test_the_queue_serves_first_come_first_served() -> None:
    free_at = [T0, T0 + timedelta(seconds=50)]
    starts = [chunking.queue_up(free_at, T0 + timedelta(seconds=10 * n), 100) for n in range(4)]
    assert [(start - T0).total_seconds() for start in starts] == [0, 50, 100, 150]
