"""Send a blob: streamed piece by piece, whole or the one range that was asked for, so that a broken download goes on.

A request for several ranges at once gets the whole file, as RFC 9110 allows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from email.utils import format_datetime
from typing import Any

import anyio
import anyio.to_thread
from fastapi.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from carbonq.api.problems import problem
from carbonq.blobs import BlobInfo, BlobStore

_RANGE = re.compile(r"bytes=\s*([0-9]{0,18})-([0-9]{0,18})\s*")


class Unsatisfiable(Exception):
    """The range begins behind the end."""


def parse_range(header: str | None, size: int) -> tuple[int, int] | None:
    """Return (start, stop) of a Range header for a file of ``size`` bytes; None: send all of it.

    What is no single range of bytes is ignored. Raises Unsatisfiable.
    """
    found = _RANGE.fullmatch(header or "")
    first, last = found.groups() if found else ("", "")
    if not first and not last:
        return None
    if not first:  # the last so many bytes
        start, stop = max(0, size - int(last)), size
    else:
        start, stop = int(first), min(size, int(last) + 1) if last else size
        if last and int(last) < start:
            return None
    if start >= stop:
        raise Unsatisfiable
    return start, stop


class Streamed(StreamingResponse):
    """Streams what an iterator yields and closes it at the end, also when the client went away in the middle.

    Its file, or its look at the database, would be open until the garbage collector comes by.
    """

    def __init__(self, pieces: Iterator[bytes], **how: Any) -> None:
        """Take the arguments of a StreamingResponse."""
        super().__init__(pieces, **how)
        self._pieces = pieces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            close = getattr(self._pieces, "close", None)
            if close is not None:
                with anyio.CancelScope(shield=True):
                    await anyio.to_thread.run_sync(close)


def download(
    blobs: BlobStore, key: str, *, filename: str, media_type: str, asked: str | None, if_range: str | None
) -> Response:
    """Return a response that streams a blob; ``asked`` and ``if_range`` are the request's headers.

    Raises NotFound and StoreUnavailable before anything is sent.
    """
    info = blobs.info(key)
    headers = {
        "Accept-Ranges": "bytes",
        "Content-Disposition": f'attachment; filename="{filename}"',
        "ETag": f'"{info.tag}"',
        "Last-Modified": format_datetime(info.modified_at, usegmt=True),
    }
    try:
        span = parse_range(asked, info.size) if _is_unchanged(info, if_range) else None
    except Unsatisfiable:
        message = f"Range {asked} begins behind the end: there are {info.size:,} bytes"
        headers = {"Accept-Ranges": "bytes", "Content-Range": f"bytes */{info.size}"}
        return problem(416, message, code="range_not_satisfiable", param="Range", headers=headers)
    start, stop = span or (0, info.size)
    headers["Content-Length"] = str(stop - start)
    if span is not None:
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{info.size}"
    return Streamed(
        blobs.pieces(key, start, stop),
        status_code=200 if span is None else 206,
        headers=headers,
        media_type=media_type,
    )


def _is_unchanged(info: BlobInfo, if_range: str | None) -> bool:
    """Say whether If-Range still stands for these bytes; a date counts when it is the one we gave."""
    return if_range is None or if_range in {f'"{info.tag}"', format_datetime(info.modified_at, usegmt=True)}
