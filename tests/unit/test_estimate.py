"""Estimates before anything ran."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carbonq import estimate
from carbonq.model import Endpoint, Model, Region, Throughput

EMBED = Model("e", "x", Endpoint.EMBEDDINGS, 100, 4.0, 1000.0, 7, 1000, 10)
CHAT = Model("c", "x", Endpoint.CHAT, 100, 4.0, 10.0, 7, 1000, 10, max_output_tokens=50)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize(
    ("value", "prompt", "longest"),
    [
        ("12345678", 2, 2),
        ("", 1, 1),
        ("ääää", 2, 2),
        (["1234", "12345678"], 3, 2),
        ([1, 2, 3], 3, 3),
        ([[1, 2, 3], [4]], 4, 3),
        (None, 0, 0),
        (5, 0, 0),
        ([], 0, 0),
    ],
)
def test_embedding_inputs(value: Any, prompt: int, longest: int) -> None:
    tokens = estimate.body_tokens({"input": value}, EMBED)
    assert (tokens.prompt, tokens.completion, tokens.longest) == (prompt, 0, longest)
    assert tokens.total == max(1, prompt)


@pytest.mark.parametrize(
    ("body", "prompt", "completion"),
    [
        ({"messages": [{"role": "user", "content": "12345678"}]}, 6, 50),
        ({"messages": [{"role": "user", "content": "1234"}] * 2, "max_tokens": 7}, 10, 7),
        ({"messages": [{"content": [{"type": "text", "text": "1234"}, {"type": "image"}, 3]}]}, 5, 50),
        ({"max_completion_tokens": 9, "max_tokens": 7}, 0, 9),
        ({"messages": "x", "max_tokens": 1000}, 0, 50),
        ({"messages": ["x", None], "max_tokens": True}, 8, 50),
        ({"max_tokens": -5}, 0, 50),
    ],
)
def test_chat_bodies(body: dict[str, Any], prompt: int, completion: int) -> None:
    tokens = estimate.body_tokens(body, CHAT)
    assert (tokens.prompt, tokens.completion, tokens.longest) == (prompt, completion, prompt)


@given(st.dictionaries(st.sampled_from(["input", "messages", "max_tokens", "max_completion_tokens"]), JSON))
def test_no_body_makes_it_fail(body: dict[str, Any]) -> None:
    for model in (EMBED, CHAT):
        assert estimate.body_tokens(body, model).total >= 1


def test_learned_speed_wins() -> None:
    learned = {("e", "gpu"): Throughput("e", "gpu", 5000.0, 3, 10)}
    assert estimate.speed(EMBED, "gpu", learned) == (5000.0, 3, True)
    assert estimate.speed(EMBED, "cpu", learned) == (1000.0, 7, False)
    assert estimate.duration_s(500, 1000.0) == 0.5
    assert estimate.energy_uj(500, 7) == 3500


def test_allowed_regions() -> None:
    def region(name: str, models: tuple[str, ...] | None = None) -> Region:
        return Region(name, "z", 1, Decimal(1), "", "cpu", models=models)

    regions = [region("a"), region("b", ("other",)), region("c", ("e",))]
    assert [one.name for one in estimate.allowed_regions(regions, None, "e")] == ["a", "c"]
    assert [one.name for one in estimate.allowed_regions(regions, ("b", "c"), "e")] == ["c"]


def test_a_job_alone() -> None:
    # 90 s of work on each of two slots, chunks of 30 s in windows of 50 s: three windows, the last one ending after 30.
    alone = estimate.alone(18_000, 10, [(1, 100.0), (1, 100.0)], window_s=50, chunk_fill=0.6)
    assert (alone.shortest_s, alone.longest_chunk_s, alone.slots) == (150.0, 30.0, 2)
    short = estimate.alone(100, 10, [(2, 100.0)], window_s=50, chunk_fill=0.6)
    assert short.shortest_s == short.longest_chunk_s == 0.5
    # An item cannot be cut: it takes its time on the fastest slot, however many slots there are.
    single = estimate.alone(1000, 1000, [(9, 10.0), (1, 20.0)], window_s=50, chunk_fill=0.6)
    assert single.shortest_s == single.longest_chunk_s == 50.0


def test_only_texts_far_over_the_limit_are_surely_over() -> None:
    assert not estimate.is_surely_over(150, 100)
    assert estimate.is_surely_over(151, 100)
