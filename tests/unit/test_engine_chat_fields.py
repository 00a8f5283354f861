"""Fields of a chat request are used, without effect or refused by name: none is ignored in silence."""

from __future__ import annotations

from typing import Any

import pytest

from carbonq.engines import chat_fields
from carbonq.errors import InvalidRequest

USUAL: list[dict[str, Any]] = [
    {"temperature": 0.5, "max_tokens": 3, "messages": [], "model": "m", "n": 1},
    {"user": "me", "metadata": {"a": "b"}, "stream_options": {"include_usage": True}, "parallel_tool_calls": True},
    {"store": False, "service_tier": "auto", "tools": [], "tool_choice": "none", "modalities": ["text"]},
    {"logit_bias": {}, "reasoning_effort": None, "audio": None, "nobody_knows": None},
]


@pytest.mark.parametrize("body", USUAL)
def test_what_is_done_anyhow_may_be_asked_for(body: dict[str, Any]) -> None:
    chat_fields.check(body, "m")


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("store", True, "store is not offered by m but for False"),
        ("service_tier", "flex", "but for 'auto' and 'default'"),
        ("logit_bias", {"1": 2}, "logit_bias is not offered"),
        ("reasoning_effort", "high", "reasoning_effort is not offered"),
        ("audio", {}, "audio is not offered by m$"),
        ("min_p", 0.1, "min_p is not known to m, which takes frequency_penalty"),
    ],
)
def test_what_would_change_the_answer_is_refused_by_name(name: str, value: object, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said) as refused:
        chat_fields.check({name: value}, "m")
    assert refused.value.param == name
