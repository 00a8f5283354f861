"""Engine batches: every item once, within the limits, alike in length."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from carbonq import batching
from carbonq.model import Item
from carbonq.models import WORDLLAMA_256


def item(number: int, tokens: int) -> Item:
    return Item(number, "job_1", number, f"c{number}", 0, 1, tokens)


@given(
    st.lists(st.integers(1, 500), max_size=60),
    st.integers(1, 8),
    st.integers(1, 600),
    st.floats(0.5, 1000, allow_nan=False),
)
def test_every_item_runs_once_within_the_limits(tokens: list[int], most: int, limit: int, speed: float) -> None:
    model = replace(WORDLLAMA_256, batch_items=most, batch_tokens=limit, tokens_per_s=speed)
    items = [item(number, count) for number, count in enumerate(tokens)]
    batches = batching.cut(items, model)
    assert sorted(one.item_id for batch in batches for one in batch) == list(range(len(tokens)))
    longest = 0
    for batch in batches:
        assert len(batch) <= most
        padded = len(batch) * max(one.est_tokens for one in batch)
        assert len(batch) == 1 or padded <= min(limit, max(1, int(speed * batching.MAX_BATCH_S)))
        assert min(one.est_tokens for one in batch) >= longest
        longest = max(one.est_tokens for one in batch)
