"""Read what an OpenAI-compatible server answers, and write it as an item's answer. Pure: bytes in, values out.

Servers differ in how they say errors and usage (vLLM, TEI, llama-server, Ollama, SGLang); what is missing is None here,
and estimated, and marked so, by the engine.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import orjson

#: Longest message of a server that is kept, in characters.
MAX_MESSAGE_CHARS = 500

#: Members of a server's chat answer that are not passed on: ``usage`` is written anew, the rest is the server's own.
_DROPPED = frozenset({"usage", "timings", "prompt_progress", "__verbose", "kv_transfer_params", "prompt_token_ids"})


class MalformedError(ValueError):
    """An answer that is not what the endpoint must give; the message says what is wrong."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens as the server counted them; None where it did not say, or said what cannot be: ``odd`` tells what."""

    prompt: int | None = None
    cached: int | None = None
    completion: int | None = None
    odd: str | None = None

    def within(self, prompt: int, completion: int) -> Usage:
        """Return what of it is not above these limits; the rest is as if it had not been said."""
        odd = self.odd
        kept: dict[str, int | None] = {"prompt": self.prompt, "completion": self.completion}
        for name, limit in (("prompt", prompt), ("completion", completion)):
            count = kept[name]
            if count is not None and count > limit:
                odd = odd or f"{name}_tokens is {count}, of a request that can have {limit} at most"
                kept[name] = None
        return Usage(kept["prompt"], None if kept["prompt"] is None else self.cached, kept["completion"], odd)


@dataclass(frozen=True, slots=True)
class Timings:
    """Machine seconds to the first token and from it to the last; None is unknown."""

    ttft_s: float | None = None
    decode_s: float | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """One good answer: the item's body without ``usage``, and what the server said of its tokens and times."""

    body_json: bytes
    usage: Usage
    timings: Timings = Timings()
    fingerprint: str | None = None


@dataclass(frozen=True, slots=True)
class Said:
    """What a server said of a refused request."""

    message: str
    code: str | None = None
    param: str | None = None


def parse(data: bytes) -> dict[str, Any]:
    """Return an answer's JSON object. Raises MalformedError."""
    try:
        value: object = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise MalformedError(f"no JSON: {error.msg.partition(':')[0]}") from error
    if not isinstance(value, dict):
        raise MalformedError("JSON that is no object")
    return cast(dict[str, Any], value)


def said(data: bytes, status: int) -> Said:
    """Return a refusal's words, in whichever of the usual shapes they are."""
    try:
        body = parse(data)
    except MalformedError:
        text = data.decode(errors="replace").strip()
        return Said(_short(text) or f"the server answered {status} without a word")
    error: object = body.get("error")
    fields = cast(dict[str, Any], error) if isinstance(error, dict) else body
    words: object = fields.get("message")
    if not isinstance(words, str):
        words = error if isinstance(error, str) else body.get("detail")
    if words is not None and not isinstance(words, str):
        words = orjson.dumps(words).decode()
    names: list[object] = [fields.get("code"), fields.get("type"), body.get("error_type")]
    code = next((name for name in names if isinstance(name, str) and name), None)
    param: object = fields.get("param")
    message = _short(words or "") or f"the server answered {status} without a word"
    return Said(message, code, param if isinstance(param, str) else None)


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= MAX_MESSAGE_CHARS else f"{text[: MAX_MESSAGE_CHARS - 3]}..."


def usage_of(value: object) -> Usage:
    """Read a ``usage`` member; whatever is no count is unknown, and odd unless it is null."""
    if not isinstance(value, dict):
        return Usage()
    fields = cast(dict[str, Any], value)
    details: object = fields.get("prompt_tokens_details")
    cached = cast(dict[str, Any], details).get("cached_tokens") if isinstance(details, dict) else None
    prompt = _count(fields.get("prompt_tokens"))
    found = _count(cached)
    # More cached than there are cannot be; then nothing is known of the cache.
    known = None if found is None or prompt is None or found > prompt else found
    said = {"prompt_tokens": fields.get("prompt_tokens"), "completion_tokens": fields.get("completion_tokens")}
    odd = [f"{name} is {value!r}"[:100] for name, value in said.items() if value is not None and _count(value) is None]
    if cached is not None and known is None and prompt is not None:
        odd.append(f"cached_tokens is {cached!r}, of {prompt} prompt_tokens"[:100])
    return Usage(prompt, known, _count(fields.get("completion_tokens")), ", ".join(odd) or None)


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31 else None


def timings_of(value: object) -> Timings:
    """Read llama-server's ``timings`` (milliseconds)."""
    if not isinstance(value, dict):
        return Timings()
    fields = cast(dict[str, Any], value)
    return Timings(_seconds(fields.get("prompt_ms")), _seconds(fields.get("predicted_ms")))


def _seconds(value: object) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and value >= 0
    return float(cast(float, value)) / 1000.0 if is_number else None


def chat(data: bytes, model: str) -> Answer:
    """Read a whole chat completion; ``model`` is the name that the answer carries. Raises MalformedError."""
    body = parse(data)
    choices: object = body.get("choices")
    if not isinstance(choices, list) or not choices:
        raise MalformedError("a chat completion without choices")
    for index, choice in enumerate(cast(list[Any], choices)):
        if not isinstance(choice, dict) or not isinstance(cast(dict[str, Any], choice).get("message"), dict):
            raise MalformedError(f"choices[{index}] has no message")
    kept = {name: value for name, value in body.items() if name not in _DROPPED}
    kept.update(object="chat.completion", model=model)
    fingerprint = body.get("system_fingerprint")
    return Answer(
        orjson.dumps(kept),
        usage_of(body.get("usage")),
        timings_of(body.get("timings")),
        fingerprint if isinstance(fingerprint, str) else None,
    )


