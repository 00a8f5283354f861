"""Foretell tokens, durations and energies before anything ran. Pure.

Tokens are estimated by script where a model's tokenizer was measured (``Model.script_tokens``), else from UTF-8 bytes:
closer than counting characters, but of emoji and East Asian scripts low by a factor of two to four where the vocabulary
is small. Durations are machine seconds on one slot; energies whole microjoules.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from math import ceil, log, sqrt
from typing import Any, NamedTuple, cast

import numpy as np

from carbonq import summarize
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
    if text.isascii():
        return max(1, ceil(len(text) / model.chars_per_token))
    data = text.encode("utf-8", "replace")
    if not model.script_tokens:
        return max(1, ceil(len(data) / model.chars_per_token))
    counts = np.bincount(np.frombuffer(data, dtype=np.uint8), minlength=256)
    return max(1, ceil(float(counts @ _tokens_by_byte(model.chars_per_token, model.script_tokens)) - 1e-9))


@lru_cache
def _tokens_by_byte(chars_per_token: float, script_tokens: tuple[tuple[int, float], ...]) -> np.ndarray[Any, Any]:
    """Return the tokens that each byte of UTF-8 stands for: a character's are with its first byte."""
    table = np.zeros(256)
    table[:0x80] = 1 / chars_per_token
    for first, tokens in script_tokens:
        table[first:] = tokens
    return table


def body_tokens(body: Mapping[str, Any], model: Model) -> BodyTokens:
    """Estimate the tokens of a request body; never fails, whatever its members are (the engine judges them)."""
    if model.endpoint is Endpoint.EMBEDDINGS:
        inputs = _input_tokens(body.get("input"), model)
        return BodyTokens(sum(inputs), 0, max(inputs, default=0))
    prompt = _message_tokens(body.get("messages"), model)
    if summarize.MEMBER in body:
        answer = completion_tokens(body, model)
        return BodyTokens(*summarize.foretell(prompt, summarize.room(model.max_input_tokens, answer), answer))
    return BodyTokens(prompt, completion_tokens(body, model), prompt)


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


def completion_tokens(body: Mapping[str, Any], model: Model) -> int:
    """Return the most tokens an answer may have: what the body asks for, up to the model's limit."""
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


#: (billions of parameters, joules per generated token) at the best batch size on as many H100 as a model needs:
#: ML.ENERGY v3, lm-arena-chat (Llama 3.1 8B, Qwen3 14B and 32B, Llama 3.1 70B, and 405B in FP8). The prompts' energy is
#: in them.
DECODE_BEST_J = ((8.0, 0.070), (14.0, 0.112), (32.0, 0.229), (70.0, 0.373), (405.0, 2.06))

#: The same at batch size 8.
DECODE_AT_8_J = ((8.0, 0.455), (70.0, 3.76))

#: Joules of a prompt token for each billion of parameters: 2 FLOP for each parameter at 40 % of an H100's 989 TFLOP/s
#: (dense bf16) and its 700 W. Derived from the data sheet, not measured.
PREFILL_J = 2e9 / (0.4 * 989e12) * 700

#: Energy of a token beside an H100's. B200: measured by ML.ENERGY (8B: 0.047 and 0.070 J); H200: an H100 with more
#: memory; the others by data sheet, watts for each dense bf16 TFLOP/s (A100 400/312, L40S 350/362, H100 700/989).
GPU_FACTORS: Mapping[str, float] = {"b200": 0.67, "h100": 1.0, "h200": 1.0, "l40s": 1.37, "a100": 1.81}

#: Share of generated tokens among a chat item's, where nothing is known of the items.
DECODE_SHARE = 0.25


class TokenEnergy(NamedTuple):
    """What a token is estimated to need, in whole microjoules: of a prompt, of a cached prompt, generated."""

    prefill_uj: int
    cached_uj: int
    decode_uj: int

    def request_uj(self, prompt: int, cached: int, completion: int) -> int:
        """Return a request's energy; ``cached`` are among ``prompt``."""
        return (prompt - cached) * self.prefill_uj + cached * self.cached_uj + completion * self.decode_uj


def token_energy(parameters_b: float, hardware: str) -> TokenEnergy:
    """Estimate the energy of a model's tokens on a GPU, for as long as nothing was measured.

    ``hardware`` is free text; one that names none of ``GPU_FACTORS`` counts as an H100. Generated tokens: the geometric
    mean of the best batch size and of 8, as it is not known how full the server is (a factor of 6 to 10 lies between).
    Cached tokens are only read: nothing.
    """
    factor = next((factor for name, factor in GPU_FACTORS.items() if name in hardware.lower()), 1.0)
    decode_j = sqrt(_on_line(DECODE_BEST_J, parameters_b) * _on_line(DECODE_AT_8_J, parameters_b))
    return TokenEnergy(round(PREFILL_J * parameters_b * factor * 1e6), 0, round(decode_j * factor * 1e6))


def _on_line(points: Sequence[tuple[float, float]], at: float) -> float:
    """Read a line through points on logarithmic scales; beyond the ends its last pieces go on."""
    pairs = list(pairwise(points))
    (x0, y0), (x1, y1) = next((pair for pair in pairs if at <= pair[1][0]), pairs[-1])
    return y0 * (at / x0) ** (log(y1 / y0) / log(x1 / x0))


def starting_uj_per_token(model: Model, hardware: str) -> int:
    """Return the energy of a model's token before anything was measured, whatever kind of token it is."""
    parameters_b: object = model.options.get("parameters_b")
    if not isinstance(parameters_b, float):
        return model.uj_per_token
    energy = token_energy(parameters_b, hardware)
    share = DECODE_SHARE if model.endpoint is Endpoint.CHAT else 0.0
    return max(1, round(energy.prefill_uj * (1 - share) + energy.decode_uj * share))


def speed(model: Model, hardware: str, learned: Mapping[tuple[str, str], Throughput]) -> Speed:
    """Return the speed of a model on a hardware: as learned, else the model's starting values."""
    seen = learned.get((model.name, hardware))
    if seen is None or seen.tokens_per_s <= 0:
        return Speed(model.tokens_per_s, starting_uj_per_token(model, hardware), is_learned=False)
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


def worst_speed(model: Model, regions: Sequence[Region], learned: Mapping[tuple[str, str], Throughput]) -> Speed:
    """Return what is sure of a model wherever it runs: the slowest of some regions and the hungriest; there is one."""
    lanes = [speed(model, region.hardware, learned) for region in regions]
    return Speed(
        min(lane.tokens_per_s for lane in lanes),
        max(lane.uj_per_token for lane in lanes),
        is_learned=all(lane.is_learned for lane in lanes),
    )


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
