"""Request bodies: read whole up to a limit, or streamed to disk in constant memory."""

from __future__ import annotations

from typing import Any

import anyio.to_thread
import orjson
from fastapi import Request

from carbonq.blobs import BlobStore, Staged
from carbonq.errors import InvalidRequest

#: Streamed input is handed to the disk in pieces of this many bytes: one thread hop each.
_PIECE_BYTES = 1024 * 1024

#: After refusing an upload, up to this many bytes of it are read and dropped, so that the answer gets through: a
#: connection closed with unread input is reset, and the client would see a broken pipe instead of the sentence.
_DRAIN_BYTES = 8 * 1024 * 1024


def _too_large(limit: int, way_out: str) -> InvalidRequest:
    return InvalidRequest(
        f"the body is larger than {limit:,} bytes: {way_out}",
        code="request_too_large",
    )


async def read_bytes(request: Request, limit: int, *, way_out: str) -> bytes:
    """Return the whole body. Raises InvalidRequest (413) above ``limit`` bytes."""
    if _declared(request) > limit:
        await _drain(request)
        raise _too_large(limit, way_out)
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > limit:
            await _drain(request)
            raise _too_large(limit, way_out)
    return bytes(body)


async def read_object(request: Request, limit: int, *, way_out: str) -> dict[str, Any]:
    """Return the body as a JSON object. Raises InvalidRequest."""
    raw = await read_bytes(request, limit, way_out=way_out)
    try:
        value: Any = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"the body is not JSON: {error}", code="invalid_json") from error
    if not isinstance(value, dict):
        raise InvalidRequest("the body must be a JSON object", code="invalid_json")
    return value


async def stage(request: Request, blobs: BlobStore, limit: int, *, way_out: str) -> Staged:
    """Stream the body into a staged blob. Raises InvalidRequest (413) above ``limit``, StoreUnavailable.

    On any error, also when the client goes away, nothing of it stays.
    """
    if _declared(request) > limit:
        await _drain(request)
        raise _too_large(limit, way_out)
    staged = await anyio.to_thread.run_sync(blobs.stage)
    try:
        piece = bytearray()
        async for part in request.stream():
            piece += part
            if staged.size + len(piece) > limit:
                await _drain(request)
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
    return int(length) if length.isdigit() else 0


async def _drain(request: Request) -> None:
    dropped = 0
    async for piece in request.stream():
        dropped += len(piece)
        if dropped > _DRAIN_BYTES:
            return
