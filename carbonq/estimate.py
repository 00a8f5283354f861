"""Foretell tokens, durations and energies before anything ran. Pure.

Tokens are estimated from UTF-8 bytes: for scripts outside ASCII that is closer than counting characters. Durations are
machine seconds on one slot; energies whole microjoules.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any, NamedTuple, cast

from carbonq.model import Endpoint, Model, Region, Throughput

#: Tokens a chat message adds for its role and separators.
MESSAGE_TOKENS = 4

#: An estimate may be this far above the truth; only texts beyond it are surely over a model's limit.
SURELY_OVER = 1.5


class BodyTokens(NamedTuple):
    """The tokens a request body is thought to need; ``longest`` is its longest single input."""

    prompt: int
    completion: int
    longest: int

    @property
    def total(self) -> int:
        """Prompt and completion together, at least 1."""
        return max(1, self.prompt + self.completion)


def text_tokens(text: str, model: Model) -> int:
    """Estimate the tokens of a text, at least 1."""
    size = len(text) if text.isascii() else len(text.encode("utf-8", "replace"))
    return max(1, ceil(size / model.chars_per_token))


def body_tokens(body: Mapping[str, Any], model: Model) -> BodyTokens:
    """Estimate the tokens of a request body; never fails, whatever its members are (the engine judges them)."""
    if model.endpoint is Endpoint.EMBEDDINGS:
        inputs = _input_tokens(body.get("input"), model)
        return BodyTokens(sum(inputs), 0, max(inputs, default=0))
    prompt = _message_tokens(body.get("messages"), model)
    return BodyTokens(prompt, _completion_tokens(body, model), prompt)


def _input_tokens(value: object, model: Model) -> list[int]:
    if isinstance(value, str):
        return [text_tokens(value, model)]
    if not isinstance(value, list):
        return []
    parts = cast("list[object]", value)
    if parts and all(isinstance(part, int) for part in parts):
        return [len(parts)]  # already tokens
    return [
        text_tokens(part, model) if isinstance(part, str) else len(cast("list[object]", part))
        for part in parts
        if isinstance(part, str | list)
    ]


def _message_tokens(value: object, model: Model) -> int:
    if not isinstance(value, list):
        return 0
    total = 0
    for message in cast("list[object]", value):
        content = cast("dict[str, object]", message).get("content") if isinstance(message, dict) else None
        total += MESSAGE_TOKENS
        if isinstance(content, str):
            total += text_tokens(content, model)
        elif isinstance(content, list):
            for part in cast("list[object]", content):
                text = cast("dict[str, object]", part).get("text") if isinstance(part, dict) else None
                total += text_tokens(text, model) if isinstance(text, str) else 0
    return total


def _completion_tokens(body: Mapping[str, Any], model: Model) -> int:
    for name in ("max_completion_tokens", "max_tokens"):
        asked: object = body.get(name)
        if isinstance(asked, int) and not isinstance(asked, bool) and asked > 0:
            return min(asked, model.max_output_tokens)
    default: object = model.options.get("default_output_tokens")
    return default if isinstance(default, int) else model.max_output_tokens


def is_surely_over(tokens: int, limit: int) -> bool:
    """Say whether an estimate is so far over a limit that the true count must be over it too."""
    return tokens > limit * SURELY_OVER


class Speed(NamedTuple):
    """What one slot of a region does with a model; ``is_learned`` False means the documented starting value."""

    tokens_per_s: float
    uj_per_token: int
    is_learned: bool


def speed(model: Model, hardware: str, learned: Mapping[tuple[str, str], Throughput]) -> Speed:
    """Return the speed of a model on a hardware: as learned, else the model's starting values."""
    seen = learned.get((model.name, hardware))
    if seen is None or seen.tokens_per_s <= 0:
        return Speed(model.tokens_per_s, model.uj_per_token, is_learned=False)
    return Speed(seen.tokens_per_s, seen.uj_per_token, is_learned=True)


def duration_s(tokens: int, tokens_per_s: float) -> float:
    """Return the machine seconds one slot needs for some tokens."""
    return tokens / tokens_per_s


def energy_uj(tokens: int, uj_per_token: int) -> int:
    """Return the energy some tokens need, in microjoules."""
    return tokens * uj_per_token


def allowed_regions(regions: Sequence[Region], names: Sequence[str] | None, model: str) -> list[Region]:
    """Return the regions that serve a model and are among ``names`` (None: all)."""
    return [region for region in regions if region.serves(model) and (names is None or region.name in names)]


class Alone(NamedTuple):
    """How long a job would take with all its regions' slots to itself, in machine seconds."""

    shortest_s: float
    longest_chunk_s: float
    slots: int


def alone(
    tokens: int,
    longest_item: int,
    lanes: Sequence[tuple[int, float]],
    *,
    window_s: float,
    chunk_fill: float,
) -> Alone:
    """Return how long a job takes alone on ``lanes``: (slots, tokens_per_s) of each allowed region.

    ``window_s`` is a window's length in machine seconds: a slot is given one chunk of at most ``chunk_fill`` of it in
    each window, and no item is cut.
    """
    slots = sum(count for count, _ in lanes)
    per_slot_s = tokens / sum(count * rate for count, rate in lanes)
    item_s = longest_item / max(rate for _, rate in lanes)
    chunk_s = chunk_fill * window_s
    whole_windows, rest_s = divmod(per_slot_s, chunk_s)
    return Alone(
        shortest_s=max(item_s, whole_windows * window_s + rest_s),
        longest_chunk_s=max(item_s, min(per_slot_s, chunk_s)),
        slots=slots,
    )