class ChatStream:
    """Gathers the pieces of one streamed chat completion with the times at which they came."""

    def __init__(self, model: str, began_s: float, on_text: Callable[[str], None] | None = None) -> None:
        """``began_s`` is when the request was sent, on the clock that ``take`` is given; ``on_text`` gets the text."""
        self._model = model
        self._on_text = on_text
        self._began_s = began_s
        self._first_s: float | None = None
        self._last_s = began_s
        self._texts: list[str] = []
        self._reasons: list[str] = []
        self._finish_reason: str | None = None
        self._identity: dict[str, Any] = {}
        self._usage = Usage()
        self._fingerprint: str | None = None
        self.is_over = False

    def take(self, line: str, now_s: float) -> None:
        """Take one line of the event stream. Raises MalformedError."""
        if not line.startswith("data:"):
            return  # blank lines, comments, names of events
        text = line[5:].strip()
        if text == "[DONE]":
            self.is_over = True
            return
        piece = parse(text.encode())
        if "error" in piece:
            raise MalformedError(f"an error in the stream: {said(text.encode(), 200).message}")
        if not self._identity and "id" in piece:
            self._identity = {"id": piece["id"], "object": "chat.completion", "created": piece.get("created")}
        if piece.get("usage") is not None:
            self._usage = usage_of(piece["usage"])
        if isinstance(piece.get("system_fingerprint"), str):
            self._fingerprint = piece["system_fingerprint"]
        for choice in cast(Sequence[Mapping[str, Any]], piece.get("choices") or ()):
            self._add(choice, now_s)

    def _add(self, choice: Mapping[str, Any], now_s: float) -> None:
        delta: Mapping[str, Any] = choice.get("delta") or {}
        content, reasoning = delta.get("content") or "", delta.get("reasoning_content") or ""
        if content or reasoning:
            self._first_s = now_s if self._first_s is None else self._first_s
            self._last_s = now_s
        self._texts.append(content)
        if content and self._on_text is not None:
            self._on_text(content)
        self._reasons.append(reasoning)
        self._finish_reason = choice.get("finish_reason") or self._finish_reason

    def answer(self) -> Answer:
        """Return the whole answer. Raises MalformedError when the stream ended before it did."""
        if self._finish_reason is None or not self._identity:
            raise MalformedError("a stream that ended before the answer did")
        message = {"role": "assistant", "content": "".join(self._texts)}
        if any(self._reasons):
            message["reasoning_content"] = "".join(self._reasons)
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": self._finish_reason}
        body = {**self._identity, "model": self._model, "choices": [choice]}
        first = self._first_s
        timings = Timings() if first is None else Timings(first - self._began_s, self._last_s - first)
        return Answer(orjson.dumps(body), self._usage, timings, self._fingerprint)


def embeddings(data: bytes, model: str, *, count: int, is_base64: bool) -> Answer:
    """Read the vectors of ``count`` texts in whichever encoding they came and write them in the wanted one.

    Raises MalformedError for too few or too many, a doubled index, or what is no vector.
    """
    body = parse(data)
    rows: object = body.get("data")
    if not isinstance(rows, list):
        raise MalformedError("embeddings without data")
    given = cast(list[Any], rows)
    if len(given) != count:
        raise MalformedError(f"{len(given)} embeddings for {count} texts")
    vectors: dict[int, object] = {}
    for position, row in enumerate(given):
        fields = cast(dict[str, Any], row) if isinstance(row, dict) else {}
        index: object = fields.get("index", position)
        if not isinstance(index, int) or not 0 <= index < count or index in vectors:
            raise MalformedError(f"data[{position}].index is {index!r} of {count} texts")
        vectors[index] = _vector(fields.get("embedding"), position, is_base64=is_base64)
    members = [{"object": "embedding", "index": index, "embedding": vectors[index]} for index in range(count)]
    answer = orjson.dumps({"object": "list", "data": members, "model": model}, option=orjson.OPT_SERIALIZE_NUMPY)
    return Answer(answer, usage_of(body.get("usage")))


def _vector(value: object, position: int, *, is_base64: bool) -> object:
    if isinstance(value, str):
        try:
            raw = base64.b64decode(value, validate=True)
        except binascii.Error as error:
            raise MalformedError(f"data[{position}].embedding is no base64") from error
        if not raw or len(raw) % 4:
            raise MalformedError(f"data[{position}].embedding has {len(raw)} bytes, not a number of 4-byte floats")
        return value if is_base64 else np.frombuffer(raw, dtype="<f4").astype(np.float32)
    if not isinstance(value, list) or not value:
        raise MalformedError(f"data[{position}].embedding is no vector")
    numbers = cast(list[Any], value)
    if not all(type(number) in {float, int} for number in numbers):
        raise MalformedError(f"data[{position}].embedding holds what is no number")
    return base64.b64encode(np.asarray(numbers, dtype="<f4").tobytes()).decode() if is_base64 else numbers
