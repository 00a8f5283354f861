"""What ``submit`` and ``quote`` take as items, turned into OpenAI batch lines one at a time. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, cast

import orjson

from carbonq import jsonl
from carbonq.errors import InvalidRequest
from carbonq.model import Endpoint
from carbonq.units import iso

#: A text, a document or OpenAI line as a mapping, or an OpenAI line as bytes.
Item = str | bytes | Mapping[str, Any]

#: What a job can be called instead of its endpoint.
KINDS = {"embeddings": Endpoint.EMBEDDINGS, "summarize": Endpoint.CHAT, "chat": Endpoint.CHAT}

_SHAPE = 'a text, {"id": "a-1", "text": "..."}, or an OpenAI line as a mapping or as bytes'


def endpoint_of(endpoint: str | None, kind: str | None) -> Endpoint:
    """Return the endpoint that was named one way or the other. Raises InvalidRequest."""
    if (endpoint is None) == (kind is None):
        raise InvalidRequest(f"give either endpoint ({', '.join(Endpoint)}) or kind ({', '.join(KINDS)})", param="kind")
    if endpoint is not None:
        if endpoint not in list(Endpoint):
            raise InvalidRequest(f"endpoint {endpoint!r} is not one of {', '.join(Endpoint)}", param="endpoint")
        return Endpoint(endpoint)
    if kind not in KINDS:
        raise InvalidRequest(f"kind {kind!r} is not one of {', '.join(KINDS)}", param="kind")
    return KINDS[kind]


def deadline_text(deadline: str | datetime | timedelta) -> str:
    """Write a deadline as the API reads it. Raises InvalidRequest for a time without a zone."""
    if isinstance(deadline, str):
        return deadline
    if isinstance(deadline, timedelta):
        return f"{deadline.total_seconds():.3f}s"
    if deadline.tzinfo is None:
        raise InvalidRequest(f"deadline {deadline} has no time zone; give an aware datetime", param="deadline")
    return iso(deadline)


def line_maker(endpoint: Endpoint, model: str) -> Callable[[object, int], bytes]:
    """Return a function of an item and its 1-based number that makes its line. It raises InvalidRequest."""

    def line(item: object, number: int) -> bytes:
        if isinstance(item, bytes | bytearray | memoryview):
            return bytes(item)
        if isinstance(item, str):
            if item.lstrip().startswith('{"custom_id"'):
                raise InvalidRequest(
                    f"item {number} is an OpenAI line as text, which would be taken for a document; "
                    "give it as bytes, for example from a file opened with 'rb'",
                    line=number,
                )
            return _document(f"item-{number}", item)
        if not isinstance(item, Mapping):
            raise InvalidRequest(f"item {number} is of type {type(item).__name__}; give {_SHAPE}", line=number)
        given = cast("Mapping[str, Any]", item)
        if "body" in given:
            return _dump(dict(given), number)
        text = given.get("text")
        if not isinstance(text, str):
            raise InvalidRequest(f"item {number} has neither a text nor a body; give {_SHAPE}", line=number)
        identity = given.get("id", given.get("custom_id", f"item-{number}"))
        name = str(identity) if isinstance(identity, int) and not isinstance(identity, bool) else identity
        return _document(jsonl.check_custom_id(name, number, "id"), text)

    def _document(custom_id: str, text: str) -> bytes:
        body = jsonl.document_body(text, endpoint=endpoint, model=model)
        return orjson.dumps({"custom_id": custom_id, "method": "POST", "url": endpoint.value, "body": body})

    return line


def _dump(item: dict[str, Any], number: int) -> bytes:
    try:
        return orjson.dumps(item, option=orjson.OPT_SERIALIZE_NUMPY)
    except orjson.JSONEncodeError as error:
        raise InvalidRequest(f"item {number} cannot be written as JSON: {error}", line=number) from error
