"""Which fields of a chat request an engine in process takes: used, without effect here, or refused by name. Pure.

A field that is ignored in silence would be a lie about the answer; docs/engines.md has the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from carbonq.errors import InvalidRequest

#: Fields that reach the engine as they are.
PASSED = ("frequency_penalty", "presence_penalty", "response_format", "seed", "stop", "temperature", "top_p")

#: Fields that carbonq itself reads.
READ = frozenset({"max_completion_tokens", "max_tokens", "messages", "model", "n"})

#: Fields that change nothing of an answer here, whatever they hold.
WITHOUT_EFFECT = frozenset(
    {
        *("metadata", "parallel_tool_calls", "prompt_cache_key", "prompt_cache_retention", "safety_identifier"),
        *("stream_options", "user"),
    }
)

#: Values of further fields that ask for nothing but what is done anyhow; any other value is refused.
_AS_USUAL: Mapping[str, tuple[Any, ...]] = {
    "function_call": ("none", "auto"),
    "logprobs": (False,),
    "logit_bias": ({},),
    "modalities": (["text"],),
    "reasoning_effort": ("none",),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "stream": (False,),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "functions": ([],),
    "top_logprobs": (0,),
    "verbosity": ("medium",),
}

_REFUSED = frozenset({"audio", "prediction", "web_search_options"})


def check(body: Mapping[str, Any], model: str) -> None:
    """Refuse what would change an answer in a way that is not offered, and what nobody knows. Raises InvalidRequest."""
    for name, value in body.items():
        if value is None or name in PASSED or name in READ or name in WITHOUT_EFFECT:
            continue
        usual = _AS_USUAL.get(name)
        if usual is None and name not in _REFUSED:
            known = ", ".join(sorted((*PASSED, *READ)))
            raise InvalidRequest(f"{name} is not known to {model}, which takes {known}", param=name)
        if usual is None or value not in usual:
            only = "" if usual is None else f" but for {' and '.join(map(repr, usual))}"
            raise InvalidRequest(f"{name} is not offered by {model}{only}", param=name)
