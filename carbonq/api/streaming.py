"""A chat completion as it comes: server-sent chunks in OpenAI's shape, with ``usage.carbon`` in the last one.

The answer that ends a call has the whole text, so that whatever did not come before comes then: a stream of an engine
that cannot tell pieces is one piece long. An error before the first piece is an answer like any other.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

import orjson
from fastapi.responses import Response
from sse_starlette import EventSourceResponse

from carbonq.api import problems
from carbonq.api.dispatcher import Reply
from carbonq.errors import CarbonqError, InvalidRequest

#: How often a quiet stream says that it lives, and how long a client may leave what is sent unread, in seconds.
_PING_S = 15
_SEND_TIMEOUT_S = 30.0

#: Fields of a chat whose answers are more than one text.
_WHOLE = ("audio", "functions", "logprobs", "tools", "top_logprobs")


@dataclass(frozen=True, slots=True)
class Wish:
    """That a call is to be streamed; ``has_usage``: a last chunk has the usage."""

    has_usage: bool


def wish_of(body: dict[str, Any], *, may_stream: bool) -> Wish | None:
    """Take ``stream`` and ``stream_options`` out of a body; None where no stream is asked for.

    Raises InvalidRequest.
    """
    asked, options = body.pop("stream", None), body.pop("stream_options", None)
    if asked not in (None, True, False):
        raise InvalidRequest(f"stream is {asked!r}; it must be true or false", param="stream")
    if not asked:
        return None
    if not may_stream:
        raise InvalidRequest("streamed answers are offered of chat completions only", param="stream")
    for name in _WHOLE:
        if body.get(name):
            raise InvalidRequest(f"{name} is not offered in a streamed answer; send it without stream", param=name)
    if body.get("n") not in (None, 1):
        raise InvalidRequest("n must be 1 in a streamed answer", param="n")
    if options is not None and not isinstance(options, dict):
        raise InvalidRequest("stream_options must be an object", param="stream_options")
    return Wish(bool((options or {}).get("include_usage")))


class Pieces:
    """Text that has come and was not sent on yet; for one event loop."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._texts: list[str] = []
        self._is_there = asyncio.Event()

    def put(self, text: str) -> None:
        """Take a piece."""
        self._texts.append(text)
        self._is_there.set()

    @property
    def is_any(self) -> bool:
        """Whether there is text."""
        return self._is_there.is_set()

    async def wait(self) -> None:
        """Return when there is text."""
        await self._is_there.wait()

    def take(self) -> str:
        """Return what has come since the last time."""
        text = "".join(self._texts)
        self._texts.clear()
        self._is_there.clear()
        return text


@dataclass(frozen=True, slots=True)
class Call:
    """A streamed call: ``run`` begins it and takes what is told each piece, ``drop`` gives it up in the background.

    ``refusal`` makes the answer for a reply that is an error (None: it is none), ``usage`` the JSON of a reply's usage;
    ``ended`` is told of each reply that is none.
    """

    request_id: str
    model: str
    wish: Wish
    headers: Mapping[str, str]
    run: Callable[[Callable[[str], None]], Coroutine[Any, Any, Reply]]
    drop: Callable[[], None]
    refusal: Callable[[Reply], Response | None]
    usage: Callable[[Reply], bytes]
    ended: Callable[[Reply], Awaitable[None]]


async def answer(call: Call, gone: asyncio.Future[None]) -> Response | None:
    """Begin a call and return its stream, or its refusal; None where the client went away (``gone``) before either.

    Raises what the call raises before its first piece.
    """
    pieces = Pieces()
    reply = asyncio.ensure_future(call.run(pieces.put))
    first = asyncio.ensure_future(pieces.wait())
    try:
        await asyncio.wait({reply, first, gone}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        first.cancel()
    if reply.done():
        refused = call.refusal(reply.result())
        if refused is not None:
            return refused
    elif gone.done():
        _give_up(call, reply)
        return None
    return EventSourceResponse(
        _chunks(call, pieces, reply),
        headers={**call.headers, "Cache-Control": "no-store"},
        ping=_PING_S,
        sep="\n",
        send_timeout=_SEND_TIMEOUT_S,
    )


async def _chunks(call: Call, pieces: Pieces, reply: asyncio.Future[Reply]) -> AsyncGenerator[dict[str, str]]:
    """Yield the chunks; whoever stops reading gives the call up."""
    write = _Chunk(call)
    sent: list[str] = []
    try:
        yield write.delta({"role": "assistant", "content": ""})
        while not reply.done() or pieces.is_any:
            more = asyncio.ensure_future(pieces.wait())
            await asyncio.wait({reply, more}, return_when=asyncio.FIRST_COMPLETED)
            more.cancel()
            text = pieces.take()
            if text:
                sent.append(text)
                yield write.delta({"content": text})
        found = _outcome(call, reply)
        if isinstance(found, Response):
            yield {"data": bytes(found.body).decode()}
            return
        await call.ended(found)
        choice = orjson.loads(found.values["body_json"])["choices"][0]
        whole, told = str(choice["message"].get("content") or ""), "".join(sent)
        if not whole.startswith(told):
            whole = told  # an engine that takes back what it told: what is said stays said
        if len(whole) > len(told):
            yield write.delta({"content": whole[len(told) :]})
        yield write.delta({}, finish_reason=choice.get("finish_reason"))
        if call.wish.has_usage:
            yield write.usage(call.usage(found))
        yield {"data": "[DONE]"}
    finally:
        if not reply.done():
            _give_up(call, reply)


def _outcome(call: Call, reply: asyncio.Future[Reply]) -> Reply | Response:
    """Return how a call ended: its reply, or the answer that says what went wrong."""
    try:
        found = reply.result()
    except CarbonqError as error:
        return problems.answer(error)
    return call.refusal(found) or found


def _give_up(call: Call, reply: asyncio.Future[Reply]) -> None:
    # The call then ends with an error that nobody waits for.
    reply.add_done_callback(lambda done: done.cancelled() or done.exception())
    call.drop()


class _Chunk:
    """Writes the chunks of one answer."""

    def __init__(self, call: Call) -> None:
        self._has_usage = call.wish.has_usage
        self._head = {
            "id": f"chatcmpl-{call.request_id.removeprefix('req_')}",
            "object": "chat.completion.chunk",
            "created": int(time.time()),
            "model": call.model,
        }

    def delta(self, delta: Mapping[str, str], *, finish_reason: str | None = None) -> dict[str, str]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        unknown = {"usage": None} if self._has_usage else {}
        return {"data": orjson.dumps({**self._head, "choices": [choice], **unknown}).decode()}

    def usage(self, used: bytes) -> dict[str, str]:
        return {"data": orjson.dumps({**self._head, "choices": [], "usage": orjson.Fragment(used)}).decode()}
