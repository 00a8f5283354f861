"""Summaries by any chat engine: a body with ``summarize`` is answered in rounds, within its item.

The parts of all documents of an engine batch are asked together, round by round. An item's tokens are those of all its
prompts and answers, so that its one entry holds its whole energy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import orjson

from carbonq import estimate, summarize
from carbonq.engines.protocol import Engine, EngineRequest, EngineResult, ShouldStop, Stopped
from carbonq.errors import InvalidRequest
from carbonq.model import Model
from carbonq.summarize import NotShorterError, Summary

#: Codes by which engines say that a prompt does not fit.
_TOO_LONG = frozenset({"context_length_exceeded", "exceed_context_size_error"})


@dataclass(slots=True)
class _Item:
    """One request: what is asked for it now, all results so far, and the one that ends it."""

    request: EngineRequest
    summary: Summary | None = None
    wanted_tokens: int = 0
    asked: list[EngineRequest] = field(default_factory=list[EngineRequest])
    results: list[EngineResult] = field(default_factory=list[EngineResult])
    end: EngineResult | None = None


class SummarizingEngine:
    """A chat engine that also summarises; whatever else it is asked goes to ``inner`` as it is."""

    def __init__(self, inner: Engine, model: Model) -> None:
        """Wrap an engine of ``model``."""
        self._inner = inner
        self._model = model

    @property
    def name(self) -> str:
        """The inner engine's name."""
        return self._inner.name

    @property
    def version(self) -> str:
        """The inner engine's version."""
        return self._inner.version

    def load(self) -> None:
        """Load the inner engine. Raises ConfigError."""
        self._inner.load()

    def pids(self) -> Sequence[int]:
        """Return the inner engine's processes."""
        return self._inner.pids()

    def close(self) -> None:
        """Close the inner engine."""
        self._inner.close()

    def run(self, requests: Sequence[EngineRequest], should_stop: ShouldStop) -> Sequence[EngineResult]:
        """Answer all requests, summaries in rounds. Raises what the inner engine raises; nothing is done then."""
        if not any(summarize.MEMBER in request.body for request in requests):
            return self._inner.run(requests, should_stop)
        items = [self._begin(request) for request in requests]
        while open_ones := [item for item in items if item.end is None]:
            if should_stop():
                raise Stopped
            for item in open_ones:
                item.asked = self._asks(item)
            asked = [one for item in open_ones for one in item.asked]
            given = iter(self._inner.run(asked, should_stop))
            for item in open_ones:
                self._take(item, [next(given) for _ in item.asked])
        return [item.end for item in items if item.end is not None]

    def _begin(self, request: EngineRequest) -> _Item:
        item = _Item(request)
        try:
            if summarize.MEMBER in request.body:
                text, version = _document(request.body)
                item.wanted_tokens = estimate.completion_tokens(request.body, self._model)
                fits = summarize.room(self._model.max_input_tokens, item.wanted_tokens)
                item.summary = Summary(text, version, fits, lambda one: estimate.text_tokens(one, self._model))
        except InvalidRequest as error:
            item.end = EngineResult(
                400, None, 0, error_code=error.code, error_message=error.message, error_param=error.param
            )
        return item

    def _asks(self, item: _Item) -> list[EngineRequest]:
        if item.summary is None:
            return [item.request]
        kept = {name: value for name, value in item.request.body.items() if name != summarize.MEMBER}
        kept.pop("max_completion_tokens", None)
        part = summarize.room(self._model.max_input_tokens, item.wanted_tokens).answer
        limit = item.wanted_tokens if item.summary.is_last else part
        return [
            EngineRequest(
                item.request.custom_id, {**kept, "messages": [{"role": "user", "content": words}], "max_tokens": limit}
            )
            for words in item.summary.asks()
        ]

    def _take(self, item: _Item, results: Sequence[EngineResult]) -> None:
        item.results += results
        summary = item.summary
        if summary is None:
            item.end = results[0]
            return
        bad = next((one for one in results if one.error_code is not None and not _is_too_long(one)), None)
        if bad is not None:
            item.end = _total(bad, item.results)
            return
        try:
            is_over = summary.take([None if one.error_code is not None else _text(one) for one in results])
        except NotShorterError as error:
            refused = EngineResult(400, None, 0, error_code="no_summary", error_message=str(error))
            item.end = _total(refused, item.results)
            return
        if is_over:
            body = orjson.loads(results[-1].body_json or b"{}")
            body["summary"] = summary.facts()
            item.end = _total(replace(results[-1], body_json=orjson.dumps(body)), item.results)


def _document(body: Mapping[str, Any]) -> tuple[str, str]:
    """Return the document and the version of the prompts. Raises InvalidRequest."""
    asked: object = body[summarize.MEMBER]
    members = cast(dict[str, Any], asked) if isinstance(asked, dict) else {"prompt_version": None}
    version: object = members.get("prompt_version", summarize.PROMPT_VERSION)
    if not isinstance(version, str) or version not in summarize.PROMPTS:
        known = ", ".join(summarize.PROMPTS)
        raise InvalidRequest(
            f'summarize must be an object such as {{"prompt_version": "1"}}; known versions: {known}',
            param=summarize.MEMBER,
        )
    messages: object = body.get("messages")
    first: object = cast(list[Any], messages)[0] if isinstance(messages, list) and messages else None
    text: object = cast(dict[str, Any], first).get("content") if isinstance(first, dict) else None
    if not isinstance(text, str) or not text.strip() or len(cast(list[Any], messages)) != 1:
        raise InvalidRequest("messages must be one message whose content is the document, as text", param="messages")
    return text, version


def _is_too_long(result: EngineResult) -> bool:
    words = (result.error_message or "").lower()
    return result.error_code in _TOO_LONG or (result.status_code == 400 and "context length" in words)


def _text(result: EngineResult) -> str:
    message = orjson.loads(result.body_json or b"{}")["choices"][0]["message"]
    return str(message.get("content") or "")


def _total(last: EngineResult, results: Sequence[EngineResult]) -> EngineResult:
    """Return a result with the tokens of all; times of single answers say nothing of the whole."""
    return replace(
        last,
        prompt_tokens=sum(one.prompt_tokens for one in results),
        cached_tokens=sum(one.cached_tokens for one in results),
        completion_tokens=sum(one.completion_tokens for one in results),
        is_estimated=any(one.is_estimated for one in results),
        ttft_s=last.ttft_s if len(results) == 1 else None,
        decode_s=last.decode_s if len(results) == 1 else None,
    )
