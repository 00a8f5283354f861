"""Request bodies: read whole up to a limit, or streamed to disk in constant memory, and neither for ever."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import anyio.to_thread
import orjson
from fastapi import Request

from carbonq import jsonl
from carbonq.blobs import BlobStore, Staged
from carbonq.errors import InvalidRequest

#: Streamed input is handed to the disk in pieces of this many bytes: one thread hop each.
_PIECE_BYTES = 1024 * 1024

#: After refusing an upload, up to this many bytes of it are read and dropped, so that the answer gets through: a
#: connection closed with unread input is reset, and the client would see a broken pipe instead of the sentence.
_DRAIN_BYTES = 8 * 1024 * 1024

#: How long that may take, in machine seconds.
_DRAIN_S = 5.0

#: How long a body may pause, and how long it may take in all, in machine seconds.
IDLE_S = 60.0
WHOLE_S = 3600.0

#: Media types of a JSON body; curl's own default for ``-d`` counts, so that examples just work.
_JSON = frozenset({"", "application/json", "application/x-www-form-urlencoded", "text/plain", "text/json"})


def media_type_of(request: Request) -> str:
    """Return the media type of a body, in small letters and without parameters; empty where none is named."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def unsupported(media_type: str, taken: str) -> InvalidRequest:
    """Return the error (415) for a body of a media type that a route does not take."""
    return InvalidRequest(
        f"Content-Type {media_type[:80]!r} is not taken; send {taken}",
        param="Content-Type",
        code="unsupported_media_type",
    )


def _too_large(limit: int, way_out: str) -> InvalidRequest:
    return InvalidRequest(
        f"the body is larger than {limit:,} bytes: {way_out}",
        code="request_too_large",
    )


async def pieces(
    request: Request, *, idle_s: float | None = None, whole_s: float | None = None
) -> AsyncGenerator[bytes]:
    """Yield the body as it comes. Raises InvalidRequest (408) where it pauses or lasts too long."""
    idle_s, whole_s = idle_s or IDLE_S, whole_s or WHOLE_S
    loop = asyncio.get_running_loop()
    ends_at = loop.time() + whole_s
    stream = request.stream()
    while True:
        left_s = ends_at - loop.time()
        try:
            async with asyncio.timeout(min(idle_s, left_s)):
                piece = await anext(stream, None)
        except TimeoutError:
            said = f"paused for {idle_s:g} s" if left_s > idle_s else f"took more than {whole_s:g} s"
            raise InvalidRequest(f"the body {said}; send it again, without pauses", code="request_timeout") from None
        if piece is None:
            return
        yield piece


async def read_bytes(request: Request, limit: int, *, way_out: str) -> bytes:
    """Return the whole body. Raises InvalidRequest: above ``limit`` bytes (413), too slow (408)."""
    if _declared(request) > limit:
        await drain(request)
        raise _too_large(limit, way_out)
    body = bytearray()
    async for piece in pieces(request):
        body += piece
        if len(body) > limit:
            await drain(request)
            raise _too_large(limit, way_out)
    return bytes(body)


async def read_object(request: Request, limit: int, *, way_out: str) -> dict[str, Any]:
    """Return the body as a JSON object; of a name that comes twice the last one counts. Raises InvalidRequest."""
    media_type = media_type_of(request)
    if media_type not in _JSON and not media_type.endswith("+json"):
        await drain(request)
        raise unsupported(media_type, "application/json")
    return object_of(await read_bytes(request, limit, way_out=way_out))


def object_of(raw: bytes) -> dict[str, Any]:
    """Return a body as a JSON object; of a name that comes twice the last one counts. Raises InvalidRequest."""
    try:
        value: Any = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"the body is not JSON: {error}", code="invalid_json") from error
    if not isinstance(value, dict):
        raise InvalidRequest("the body must be a JSON object", code="invalid_json")
    if jsonl.is_too_deep(raw, value):
        raise InvalidRequest(f"the body is nested more than {jsonl.MAX_DEPTH} levels deep", code="invalid_json")
    return value


async def stage(request: Request, blobs: BlobStore, limit: int, *, way_out: str) -> Staged:
    """Stream the body into a staged blob. Raises InvalidRequest (413 above ``limit``, 408 too slow), StoreUnavailable.

    On any error, also when the client goes away, nothing of it stays.
    """
    if _declared(request) > limit:
        await drain(request)
        raise _too_large(limit, way_out)
    staged = await anyio.to_thread.run_sync(blobs.stage)
    try:
        piece = bytearray()
        async for part in pieces(request):
            piece += part
            if staged.size + len(piece) > limit:
                await drain(request)
                raise _too_large(limit, way_out)
            if len(piece) >= _PIECE_BYTES:
                await anyio.to_thread.run_sync(staged.write, bytes(piece))
                piece.clear()
        if piece:
            await anyio.to_thread.run_sync(staged.write, bytes(piece))
    except BaseException:
        staged.discard()  # also on cancellation, where awaiting is not allowed any more
        raise
    return staged


def _declared(request: Request) -> int:
    length = request.headers.get("content-length", "")
    return int(length) if length.isascii() and length.isdigit() else 0


async def drain(request: Request) -> None:
    """Read and drop what comes of a body that is refused, within bounds."""
    dropped = 0
    try:
        async for piece in pieces(request, idle_s=_DRAIN_S, whole_s=_DRAIN_S):
            dropped += len(piece)
            if dropped > _DRAIN_BYTES:
                return
    except InvalidRequest:
        return  # the answer is on its way already
    except RuntimeError:  # what Starlette says of a body whose last piece was the one too many
        return
