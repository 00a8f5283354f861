"""Engine batches: every item once, within the limits, alike in length, as large as the pace allows; their figures."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carbonq import batching
from carbonq.engines.protocol import EngineResult
from carbonq.model import Item
from carbonq.models import WORDLLAMA_256


def item(number: int, tokens: int) -> Item:
    return Item(number, "job_1", number, f"c{number}", 0, 1, tokens)


@given(
    st.lists(st.integers(1, 500), max_size=60),
    st.integers(1, 8),
    st.integers(1, 600),
    st.lists(st.floats(0.5, 1000, allow_nan=False), min_size=1, max_size=5),
)
def test_every_item_runs_once_within_the_limits_of_the_moment(
    tokens: list[int], most: int, limit: int, paces: list[float]
) -> None:
    model = replace(WORDLLAMA_256, batch_items=most, batch_tokens=limit)
    items = [item(number, count) for number, count in enumerate(tokens)]
    cutter = batching.Cutter(items, model, longest_s=20)
    seen: list[int] = []
    longest = turn = 0
    while batch := cutter.take(pace := paces[turn % len(paces)]):
        turn += 1
        seen += [one.item_id for one in batch]
        assert len(batch) <= most
        padded = len(batch) * max(one.est_tokens for one in batch)
        assert len(batch) == 1 or padded <= min(limit, max(1, int(pace * 20)))
        assert min(one.est_tokens for one in batch) >= longest
        longest = max(one.est_tokens for one in batch)
    assert sorted(seen) == list(range(len(tokens)))


@given(st.floats(1, 10_000), st.floats(1, 10_000), st.floats(0, 3))
def test_the_pace_finds_the_engine_s_speed_whatever_was_foretold(start: float, true: float, overhead_s: float) -> None:
    model = replace(WORDLLAMA_256, batch_items=10_000, batch_tokens=10**9)
    cutter = batching.Cutter([], model, longest_s=20)
    pace = batching.Pace(start)
    for _ in range(40):
        tokens = cutter.limit(pace.tokens_per_s)
        pace.learn(tokens, overhead_s + tokens / true)
    # What a batch of the largest size takes is then what it may take, the fixed cost included.
    tokens = cutter.limit(pace.tokens_per_s)
    assert overhead_s + tokens / true <= 20 * 1.05 + 1 / true
    assert overhead_s + tokens / true >= 20 * 0.9 - 2 / true


def test_an_engine_batch_takes_a_third_of_the_lease_and_no_more_than_a_meter_s_interval() -> None:
    assert [batching.longest_s(lease_s) for lease_s in (6.0, 60.0, 600.0)] == [2.0, 20.0, 60.0]


def test_figures_say_the_fill_and_the_times_of_those_items_that_tell() -> None:
    told = EngineResult(200, b"{}", 30, 10, 5, ttft_s=0.2, decode_s=0.4)
    slow = EngineResult(200, b"{}", 10, 0, 2, ttft_s=0.6, decode_s=0.1, is_estimated=True)
    mute = EngineResult(200, b"{}", 10)
    model = replace(WORDLLAMA_256, options={"speculative": "eagle3"})
    assert batching.figures([told, slow, mute], model) == {
        "capacity_items": 512,
        "tokens": 25 + 12 + 10,
        "padded_tokens": 75,
        "estimated_items": 1,
        "ttft_us": 400_000,
        "output_token_us": 100_000,
        "speculative": "eagle3",
    }
    assert tuple(batching.figures([told], model)) == batching.FIGURES


@pytest.mark.parametrize("results", [[], [EngineResult(400, None, 0)], [EngineResult(200, b"{}", 4, decode_s=0.0)]])
def test_what_no_item_tells_is_unknown(results: list[EngineResult]) -> None:
    found = batching.figures(results, WORDLLAMA_256)
    assert (found["ttft_us"], found["output_token_us"], found["speculative"]) == (None, None, None)
