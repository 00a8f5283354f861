"""What is looked at before any route: targets no name can have, bodies in a coding nobody undoes; and HEAD as GET.

Plain ASGI, so that streams pass.
"""

from __future__ import annotations

from http import HTTPStatus
from urllib.parse import parse_qsl

from fastapi import Request
from fastapi.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from carbonq.api import problems
from carbonq.api.body import drain

#: Longest path with its query, in bytes as sent: the longest ``custom_id``, percent-encoded, fits in.
MAX_TARGET_BYTES = 8_192


class Guard:
    """The middleware."""

    def __init__(self, app: ASGIApp) -> None:
        """Wrap an application."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on unless it cannot mean anything."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refused = _refusal(scope)
        if refused is not None:
            await drain(Request(scope, receive))
            await refused(scope, receive, send)
        elif scope["method"] == "HEAD":
            scope["method"] = "GET"
            await self._app(scope, receive, _without_body(send))
        else:
            await self._app(scope, receive, send)


def _refusal(scope: Scope) -> Response | None:
    path: str = scope["path"]
    query: bytes = scope["query_string"]
    size = len(scope.get("raw_path") or path.encode()) + len(query)
    if size > MAX_TARGET_BYTES:
        return problems.problem(
            HTTPStatus.REQUEST_URI_TOO_LONG,
            f"the path with its query has {size:,} bytes; the limit is {MAX_TARGET_BYTES:,}",
            code="target_too_long",
        )
    if "\0" in path or b"%00" in query:
        # No name has one, and PostgreSQL cannot be asked about it.
        found = parse_qsl(query.decode("latin-1"), keep_blank_values=True)
        param = next((name for name, value in found if "\0" in name + value), None)
        return problems.problem(
            HTTPStatus.BAD_REQUEST,
            f"{param or 'the path'} contains a NUL character (%00)",
            code="invalid_request",
            param=param,
            instance=path,
        )
    codings = {
        coding.strip().lower()
        for name, value in scope["headers"]
        if name == b"content-encoding"
        for coding in value.decode("latin-1").split(",")
    }
    foreign = codings - {"", "identity"}
    if foreign:
        return problems.problem(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            f"the body is encoded as {', '.join(sorted(foreign))[:80]}; send it as it is, without Content-Encoding",
            code="unsupported_encoding",
            param="Content-Encoding",
            instance=path,
            headers={"Accept-Encoding": "identity"},
        )
    return None


def _without_body(send: Send) -> Send:
    """Return a ``send`` that ends the answer with its head; a stream stops by itself when nobody is there to read."""
    is_over = False

    async def head_only(message: Message) -> None:
        nonlocal is_over
        if message["type"] == "http.response.start":
            await send(message)
        elif not is_over:
            is_over = True
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    return head_only
